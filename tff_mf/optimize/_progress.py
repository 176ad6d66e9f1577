"""What a search that takes seconds tells on its way."""

from typing import NamedTuple


class Progress(NamedTuple):
    """Where a search is.

    Attributes:
        rounds: Number of rounds of the problem that is being solved; the last one has all.
        iteration: Iterations so far, over all problems.
        error: RmsError of that problem, at a sensitivity of √k for k participations.
    """

    rounds: int
    iteration: int
    error: float
