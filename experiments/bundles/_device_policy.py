"""The participation policy in the form that a federated-compute client enforces."""

import dataclasses
import math
import re
from typing import Any

import tff_mf
from tff_mf import validation
from tff_mf.errors import InputTypeError, InputValueError

from ._policy import ParticipationPolicy

FIRST_INDEX = 1

# Clients of earlier versions look for the index of a contribution in a place where they did not write it.
_MIN_SEP_VERSION = 3
_TIMER_VERSION = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
# The longest google.protobuf.Duration: 10,000 years.
_LONGEST_SECONDS = 315_576_000_000
_MINUTE_SECONDS, _HOUR_SECONDS = 60, 3600


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

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range, or the name has other characters than letters, digits and ._/-
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
    """Returns the name of a task.

    Raises:
        InputTypeError: If it is not a text.
        InputValueError: If it is empty, too long, or has other characters than letters, digits and ._/-
    """
    if not isinstance(name, str):
        raise InputTypeError(f"task_name={name!r} must be a text.")
    if not _NAME.fullmatch(name):
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
