"""The participation policy of devices, by rounds and a timer, and as a federated-compute client enforces it."""

import dataclasses
import json
import math
import pathlib
import re
from typing import Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

POLICY = "participation.json"
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
        >>> ParticipationPolicy.of(tff_mf.MinSep(min_sep=8, max_participations=2), round_minutes=30.0).timer_hours
        4.0
    """

    min_sep: int
    max_participations: int
    round_minutes: float
    timer_hours: float
    fixed_epochs: bool

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


def write_policy(folder: pathlib.Path, policy: ParticipationPolicy) -> None:
    """Writes the policy of a bundle."""
    text = json.dumps(dataclasses.asdict(policy), indent=1) + "\n"
    (folder / POLICY).write_text(text, encoding="utf-8")


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

    @classmethod
    def of(cls, policy: ParticipationPolicy, *, rounds: int, task_name: str) -> "DevicePolicy":
        """Returns the policy of clients that enforces a participation policy in n rounds, as far as they can."""
        min_sep = of_devices_alone(policy, rounds).min_sep
        return cls(
            task_name=task_name,
            minimum_separation=min_sep - 1,
            trust_seconds=_seconds(min_sep * policy.round_minutes * _MINUTE_SECONDS),
            timer_seconds=_seconds(policy.timer_hours * _HOUR_SECONDS),
        )

    def specification(self, round_number: int = FIRST_INDEX) -> dict[str, Any]:
        """Returns the `PopulationEligibilitySpec` of a round, as JSON of that message with its own field names."""
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


def of_devices_alone(policy: ParticipationPolicy, rounds: int) -> tff_mf.MinSep:
    """Returns the schema that clients enforce without the server: the run's length bounds their participations.

    Formal guarantee: of n rounds at least b' = max(b, ⌈n / k⌉) apart, there are at most ⌈n / b'⌉ ≤ k.
    """
    min_sep = max(policy.min_sep, -(-rounds // policy.max_participations))
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
