"""The participation policy of devices: how far apart, how often, and in which rounds a device may take part."""

import dataclasses
import json
import pathlib
from typing import Any

import tff_mf
from tff_mf import validation
from tff_mf.errors import InputError, InputValueError

from .names import POLICY

_MINUTES = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipationPolicy:
    """The participation policy of devices. A device obeys both the separation in rounds and the timer.

    The timer spares devices requests that they would decline, and still works if a device is told a wrong round number.
    It does not suffice: if rounds take longer than `round_minutes`, the timer runs out too soon. Therefore the device
    and the server check the round numbers too.

    Attributes:
        min_sep: b: smallest difference of the numbers of two rounds in which a device takes part.
        max_participations: k: largest number of rounds in which it takes part.
        round_minutes: Planned duration of the longest round.
        timer_hours: Hours that the device waits after it was chosen, whether or not its report arrived.
        fixed_epochs: Whether all of its rounds are among j, j + b, …, j + (k − 1)b, where j is its first round.

    Example:
        >>> policy = ParticipationPolicy.of(tff_mf.MinSep(min_sep=8, max_participations=2), round_minutes=30.0)
        >>> policy.timer_hours
        4.0
        >>> policy.allows([0], round_number=8, hours_since=4.0), policy.allows([0], round_number=7, hours_since=9.0)
        (True, False)

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range, or the timer shorter than `min_sep` rounds.
    """

    min_sep: int
    max_participations: int
    round_minutes: float
    timer_hours: float
    fixed_epochs: bool = False

    def __post_init__(self) -> None:
        for name in ("min_sep", "max_participations"):
            validation.whole(name, getattr(self, name))
        validation.instance("fixed_epochs", self.fixed_epochs, bool, "pass True or False")
        for name in ("round_minutes", "timer_hours"):
            validation.positive(name, getattr(self, name))
        needed = validation.real("min_sep", self.min_sep) * self.round_minutes / _MINUTES
        if self.timer_hours < needed:
            raise InputValueError(
                f"timer_hours={self.timer_hours} is shorter than min_sep={self.min_sep} rounds of round_minutes="
                f"{self.round_minutes}: at least {needed} hours."
            )

    @classmethod
    def of(cls, participation: tff_mf.Participation, *, round_minutes: float) -> "ParticipationPolicy":
        """Returns the policy that enforces a schema, with a timer of `min_sep` rounds."""
        minutes = validation.positive("round_minutes", round_minutes)
        return cls(
            min_sep=participation.min_sep,
            max_participations=participation.max_participations,
            round_minutes=minutes,
            timer_hours=validation.real("min_sep", participation.min_sep) * minutes / _MINUTES,
            fixed_epochs=isinstance(participation, tff_mf.FixedEpoch),
        )

    @property
    def schema(self) -> tff_mf.Participation:
        """The schema that a device enforces by counting rounds."""
        kind = tff_mf.FixedEpoch if self.fixed_epochs else tff_mf.MinSep
        return kind(min_sep=self.min_sep, max_participations=self.max_participations)

    def allows(self, past: list[int], *, round_number: int, hours_since: float) -> bool:
        """Returns whether a device may take part in a round.

        Args:
            past: Rounds for which it was chosen, in order.
            round_number: The round.
            hours_since: Hours since it was chosen last.
        """
        # A server never goes back to an earlier round.
        later = not past or (round_number > max(past) and hours_since >= self.timer_hours)
        return later and self.schema.allows([*past, round_number])

    def weaker_than(self, participation: tff_mf.Participation) -> str:
        """Returns how the policy allows more than a schema, or an empty text.

        Formal guarantee: if the text is empty, the rounds of every device that obeys the policy are a pattern of the
        schema.
        """
        if self.max_participations > participation.max_participations:
            accounted = participation.max_participations
            return f"max_participations={self.max_participations} is more than the {accounted} accounted for"
        if self.min_sep < participation.min_sep:
            return f"min_sep={self.min_sep} is less than the {participation.min_sep} accounted for"
        if isinstance(participation, tff_mf.FixedEpoch) and self.max_participations > 1:
            if not self.fixed_epochs:
                return "fixed_epochs=False allows any position in an epoch, but the accounting is for fixed epochs"
            # The extreme pattern: any other that the policy allows has the same positions, and spans no more rounds.
            furthest = {0, self.min_sep, (self.max_participations - 1) * self.min_sep}
            if not participation.allows(furthest):
                return f"min_sep={self.min_sep} allows positions that {participation!r} does not account for"
        return ""


def write_policy(folder: pathlib.Path, policy: ParticipationPolicy) -> None:
    """Writes the policy of a bundle."""
    text = json.dumps(dataclasses.asdict(policy), indent=1) + "\n"
    (folder / POLICY).write_text(text, encoding="utf-8")


def read_policy(folder: pathlib.Path) -> ParticipationPolicy:
    """Returns the policy of a bundle.

    Raises:
        InputValueError: If it is missing or malformed.
    """
    try:
        given: Any = json.loads((folder / POLICY).read_text(encoding="utf-8"))
        return ParticipationPolicy(**given)
    except (OSError, ValueError, TypeError, RecursionError, InputError) as error:
        raise InputValueError(f"{POLICY} is not a participation policy: {error}") from error
