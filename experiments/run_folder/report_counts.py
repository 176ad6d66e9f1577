"""Counts of a round's device reports, by what was done with them: exact counts, for the operator only.

Whether an update is scaled or replaced by zero depends on the device's data. These counts have no noise and no
guarantee covers them: they stay in the ledger and in the operator's report, and published reports leave them out.
"""

from collections.abc import Mapping

from tff_mf.errors import InputValueError

from ..output.typed import CountOrZero, Record

# The same as in the runner of each bundle; no text from a device gets into a ledger.
REASONS = (
    *("no regular file", "too large", "damaged", "empty", "missing leaf", "extra leaf", "dtype", "shape"),
    *("not chosen", "duplicate", "another round", "late"),
)
_NUMBERS = ("came", "counted", "clipped", "zeroed")


class ReportCounts(Record):
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

    came: CountOrZero
    counted: CountOrZero
    clipped: CountOrZero
    zeroed: CountOrZero
    refused: Mapping[str, CountOrZero]

    def __post_init__(self) -> None:
        if not set(self.refused) <= set(REASONS):
            raise InputValueError(f"refused={self.refused!r:.200} must have counts by reason, of {REASONS}.")
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
