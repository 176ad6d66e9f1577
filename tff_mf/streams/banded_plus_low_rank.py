"""Noise of a decoder that is banded plus low rank."""

from tff_mf.mechanisms import BandedPlusLowRank
from tff_mf.streams._steps import DRAWN, NEW, Step, Steps, Terms


class BandedPlusLowRankSteps(Steps):
    """n_t = y_t − y_{t−1} for y = B·s·z, B = D + (L·Rᵀ below D): Denisov et al. (2022), appendix H.

    The memory is the last h − 1 rows of s·z, the newest first; the r sums Σ_{i ≤ t−h} R_i s·z_i of older rows; and
    y_{t−1}.
    """

    def __init__(self, mechanism: BandedPlusLowRank) -> None:
        self._diagonals, self._left, self._right = mechanism.diagonals, mechanism.left, mechanism.right
        self._recent = len(mechanism.diagonals) - 1
        self._rank = mechanism.left.shape[1]

    @property
    def row_count(self) -> int:
        return self._recent + self._rank + 1

    def step(self, done: int) -> Step:
        recent, last = range(self._recent), self.row_count - 1
        sums = range(self._recent, last)
        decoder = [*self._diagonals[1:, done].tolist(), *self._left[done].tolist()]
        past = [(last, 1.0), *((row, -weight) for row, weight in enumerate(decoder))]
        # The row of R for the row of z that leaves the diagonals in this round.
        leaving = self._right[done - self._recent].tolist() if done >= self._recent else [0.0] * self._rank
        oldest = recent[-1] if recent else DRAWN
        after: list[int | Terms] = [((DRAWN, 1.0),), *recent[:-1]] if recent else []
        after += [((row, 1.0), (oldest, weight)) if weight else row for row, weight in zip(sums, leaving, strict=True)]
        scale = float(self._diagonals[0, done])
        return Step(scale=scale, past=past, after=(*after, ((last, 1.0), (NEW, 1.0))))
