"""What is checked: the laws, a `Subject`, its `Claim`, and what is `Released`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from scipy import stats

from tff_mf.base import validation
from tff_mf.mechanisms import Identity, Mechanism
from tff_mf.problem import grids
from tff_mf.problem.grids import Grid

# A false alarm of one law that is kept; and standard deviations within which a fault is missed with probability 1e-6.
CHANCE, POWER = 1e-10, 4.76

LAWS: Mapping[str, str] = {
    "scale": "the noise has the claimed scale, in every tensor and round",
    "correlation": "whitened by the claimed C, the noise is normal and uncorrelated",
    "fresh": "a state stepped twice, and two starts, draw other noise",
    "processes": "two processes that start at the same time draw other noise",
    "bound": "hostile updates move a release by at most clip_norm / divisor for each client",
    "divisor": "neither the divisor nor the noise follows the number of clients",
    "beside": "nothing else that leaves the server depends on a client",
    "last_round": "the round after the last one is refused",
    "low_bits": "the last bits of what is released do not give a client away",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What an implementation claims, of which its ε follows.

    Attributes:
        mechanism: The mechanism with strategy matrix C; `Identity()` for independent noise.
        clip_norm: ζ: bound on the L2 norm of a client's update.
        noise_multiplier: σ: standard deviation of a coordinate of z, divided by `clip_norm`.
        divisor: What the noised sum is divided by.
        rounds: Last round; `None` if there is none.
        grid: The grid on which sums and noise are integers, or `None` for floating point.
        numbers_covered: Whether single numbers beside the sum, such as noised counts, are accounted for elsewhere.
        not_promised: Names of laws that the implementation does not claim to keep: they are judged, and fail nothing.

    Raises:
        InputError: If a field is of the wrong type or out of range.
    """

    clip_norm: float
    noise_multiplier: float
    mechanism: Mechanism = dataclasses.field(default_factory=Identity)
    divisor: float = 1.0
    rounds: int | None = None
    grid: Grid | None = None
    numbers_covered: bool = False
    not_promised: Sequence[str] = ()

    def __post_init__(self) -> None:
        validation.instance("mechanism", self.mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT")
        for name in ("clip_norm", "noise_multiplier", "divisor"):
            object.__setattr__(self, name, validation.positive(name, getattr(self, name)))
        if self.rounds is not None:
            self.mechanism.check(self.rounds)
        grids.check(self.grid)
        for law in self.not_promised:
            validation.one_of("not_promised", law, tuple(LAWS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released:
    """Everything that leaves the server in a round.

    Attributes:
        estimate: The noised sum, divided: a tree like a client's update.
        beside: Everything else, such as counts and metrics: any tree of arrays and numbers.
    """

    estimate: Any
    beside: Any = ()


class Subject(Protocol):
    """An implementation under check. It may raise, which refuses a round."""

    def start(self) -> Any:
        """Returns the state before the first round."""
        ...

    def step(self, state: Any, updates: Sequence[Any]) -> tuple[Any, Any]:
        """Returns the next state and what is released: a tree like an update, or a `Released`.

        Args:
            state: A state, which must not change.
            updates: A tree of arrays for each client that reports.
        """
        ...


class BrokenError(Exception):
    """A law is broken, by this evidence."""

    status = "failed"


class NotJudgedError(Exception):
    """A law cannot be judged: why, and what would let it be judged."""

    status = "not judged"


def deviations_of(tests: int) -> float:
    """Returns the standard deviations that none of so many normal numbers exceeds, but with a chance of `CHANCE`."""
    return float(stats.norm.isf(CHANCE / 4 / tests))
