"""What is audited: a run and its claim."""

import dataclasses
import functools

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

# Tests of the noise of clients' counts have this before their names.
COUNTS = "counts: "

_OF_NOISE = ("variance", "covariance", "normality", "repeats")
_NAMES = (*_OF_NOISE, "fresh steps", "sensitivity", "canaries", "control")
# Of noise on a grid.
ON_GRID = ("integers", "pairs")

# Coordinates are samples: fewer prove nothing, and more do not fit in memory with all rounds.
FEWEST_COORDINATES = 1024
_MOST_COORDINATES = 16_384
_NUMBERS = 2**24
_MOST_NUMBERS = 2**31


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The run that is audited, and its claim.

    Attributes:
        plan: The plan of the run; its insecure seed makes the tested noise repeatable.
        adjacency: "zero-out": half of the canaries have all updates set to zero; "replace-one": half have the opposite
            updates.
        coordinates: Number of coordinates of the noise, each an independent sample with two canaries. As many as fit in
            memory if not given.
        noise_scale: Factor of the emitted noise, to test whether the audit notices; normally 1.

    Raises:
        InputTypeError: If `coordinates` is not a whole number.
        InputValueError: If there are too few coordinates to prove anything, or too many for memory.
    """

    plan: tff_mf.Plan
    adjacency: str = "zero-out"
    coordinates: int | None = None
    noise_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.coordinates is not None:
            validation.whole("coordinates", self.coordinates, at_least=FEWEST_COORDINATES)
            if self.coordinates * self.rounds > _MOST_NUMBERS:
                raise InputValueError(
                    f"coordinates={self.coordinates} times rounds={self.rounds} is more than {_MOST_NUMBERS} numbers: "
                    f"take at most {_MOST_NUMBERS // self.rounds} coordinates."
                )

    @property
    def rounds(self) -> int:
        """Number of rounds n."""
        return self.plan.rounds

    @property
    def every(self) -> int:
        """Rounds from one restart to the next; all rounds if there is none."""
        return self.plan.restart_every or self.plan.rounds

    @functools.cached_property
    def claimed(self) -> tff_mf.Guarantee:
        """The claimed guarantee of everything that is released, for its adjacency; noise is taken to be random."""
        plan = self.plan
        sums = tff_mf.guarantee(
            plan.mechanism,
            plan.rounds,
            plan.participation,
            noise_multiplier=plan.noise_multiplier,
            restart_every=plan.restart_every,
            adjacency=self.adjacency,
            grid=plan.grid,
            dimension=plan.dimension,
        )
        if plan.adaptive_count_stddev is None:
            return sums
        counts = tff_mf.adaptive_clipping_guarantee(
            plan.rounds,
            plan.participation,
            count_stddev=plan.adaptive_count_stddev,
            adjacency=self.adjacency,
            grid=plan.grid,
        )
        return tff_mf.compose_guarantees(sums, counts)

    @property
    def samples(self) -> int:
        """Number of coordinates of the noise."""
        if self.coordinates is None:
            return min(_MOST_COORDINATES, max(FEWEST_COORDINATES, _NUMBERS // self.rounds))
        return self.coordinates

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tests of an audit."""
        on_grid = () if self.plan.grid is None else ON_GRID
        counts = () if self.plan.adaptive_count_stddev is None else tuple(COUNTS + name for name in _OF_NOISE)
        return (*_NAMES, *on_grid, *counts)
