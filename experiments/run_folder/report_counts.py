"""Counts of a round's device reports, by what was done with them: exact counts, for the operator only.

Whether an update is scaled or replaced by zero depends on the device's data. These counts have no noise and no
guarantee covers them: they stay in the ledger and in the operator's report, and published reports leave them out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tff_mf.errors import InputValueError

# The same as in the runner of each bundle; no text from a device gets into a ledger.
REASONS = (
    *("no regular file", "too large", "damaged", "empty", "missing leaf", "extra leaf", "dtype", "shape"),
    *("not chosen", "duplicate", "another round", "late"),
)
_NUMBERS = ("came", "counted", "clipped", "zeroed")
_LARGEST = 10**12


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportCounts:
    """Counts of the device reports of one or several rounds.

    Attributes:
        came: Reports that arrived.
        counted: Reports whose updates are in the sum, including scaled and zeroed ones.
        clipped: Updates above the clip norm, which the server scaled down to it.
        zeroed: Updates that were not finite, which the server replaced by zero.
        refused: Reports that are not in the sum, by reason.

    Raises:
        InputValueError: If a count is out of range, or they contradict each other.

    Example:
        >>> one = ReportCounts(came=5, counted=4, clipped=1, zeroed=0, refused={"late": 1})
        >>> (one + one).refused, one.bad
        ({'late': 2}, 2)
    """

    came: int
    counted: int
    clipped: int
    zeroed: int
    refused: Mapping[str, int]

    def __post_init__(self) -> None:
        if not isinstance(self.refused, Mapping) or not set(self.refused) <= set(REASONS):
            raise InputValueError(f"refused={self.refused!r:.200} must have counts by reason, of {REASONS}.")
        numbers = {name: getattr(self, name) for name in _NUMBERS} | dict(self.refused)
        for name, number in numbers.items():
            if type(number) is not int or not 0 <= number <= _LARGEST:
                raise InputValueError(f"{name}={number!r:.80} must be a whole number from 0 to {_LARGEST}.")
        if self.came != self.counted + sum(self.refused.values()) or self.clipped + self.zeroed > self.counted:
            raise InputValueError(f"{self!r} contradicts itself: each report that came is counted or refused.")

    def __add__(self, other: "ReportCounts") -> "ReportCounts":
        refused = {
            reason: self.refused.get(reason, 0) + other.refused.get(reason, 0)
            for reason in REASONS
            if reason in self.refused or reason in other.refused
        }
        return ReportCounts(
            **{name: getattr(self, name) + getattr(other, name) for name in _NUMBERS},
            refused=refused,
        )

    @property
    def bad(self) -> int:
        """Reports that were refused, scaled or zeroed."""
        return sum(self.refused.values()) + self.clipped + self.zeroed

    @property
    def in_the_model(self) -> int:
        """Updates in the sum that were not replaced by zero."""
        return self.counted - self.zeroed

    def as_json(self) -> dict[str, Any]:
        """Returns the counts in the form of a ledger entry."""
        return {**{name: getattr(self, name) for name in _NUMBERS}, "refused": dict(sorted(self.refused.items()))}


def read_counts(given: object) -> ReportCounts:
    """Returns the counts in a ledger entry.

    Raises:
        InputValueError: If they are not such counts.
    """
    if not isinstance(given, Mapping) or set(given) != {*_NUMBERS, "refused"}:
        raise InputValueError(f"reports={given!r:.80} must have {', '.join((*_NUMBERS, 'refused'))}.")
    return ReportCounts(**given)
