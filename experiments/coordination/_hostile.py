"""Hostile devices: they send malformed reports of every kind, or updates in the wrong direction."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..bundles import runner
from ._devices import Fleet, Report

_HUGE, _LARGE_FILE_BYTES, _HOURS_LATE = 1e30, 10 * 2**30, 60.0

Update = dict[str, np.ndarray]


def _first(update: Update, change: Callable[[np.ndarray], Any]) -> Update:
    name = next(iter(update))
    return {**update, name: change(update[name])}


def _without_first(update: Update) -> Update:
    return dict(list(update.items())[1:])


def _each(update: Update, change: Callable[[np.ndarray], Any]) -> Update:
    return {name: change(value) for name, value in update.items()}


def _not_a_number(value: np.ndarray) -> np.ndarray:
    return np.full_like(value, np.nan if value.dtype.kind == "f" else np.iinfo(value.dtype).min)


def _infinite(value: np.ndarray) -> np.ndarray:
    return np.full_like(value, np.inf if value.dtype.kind == "f" else np.iinfo(value.dtype).max)


def _huge(value: np.ndarray) -> np.ndarray:
    return np.sign(value) * value.dtype.type(_HUGE if value.dtype.kind == "f" else np.iinfo(value.dtype).max)


# Integers, of a grid, have the smallest and the largest of their type in place of numbers that are not finite.
_CHANGED: Mapping[str, Callable[[Update], Update]] = {
    "scalar": lambda update: _each(update, lambda value: value.dtype.type(3.0)),
    "wrong shape": lambda update: _first(update, lambda value: value.reshape(-1)),
    "wrong dtype": lambda update: _each(update, lambda value: value.astype(np.float64)),
    "missing leaf": _without_first,
    "extra leaf": lambda update: {**update, "update__more": np.zeros(3, np.float32)},
    "nan": lambda update: _first(update, _not_a_number),
    "infinite": lambda update: _each(update, _infinite),
    "huge": lambda update: _each(update, _huge),
    "empty": lambda update: {},
    "opposite": lambda update: _each(update, np.negative),
}
_FILES = ("large file", "pipe", "folder", "truncated file")
_TIMES = ("replay", "twice", "late", "in the name of another")
# A poisoning device sends an update that an honest one could have sent: only the clip norm limits its effect.
POISONING = ("opposite",)
# A chosen device that never reports: the run that others are compared with.
SILENT = "silent"
MALFORMED = (*(kind for kind in _CHANGED if kind not in POISONING), *_FILES, *_TIMES)


class HostileFleet(Fleet):
    """A fleet in which some devices are hostile, each in one way.

    Args:
        record: See `Fleet`.
        hostile: Behavior of each hostile device, by its name: one of `MALFORMED` or `POISONING`, or `SILENT`.
        files: Folder for the files that they send; made if it does not exist.
        more: Other arguments of `Fleet`.
    """

    def __init__(self, record: pathlib.Path, *, hostile: Mapping[str, str], files: pathlib.Path, **more: Any) -> None:
        super().__init__(record, **more)
        files.mkdir(exist_ok=True)
        self._hostile, self._files = hostile, files
        self._seen: dict[str, Report] = {}

    def _sent(self, report: Report) -> Iterable[Report]:
        return self._hostile_reports(report) if report.device in self._hostile else [report]

    def _hostile_reports(self, report: Report) -> Iterator[Report]:
        assert isinstance(report.update, Mapping)
        kind, update = self._hostile[report.device], {name: np.asarray(v) for name, v in report.update.items()}
        if kind in _CHANGED:
            yield dataclasses.replace(report, update=_CHANGED[kind](update))
        elif kind in _FILES:
            yield dataclasses.replace(report, update=self._file(kind, report.device, update))
        elif kind == SILENT:
            return
        elif kind == "replay":
            # In its first round it has no earlier report to send, and is honest.
            yield self._seen.setdefault(report.device, report)
        elif kind == "twice":
            yield from (report, report, report)
        elif kind == "late":
            yield dataclasses.replace(report, minutes=_HOURS_LATE * 60)
        else:
            yield dataclasses.replace(report, device=f"not {report.device}")

    def _file(self, kind: str, device: str, update: Update) -> pathlib.Path:
        path = self._files / f"{kind} of {device}"
        if kind == "large file":
            with path.open("wb") as file:
                file.truncate(_LARGE_FILE_BYTES)
        elif kind == "pipe" and not path.exists():
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir(exist_ok=True)
        elif kind == "truncated file":
            path.write_bytes(runner.encoded(update, {})[:-1])
        return path
