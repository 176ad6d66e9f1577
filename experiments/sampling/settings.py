"""Settings of client sampling, checked without TensorFlow."""

import msgspec

from tff_mf import validation
from tff_mf.errors import InputValueError

SAMPLING_KINDS = (
    "min_sep",
    "shuffled_epochs",
    "fixed_epochs",
    "timer",
    "poisson",
    "cyclic_poisson",
    "balls_in_bins",
    "min_sep_poisson",
    "random_allocation",
)

# Kinds whose clients keep one place in all epochs: the rounds of each are a pattern of `tff_mf.FixedEpoch`.
FIXED_EPOCH_KINDS = ("fixed_epochs", "cyclic_poisson", "balls_in_bins")
# Names of the schemas that a run's guarantee can be for.
SCHEMAS = ("min_sep", "fixed_epoch")


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How cohorts are drawn; `docs/experiments.md` says what each kind guarantees.

    Attributes:
        kind: One of `SAMPLING_KINDS`.
        timer_hours: For `timer`: hours that a device waits after taking part; None waits `min_sep` rounds.
        round_minutes: For `timer` with hours: minutes that a round takes on average.
    """

    kind: str = "min_sep"
    timer_hours: float | None = None
    round_minutes: float | None = None

    def __post_init__(self) -> None:
        validation.one_of("sampling", self.kind, SAMPLING_KINDS)
        clock = {"timer_hours": self.timer_hours, "round_minutes": self.round_minutes}
        given = {name: value for name, value in clock.items() if value is not None}
        if given and self.kind != "timer":
            raise InputValueError(f"{' and '.join(given)} go with sampling='timer', not with sampling={self.kind!r}.")
        if len(given) == 1:
            missing = next(name for name in clock if name not in given)
            raise InputValueError(f"{next(iter(given))} needs {missing} too: a timer of hours needs to know rounds.")
        for name, value in given.items():
            validation.positive(name, value)
