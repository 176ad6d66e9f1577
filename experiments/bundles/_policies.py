"""The participation policy of devices, by rounds and a timer, and as a federated-compute client enforces it."""

import dataclasses
import json
import math
import pathlib
import re
from typing import Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputError, InputTypeError, InputValueError

from ._manifest import POLICY

FIRST_INDEX = 1

# Clients of earlier versions look for the index of a contribution in a place where they did not write it.
_MIN_SEP_VERSION = 3
_TIMER_VERSION = 1

TASK_NAME = "[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
# The longest google.protobuf.Duration: 10,000 years.
_LONGEST_SECONDS = 315_576_000_000
_MINUTES, _MINUTE_SECONDS, _HOUR_SECONDS = 60, 60, 3600


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
    """Returns the policy of a bundle."""
    try:
        given: Any = json.loads((folder / POLICY).read_text(encoding="utf-8"))
        return ParticipationPolicy(**given)
    except (OSError, ValueError, TypeError, RecursionError, InputError) as error:
        raise InputValueError(f"{POLICY} is not a participation policy: {error}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePolicy:
    """The policy of a federated-compute client, which bounds separations and not the number of participations.

    Formal guarantee: if every requirement on the server in `device-policy.json` is met, the rounds whose sums contain
    contributions of one device form a pattern of `of_devices_alone`. The number of participations is bounded by the
    length of the run: of n rounds, at most ⌈n / b⌉ are b or more apart.

    Attributes:
        task_name: Name of the task, the same in all rounds of a run: clients keep their history by task names.
        minimum_separation: Rounds that must lie *between* two contributions: b − 1 for a difference of b.
        trust_seconds: Seconds that a client's history must reach back; a client that lost its history waits as long.
        timer_seconds: Seconds, by the device's clock, that must pass after a contribution.

    Example:
        >>> policy = ParticipationPolicy.of(tff_mf.MinSep(min_sep=8, max_participations=2), round_minutes=30.0)
        >>> DevicePolicy.of(policy, rounds=16, task_name="words").minimum_separation
        7
        >>> # Three contributions 8 rounds apart fit into 20 rounds, and two are allowed: clients wait longer.
        >>> DevicePolicy.of(policy, rounds=20, task_name="words").minimum_separation
        9
    """

    task_name: str
    minimum_separation: int
    trust_seconds: int
    timer_seconds: int

    def __post_init__(self) -> None:
        check_task_name(self.task_name)
        validation.whole("minimum_separation", self.minimum_separation, at_least=0)
        for name in ("trust_seconds", "timer_seconds"):
            validation.whole(name, getattr(self, name))
        for name in ("minimum_separation", "trust_seconds", "timer_seconds"):
            limit = validation.MAX_WHOLE if name == "minimum_separation" else _LONGEST_SECONDS
            if getattr(self, name) > limit:
                raise InputValueError(
                    f"{name}={getattr(self, name)} is more than {limit}, the most that a client can store."
                )

    @classmethod
    def of(cls, policy: ParticipationPolicy, *, rounds: int, task_name: str) -> "DevicePolicy":
        """Returns the policy of clients that enforces a participation policy in a run, as far as clients can.

        Args:
            policy: The participation policy.
            rounds: Number of rounds n of the run.
            task_name: Name of the task.
        """
        min_sep = separation_for(policy, rounds)
        return cls(
            task_name=task_name,
            minimum_separation=min_sep - 1,
            trust_seconds=_seconds(min_sep * policy.round_minutes * _MINUTE_SECONDS),
            timer_seconds=_seconds(policy.timer_hours * _HOUR_SECONDS),
        )

    def weaker_than(self, policy: ParticipationPolicy, *, rounds: int) -> str:
        """Returns how this allows more than the participation policy, or an empty text."""
        needed = DevicePolicy.of(policy, rounds=rounds, task_name=self.task_name)
        for name in ("minimum_separation", "trust_seconds", "timer_seconds"):
            mine, least = getattr(self, name), getattr(needed, name)
            if mine < least:
                return f"{name}={mine} is less than the {least} that the policy needs in {rounds} rounds"
        return ""

    def specification(self, round_number: int = FIRST_INDEX) -> dict[str, Any]:
        """Returns the `PopulationEligibilitySpec` of a round, as JSON of that message with its own field names.

        Args:
            round_number: The round, counted from 1.
        """
        index = validation.whole("round_number", round_number)
        min_sep = {
            "current_index": index,
            "minimum_separation": self.minimum_separation,
            "min_trustworthiness_period": f"{self.trust_seconds}s",
        }
        policies = [
            # Clients store policies by name: of two with one name, the first is never checked.
            {"name": f"{self.task_name}/min_sep", "min_version": _MIN_SEP_VERSION, "min_sep_policy": min_sep},
            {
                "name": f"{self.task_name}/timer",
                "min_version": _TIMER_VERSION,
                "swor_policy": {"min_period": f"{self.timer_seconds}s"},
            },
        ]
        task = {
            "task_name": self.task_name,
            "task_assignment_mode": "TASK_ASSIGNMENT_MODE_SINGLE",
            "eligibility_policy_indices": list(range(len(policies))),
        }
        return {"task_info": [task], "eligibility_policies": policies}


def separation_for(policy: ParticipationPolicy, rounds: int) -> int:
    """Returns the difference of rounds that enforces a policy's `min_sep` and, by the run's length, its participations.

    Formal guarantee: of n rounds at least b' = max(b, ⌈n / k⌉) apart, there are at most ⌈n / b'⌉ ≤ k.
    """
    rounds = validation.whole("rounds", rounds)
    return max(policy.min_sep, -(-rounds // policy.max_participations))


def of_devices_alone(policy: ParticipationPolicy, rounds: int) -> tff_mf.MinSep:
    """Returns the schema that clients enforce without the server."""
    min_sep = separation_for(policy, rounds)
    return tff_mf.MinSep(min_sep=min_sep, max_participations=-(-rounds // min_sep))


def check_task_name(name: object) -> str:
    """Returns the name of a task."""
    if not isinstance(name, str):
        raise InputTypeError(f"task_name={name!r} must be a text.")
    if not re.fullmatch(TASK_NAME, name):
        raise InputValueError(
            f"task_name={name!r} must begin with a letter or digit, and consist of at most 128 letters, digits "
            "and ._/-."
        )
    return name


def _seconds(value: float) -> int:
    if value > _LONGEST_SECONDS:
        raise InputValueError(
            f"round_minutes is too long: a client would wait {value:g} s, and can wait at most {_LONGEST_SECONDS} s."
        )
    return math.ceil(value)
