"""The policy of a bundle in the form that a federated-compute client enforces."""

import dataclasses
import math
import re
from typing import Any

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputTypeError, InputValueError

from ._policy import ParticipationPolicy

FIRST_INDEX = 1

# Clients of earlier versions look for the index of a contribution where they did not write it, and find none.
_MIN_SEP_VERSION = 3
_TIMER_VERSION = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
# The longest google.protobuf.Duration: 10,000 years.
_LONGEST_SECONDS = 315_576_000_000
_MINUTE_SECONDS, _HOUR_SECONDS = 60, 3600


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePolicy:
    """What a federated-compute client is given to keep to. It has no bound on participations, only separations.

    Formal guarantee: if every requirement on the server in `device-policy.json` is met, the rounds in whose sums
    contributions of one device are form a pattern of `of_devices_alone`. The number of participations is bounded by the
    length of the run: of n rounds, at most ⌈n / b⌉ are b or more apart.

    Attributes:
        task_name: Name of the task, the same in all rounds of a run: a client's history is one of tasks by their names.
        minimum_separation: Rounds that must lie *between* two contributions: b − 1 for a difference of b.
        trust_seconds: Seconds that a client's history must reach back. After the history was lost the client waits for
            as long.
        timer_seconds: Seconds by the device's clock that must pass after a contribution.

    Example:
        >>> policy = ParticipationPolicy.of(tff_mf.MinSep(min_sep=8, max_participations=2), round_minutes=30.0)
        >>> DevicePolicy.of(policy, rounds=16, task_name="words").minimum_separation
        7
        >>> # Three contributions fit into 20 rounds 8 apart, and two are allowed: a longer separation keeps to two.
        >>> DevicePolicy.of(policy, rounds=20, task_name="words").minimum_separation
        9

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range, or the name holds other characters than letters, digits and ._/-
    """

    task_name: str
    minimum_separation: int
    trust_seconds: int
    timer_seconds: int

    def __post_init__(self) -> None:
        check_task_name(self.task_name)
        _validate.whole("minimum_separation", self.minimum_separation, at_least=0)
        for name in ("trust_seconds", "timer_seconds"):
            _validate.whole(name, getattr(self, name))
        for name in ("minimum_separation", "trust_seconds", "timer_seconds"):
            limit = _validate.MAX_WHOLE if name == "minimum_separation" else _LONGEST_SECONDS
            if getattr(self, name) > limit:
                raise InputValueError(f"{name}={getattr(self, name)} is more than the {limit} that a client can hold.")

    @classmethod
    def of(cls, policy: ParticipationPolicy, *, rounds: int, task_name: str) -> "DevicePolicy":
        """Returns what makes clients keep a policy in a run of so many rounds, as far as clients can.

        Args:
            policy: What a device must keep to.
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
        """Returns in which way clients may do more than the policy makes of them, or an empty text."""
        needed = DevicePolicy.of(policy, rounds=rounds, task_name=self.task_name)
        for name in ("minimum_separation", "trust_seconds", "timer_seconds"):
            mine, least = getattr(self, name), getattr(needed, name)
            if mine < least:
                return f"{name}={mine} is less than the {least} that the policy needs in {rounds} rounds"
        return ""

    def specification(self, round_number: int = FIRST_INDEX) -> dict[str, Any]:
        """Returns the `PopulationEligibilitySpec` of a round, as JSON of that message with its own field names.

        Args:
            round_number: The round whose contributions are asked for, counted from 1.
        """
        index = _validate.whole("round_number", round_number)
        min_sep = {
            "current_index": index,
            "minimum_separation": self.minimum_separation,
            "min_trustworthiness_period": f"{self.trust_seconds}s",
        }
        policies = [
            # A client keeps policies by their names: of two with one name, the first one's tasks are never checked.
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
    """Returns the difference of rounds that keeps a policy's separation, and by the run's length its participations.

    Formal guarantee: of n rounds at least b' = max(b, ⌈n / k⌉) apart, there are at most ⌈n / b'⌉ ≤ k.
    """
    rounds = _validate.whole("rounds", rounds)
    return max(policy.min_sep, -(-rounds // policy.max_participations))


def of_devices_alone(policy: ParticipationPolicy, rounds: int) -> tff_mf.MinSep:
    """Returns the schema that clients keep without a server that counts for them."""
    min_sep = separation_for(policy, rounds)
    return tff_mf.MinSep(min_sep=min_sep, max_participations=-(-rounds // min_sep))


def check_task_name(name: object) -> str:
    """Returns a task's name if it is one.

    Raises:
        InputTypeError: If it is no text.
        InputValueError: If it is empty, too long, or holds other characters than letters, digits and ._/-
    """
    if not isinstance(name, str):
        raise InputTypeError(f"task_name={name!r} must be a text.")
    if not _NAME.fullmatch(name):
        raise InputValueError(
            f"task_name={name!r} must begin with a letter or digit, and hold letters, digits and ._/- alone, "
            "128 of them at most."
        )
    return name


def _seconds(value: float) -> int:
    if value > _LONGEST_SECONDS:
        raise InputValueError(
            f"round_minutes is too long: a client would wait {value:g} s, and can wait {_LONGEST_SECONDS} s at most."
        )
    return math.ceil(value)
