"""Noise of a BLT: one row of memory per buffer."""

from tff_mf.mechanisms import BLT
from tff_mf.streams._steps import NEW, Step, Steps


class BLTSteps(Steps):
    """McMahan et al. (2024), equation 3 and algorithm 3: L_t = ωᵀS, then S ← diag(θ)S + 1n_t."""

    def __init__(self, mechanism: BLT) -> None:
        self._step = Step(
            past=tuple(enumerate(mechanism.omega)),
            after=tuple(((buffer, decay), (NEW, 1.0)) for buffer, decay in enumerate(mechanism.theta)),
        )

    @property
    def row_count(self) -> int:
        return len(self._step.after)

    def step(self, done: int) -> Step:
        return self._step
