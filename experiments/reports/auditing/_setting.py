"""What is audited, a run and its claim; and the result of one test of it, with its words."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf.accounting import Question
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics.digits import rounded_up
from tff_mf.planning import run_guarantee

# Tests of the noise of clients' counts have this before their names.
COUNTS = "counts: "

_OF_NOISE = ("variance", "covariance", "normality", "repeats")
_NAMES = (*_OF_NOISE, "fresh steps", "sensitivity", "canaries", "control")
_ON_GRID = ("integers", "pairs")

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
        return self.plan.rounds

    @property
    def every(self) -> int:
        """Rounds from one restart to the next; all rounds if there is none."""
        return self.plan.restart_every or self.plan.rounds

    @functools.cached_property
    def claimed(self) -> tff_mf.Guarantee:
        """The claimed guarantee of everything that is released, for its adjacency; noise is taken to be random."""
        plan = self.plan
        question = Question(
            mechanism=plan.mechanism,
            rounds=plan.rounds,
            sampling=plan.participation,
            restart_every=plan.restart_every,
            adjacency=self.adjacency,
            grid=plan.grid,
            dimension=plan.dimension,
        )
        return run_guarantee(question, plan.noise_multiplier, count_stddev=plan.adaptive_count_stddev)

    @property
    def samples(self) -> int:
        fitting = min(_MOST_COORDINATES, max(FEWEST_COORDINATES, _NUMBERS // self.rounds))
        return fitting if self.coordinates is None else self.coordinates

    @property
    def of_stream(self) -> dict[str, Any]:
        """What the stream of its noise has beside mechanism and standard deviation."""
        return {"coordinates": self.samples, "insecure_seed": self.plan.insecure_seed, "grid": self.plan.grid}

    @property
    def names(self) -> tuple[str, ...]:
        on_grid = () if self.plan.grid is None else _ON_GRID
        counts = () if self.plan.adaptive_count_stddev is None else tuple(COUNTS + name for name in _OF_NOISE)
        return (*_NAMES, *on_grid, *counts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Test:
    """The result of one test: a measured value, the limit that it was compared with, and more as JSON."""

    # Not a class of tests, although its name suggests so to pytest.
    __test__ = False

    name: str
    passed: bool
    value: float
    limit: float
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def text(self) -> str:
        form = _TEXTS[self.name.removeprefix(COUNTS)]
        shown = {"value": self.value, "limit": self.limit, **self.about}
        return form.format(**shown) if isinstance(form, str) else form(**shown)


def _repeats(value: float, limit: float, rounds: Sequence[int], other_stream: bool) -> str:
    where = f"rounds {' and '.join(map(str, rounds))}{' of another stream' if other_stream else ''}"
    return (
        f"largest correlation of two rows at any shift: {value:.2f} standard deviations, {where}; at most {limit:.2f}"
    )


def _pairs(value: float, limit: float, seen: int, needed: int) -> str:
    if seen < needed:
        return f"not tested: {seen} pairs are far out, and the test needs {needed}; take more coordinates"
    return f"share of {seen} pairs far out that float32 normals can give: {value:.3f}; at most {limit}"


def _sensitivity(value: float, limit: float, rounds: Sequence[int]) -> str:
    shown = ", ".join(map(str, rounds[:8])) + (", …" if len(rounds) > 8 else "")
    return f"worst client found: {value:.6f} with rounds {shown}; claimed {limit:.6f}"


def _canaries(value: float, limit: float, confidence: float) -> str:
    return f"canaries show {_at_least(value)} with confidence {confidence}; claimed {rounded_up(limit)}"


def _control(value: float, limit: float, at_most: float, tells: bool) -> str:
    must = (
        f"which must be above {rounded_up(limit)}; this many canaries can show {at_most:.2f} at most"
        if tells
        else f"and this many cannot tell it from the claim of {rounded_up(limit)}: nothing follows from that"
    )
    return f"with the noise cut in half, canaries show {_at_least(value)}, {must}"


def _at_least(epsilon: float) -> str:
    """Returns a lower bound in words, rounded down, so that it stays a lower bound."""
    return f"an ε of {math.floor(epsilon * 1000) / 1000:.3f} or more"


_TEXTS: Mapping[str, Any] = {
    "variance": "variance of the whitened rows: {value:.4f} in round {round}, where it is furthest from 1",
    "covariance": "largest correlation of two whitened rows, in standard deviations: {value:.2f}, rounds {rounds[0]} "
    "and {rounds[1]}; at most {limit:.2f}",
    "normality": "Kolmogorov-Smirnov distance from the normal distribution: {value:.2g}, p = {p:.2g}",
    "repeats": _repeats,
    "integers": "numbers of the noise that are not whole multiples of the grid's unit: {value}",
    "pairs": _pairs,
    "fresh steps": "variance of the difference of one state's two steps, over what it must be: {value:.4f}",
    "sensitivity": _sensitivity,
    "canaries": _canaries,
    "control": _control,
}
