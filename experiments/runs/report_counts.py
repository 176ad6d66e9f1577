"""Counts of the reports that devices send in a round, by what became of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...base.errors import InputValueError

# Why a report is refused; no text from a device gets into a ledger.
REASONS = (
    *("no regular file", "too large", "damaged", "empty", "missing leaf", "extra leaf", "dtype", "shape"),
    *("not chosen", "duplicate", "another round", "late"),
)
_NUMBERS = ("came", "counted", "clipped", "zeroed")
# More than the number of devices.
_MOST = 10**12


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
        for name, value in {**{name: getattr(self, name) for name in _NUMBERS}, **self.refused}.items():
            if type(value) is not int or not 0 <= value <= _MOST:
                raise InputValueError(f"{name}={value!r:.80} must be a whole number of at least 0.")
        if self.came != self.counted + sum(self.refused.values()) or self.clipped + self.zeroed > self.counted:
            raise InputValueError(f"{self!r} contradicts itself: each report that came is counted or refused.")

    @classmethod
    def of(cls, content: Any) -> "ReportCounts":
        """Returns the counts in JSON.

        Raises:
            InputValueError: If they are none.
        """
        try:
            return cls(**content)
        except TypeError as error:
            raise InputValueError(f"reports={content!r:.200} are no counts of reports.") from error

    def as_json(self) -> dict[str, Any]:
        """Returns the counts as JSON."""
        return {**{name: getattr(self, name) for name in _NUMBERS}, "refused": dict(self.refused)}

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
