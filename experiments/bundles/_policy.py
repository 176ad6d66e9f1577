"""What a device must keep to: how far apart, how often, and in which rounds it may take part."""

import dataclasses
import json
import pathlib
from typing import Any

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputError, InputValueError

from .names import POLICY

_MINUTES = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipationPolicy:
    """What a device must keep to. Whichever of the separations is longer binds.

    The timer keeps devices away that could not take part anyway, and still holds if a device is told a wrong round. It
    is no proof: rounds that take longer than `round_minutes` let a timer run out too soon, so that the round
    counts too, on the device and on the server.

    Attributes:
        min_sep: b: smallest difference of the numbers of two rounds that the device takes part in.
        max_participations: k: largest number of rounds that it takes part in.
        round_minutes: The longest that a round takes, as planned.
        timer_hours: Hours that the device waits after it was chosen, whether its report arrived or not.
        fixed_epochs: Whether all of its rounds are some of j, j + b, …, j + (k − 1)b for its first round j.

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
            _validate.whole(name, getattr(self, name))
        _validate.instance("fixed_epochs", self.fixed_epochs, bool, "pass True or False")
        for name in ("round_minutes", "timer_hours"):
            _validate.positive(name, getattr(self, name))
        needed = _validate.real("min_sep", self.min_sep) * self.round_minutes / _MINUTES
        if self.timer_hours < needed:
            raise InputValueError(
                f"timer_hours={self.timer_hours} is shorter than min_sep={self.min_sep} rounds of round_minutes="
                f"{self.round_minutes}: at least {needed} hours."
            )

    @classmethod
    def of(cls, participation: tff_mf.Participation, *, round_minutes: float) -> "ParticipationPolicy":
        """Returns the policy that keeps a schema, with a timer of its separation."""
        minutes = _validate.positive("round_minutes", round_minutes)
        return cls(
            min_sep=participation.min_sep,
            max_participations=participation.max_participations,
            round_minutes=minutes,
            timer_hours=_validate.real("min_sep", participation.min_sep) * minutes / _MINUTES,
            fixed_epochs=isinstance(participation, tff_mf.FixedEpoch),
        )

    @property
    def schema(self) -> tff_mf.Participation:
        """The schema that a device keeps by counting rounds."""
        kind = tff_mf.FixedEpoch if self.fixed_epochs else tff_mf.MinSep
        return kind(min_sep=self.min_sep, max_participations=self.max_participations)

    def allows(self, past: list[int], *, round_number: int, hours_since: float) -> bool:
        """Returns whether a device may take part in a round.

        Args:
            past: Rounds that it was chosen for, in order.
            round_number: The round.
            hours_since: Hours since it was chosen last.
        """
        # A round before one that is past is none that a server can be in.
        later = not past or (round_number > max(past) and hours_since >= self.timer_hours)
        return later and self.schema.allows([*past, round_number])

    def weaker_than(self, participation: tff_mf.Participation) -> str:
        """Returns in which way the policy allows more than a schema, or an empty text.

        Formal guarantee: if the text is empty, the rounds of every device that keeps the policy are a pattern of the
        schema.
        """
        if self.max_participations > participation.max_participations:
            accounted = participation.max_participations
            return f"max_participations={self.max_participations} is more than the {accounted} accounted for"
        if self.min_sep < participation.min_sep:
            return f"min_sep={self.min_sep} is less than the {participation.min_sep} accounted for"
        if isinstance(participation, tff_mf.FixedEpoch) and self.max_participations > 1:
            if not self.fixed_epochs:
                return "fixed_epochs=False allows rounds in any place of an epoch, and fixed epochs are accounted for"
            # What reaches furthest: whatever else the policy allows is in the same places, and no further apart.
            furthest = {0, self.min_sep, (self.max_participations - 1) * self.min_sep}
            if not participation.allows(furthest):
                return f"min_sep={self.min_sep} leaves the places that {participation!r} accounts for"
        return ""


def write_policy(folder: pathlib.Path, policy: ParticipationPolicy) -> None:
    """Writes the policy of a bundle."""
    text = json.dumps(dataclasses.asdict(policy), indent=1) + "\n"
    (folder / POLICY).write_text(text, encoding="utf-8")


def read_policy(folder: pathlib.Path) -> ParticipationPolicy:
    """Returns the policy of a bundle.

    Raises:
        InputValueError: If there is none, or it is no policy.
    """
    try:
        given: Any = json.loads((folder / POLICY).read_text(encoding="utf-8"))
        return ParticipationPolicy(**given)
    except (OSError, ValueError, TypeError, RecursionError, InputError) as error:
        raise InputValueError(f"{POLICY} is no participation policy: {error}") from error
