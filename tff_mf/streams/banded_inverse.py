"""Noise of a Toeplitz C with a banded inverse: the last rows of C·n, computed from n."""

from tff_mf.mechanisms import BandedInverse
from tff_mf.streams._steps import NEW, PAST, Step, Steps


class BandedInverseSteps(Steps):
    """q_t = n_t + L_t with L_t = −Σ_{0<j<b̂} (d_j/d_0) q_{t−j}: the last b̂ − 1 rows q, the newest first."""

    def __init__(self, mechanism: BandedInverse) -> None:
        first, *others = mechanism.inverse_column
        new = (((NEW, 1.0), (PAST, 1.0)),) if others else ()
        self._step = Step(
            # 1 / C_tt is d_0, and the product with s is rounded.
            scale=first * (1 + 2.0**-50),
            past=tuple((row, -other / first) for row, other in enumerate(others)),
            after=(*new, *range(len(others) - 1)),
        )

    @property
    def row_count(self) -> int:
        return len(self._step.after)

    def step(self, done: int) -> Step:
        return self._step
