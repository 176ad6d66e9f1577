"""Simulated devices: each records when it took part, and obeys its policy."""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_mf import validation
from tff_mf.errors import InputValueError

from ..bundles import ParticipationPolicy

_DAY_HOURS = 24.0

Work = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """How simulated devices behave.

    Attributes:
        dropout: Probability that a chosen device never reports.
        late: Probability that its report arrives after its round is over.
        at_night: Probability that a device is idle and charging in the middle of its night.
        by_day: The same probability at noon.
        seed: Seed of these draws; the devices' data and the noise do not depend on it.
    """

    dropout: float = 0.0
    late: float = 0.0
    at_night: float = 0.9
    by_day: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dropout", "late", "at_night", "by_day"):
            if not 0 <= validation.real(name, getattr(self, name)) <= 1:
                raise InputValueError(f"{name}={getattr(self, name)!r} must lie in [0, 1].")
        validation.whole("seed", self.seed, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A device's message: its update, and the round to which it belongs.

    Attributes:
        device: The device.
        round_number: The round, counted from 1.
        update: Its clipped update, or the file that it sent.
        minutes: Time of arrival, in minutes since the round began.
    """

    device: str
    round_number: int
    update: Mapping[str, Any] | pathlib.Path
    minutes: float = 0.0


class Fleet:
    """Devices with timers, nights, drop-outs and late reports.

    As on a real device, the record is on disk before the device trains, so that no failure of the server erases it. A
    chosen device has taken part, whether or not its report arrives.

    Args:
        record: File of all devices' records; read if it exists.
        examples: Training examples of each device, by its name.
        policy: The policy that every device obeys.
        work: Function from examples and the server's message to a clipped update.
        settings: Behavior of the devices.
        broken: Devices that ignore their policy, as a manipulated device would.
    """

    def __init__(
        self,
        record: pathlib.Path,
        *,
        examples: Mapping[str, Mapping[str, np.ndarray]],
        policy: ParticipationPolicy,
        work: Work,
        settings: DeviceSettings | None = None,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self._record, self._examples, self._policy, self._work = record, examples, policy, work
        self._settings = DeviceSettings() if settings is None else settings
        self._broken = broken
        self._names = sorted(examples)
        self._zones = np.random.default_rng(self._settings.seed).uniform(0, _DAY_HOURS, len(self._names))
        self._past: dict[str, list[tuple[int, float]]] = {}
        self._late: list[Report] = []
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        for entry in map(json.loads, lines):
            self._past.setdefault(entry["device"], []).append((entry["round"], entry["hour"]))

    def volunteers(self, round_number: int, hour: float, chance: np.random.Generator) -> list[str]:
        """Returns the devices that are idle and whose policy lets them take part in a round."""
        settings = self._settings
        noon = 0.5 - 0.5 * np.cos(2 * math.pi * (hour + self._zones) / _DAY_HOURS)
        idle = chance.random(len(self._names)) < settings.at_night + (settings.by_day - settings.at_night) * noon
        return [
            name
            for name, is_idle in zip(self._names, idle, strict=True)
            if is_idle and self._may(name, round_number, hour)
        ]

    def train(
        self,
        chosen: Sequence[str],
        round_number: int,
        hour: float,
        sent: Mapping[str, Any],
        chance: np.random.Generator,
    ) -> Iterable[Report]:
        """Returns the reports that arrive in a round: those of chosen devices, and late ones of earlier rounds."""
        arrived, self._late = self._late, []
        fates = chance.random(len(chosen))
        model = _digest(sent)
        for device in chosen:
            self._remember(device, round_number, hour, model)
        for device, fate in zip(chosen, fates, strict=True):
            if fate < self._settings.dropout:
                continue
            report = Report(device=device, round_number=round_number, update=self._work(self._examples[device], sent))
            is_late = fate < self._settings.dropout + self._settings.late
            (self._late if is_late else arrived).append(report)
        return [sent for report in arrived for sent in self._sent(report)]

    def _sent(self, report: Report) -> Iterable[Report]:
        """Returns the messages that a device sends for its report: the report, unless the device is hostile."""
        return [report]

    def _may(self, device: str, round_number: int, hour: float) -> bool:
        past = self._past.get(device, [])
        since = hour - past[-1][1] if past else math.inf
        rounds = [number for number, _ in past]
        return device in self._broken or self._policy.allows(rounds, round_number=round_number, hours_since=since)

    def _remember(self, device: str, round_number: int, hour: float, model: str) -> None:
        self._past.setdefault(device, []).append((round_number, hour))
        entry = {"device": device, "round": round_number, "hour": hour, "model": model}
        with self._record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _digest(tensors: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()
