"""The result of one test, and its words."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tff_mf.numerics.digits import rounded_up

from ._setting import COUNTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Test:
    """The result of one test.

    Attributes:
        name: Name of the test.
        passed: Whether it passed.
        value: The measured value.
        limit: The value that it was compared with.
        about: More of what was measured, as JSON.
    """

    # Not a class of tests, although its name suggests so to pytest.
    __test__ = False

    name: str
    passed: bool
    value: float
    limit: float
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def text(self) -> str:
        """The result in words."""
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
