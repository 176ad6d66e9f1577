"""Progress reports of searches that take seconds."""

from typing import NamedTuple


class Progress(NamedTuple):
    """The state of a running search.

    Attributes:
        rounds: Number of rounds of the problem being solved; the last problem has all rounds.
        iteration: Iterations so far, over all problems.
        error: RmsError of that problem, at a sensitivity of √k for k participations.
    """

    rounds: int
    iteration: int
    error: float
