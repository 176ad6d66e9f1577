"""Sentences of earlier reports: they are checked in the wording of their release, and not refused for it."""

from collections.abc import Mapping
from typing import Any

from ._texts import ARITHMETIC

# A part of a text as this release writes it, and as releases up to 0.1.0.dev423 did.
_EARLIER = {
    "OptimizedFor(": "MadeFor(",
    "; to be checked in the log": "; the log will tell",
    "; no planned cohorts to compare the log with": "; none were planned that a log could be compared with",
    "each round was released at most once, in order": "each round was released once at most, in order",
    "; this cannot be checked here": "; nobody can check that here",
    "only those who are trusted see the server's state, with its keys and noise rows": (
        "the server's state, with keys and noise rows, is seen by nobody but those trusted"
    ),
    "a planned report: it is about the settings of the run, not about what it did": (
        "a plan: what the run is set to do, whatever it did, and nothing of what it did"
    ),
    " rounds, the last released round with clients: if the decision to stop depended on released results, only": (
        " rounds, as far as any was released and had clients: if what was released had a part in that, only"
    ),
    "the larger of the planned and the final figures is stated": "the larger of planned and realised is stated",
    "Philox is not a cryptographic generator: no proof rules out that its output can be predicted": (
        "Philox is no cryptographic generator: no proof rules out telling its output"
    ),
    "so that anybody can remove it": "so that everybody can take it off",
}
_EARLIER_SEVERITY = "theoretical: low bits of float32 sums leave traces that the statement does not cover"
# Fields with texts of this package; all other fields hold figures, and texts of the run and its operator.
_FIELDS = ("mechanism", "assumptions", "findings", "randomness")


def in_earlier_words(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report that was recomputed, in the words of earlier releases.

    Formal guarantee: only texts of this package change, each to one that means the same; no figure does. A stored
    report that equals the result therefore states what follows from the files.

    Example:
        >>> in_earlier_words({"mechanism": {"made_for": "OptimizedFor(rounds=8)"}, "headline": "ε≤1"})
        {'mechanism': {'made_for': 'MadeFor(rounds=8)'}, 'headline': 'ε≤1'}
    """
    return {name: _earlier(value) if name in _FIELDS else value for name, value in report.items()}


def as_arithmetic_was(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report that was recomputed, with what releases before grids said of floating point.

    Example:
        >>> as_arithmetic_was({"arithmetic": ARITHMETIC})["arithmetic"]["severity"][:11]
        'theoretical'
    """
    found = dict(report)
    if found.get("arithmetic") == ARITHMETIC:
        found["arithmetic"] = {**ARITHMETIC, "severity": _EARLIER_SEVERITY}
    return found


def _earlier(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _earlier(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_earlier(each) for each in value]
    if not isinstance(value, str):
        return value
    for now, before in _EARLIER.items():
        value = value.replace(now, before)
    return value
