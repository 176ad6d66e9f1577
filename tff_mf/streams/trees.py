"""Noise of trees: the sums of n over the last complete blocks of 2^h rounds, one row of memory per level."""

import math

from tff_mf.mechanisms import Tree, tree_factors
from tff_mf.streams._steps import NEW, Step, Steps, Terms


class TreeSteps(Steps):
    """L_t = Σ_h w_h(t)·I_h for the sums I_h of n over the last complete block of 2^h rounds: see `grids`."""

    def __init__(self, mechanism: Tree) -> None:
        self._rounds, self._variant = mechanism.rounds, mechanism.variant

    @property
    def row_count(self) -> int:
        # One per level except for the root, which no later round needs.
        return self._rounds.bit_length() - 1

    def rows_in_use(self, done: int) -> int:
        return (done & (2**self.row_count - 1)).bit_count()

    def step(self, done: int) -> Step:
        # Of the largest block of 2^height rounds that this round completes.
        height = (done ^ (done + 1)).bit_length() - 1
        after: list[int | Terms] = list(range(self.row_count))
        if height < self.row_count:
            after[height] = ((NEW, 1.0), *((row, 1.0) for row in range(height)))
        scale, past = self._full(done) if self._variant == "full" else self._of_height(min(height, self.row_count))
        return Step(scale=scale, past=past, after=tuple(after))

    def _of_height(self, height: int) -> tuple[float, Terms]:
        if self._variant == "vanilla":
            return 1.0, [(row, 1.0) for row in range(height)]
        scale, weights = tree_factors.online_step(height)
        return scale, list(enumerate(weights))

    def _full(self, done: int) -> tuple[float, Terms]:
        alpha, couplings = tree_factors.full_path(self._rounds, done)
        weights: list[float] = []
        for height, coupling in zip(range(self.row_count, 0, -1), couplings, strict=True):
            growth = 1 + coupling * math.ldexp(1.0, height - 1)
            weights = [*(growth * weight for weight in weights), coupling]
        past = [(row, weight) for row, weight in enumerate(reversed(weights)) if weight]
        return tree_factors.ROUND_UP / math.sqrt(1 + alpha), past
