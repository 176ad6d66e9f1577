"""How many reports of devices came in a round, and what became of them: exact counts, for the operator alone.

Whether an update is scaled or counts as zero depends on the device's data. No noise is in these counts and no guarantee
covers them: they stay in the ledger and in the operator's report, and no report that is published has them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tff_mf.errors import InputValueError

# Those of the runner that is in every bundle; a ledger has no text of a device in it.
REASONS = (
    *("no regular file", "too large", "damaged", "empty", "missing leaf", "extra leaf", "dtype", "shape"),
    *("not chosen", "duplicate", "another round", "late"),
)
_NUMBERS = ("came", "counted", "clipped", "zeroed")
_LARGEST = 10**12


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportCounts:
    """The reports of one round, or of several.

    Attributes:
        came: Reports that arrived.
        counted: Reports whose updates are in the sum, those that were scaled or zeroed among them.
        clipped: Updates above the clip norm, which the server scaled to it.
        zeroed: Updates that were not finite, and count as zero.
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
            raise InputValueError(f"{self!r} contradicts itself: what came is counted or refused.")

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
        """Updates in the sum that are not zero by force."""
        return self.counted - self.zeroed

    def as_json(self) -> dict[str, Any]:
        """Returns the counts as a ledger has them."""
        return {**{name: getattr(self, name) for name in _NUMBERS}, "refused": dict(sorted(self.refused.items()))}


def read_counts(given: object) -> ReportCounts:
    """Returns counts as a ledger has them.

    Raises:
        InputValueError: If they are none.
    """
    if not isinstance(given, Mapping) or set(given) != {*_NUMBERS, "refused"}:
        raise InputValueError(f"reports={given!r:.80} must have {', '.join((*_NUMBERS, 'refused'))}.")
    return ReportCounts(**given)
