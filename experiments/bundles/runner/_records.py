"""The records of a deployment: the journal of its rounds, its states on disk, and what they allow next."""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._bundle import Stages
from ._files import (
    SUFFIX,
    RefusedError,
    Tensors,
    read_regular,
    remove_partial,
    sealed,
    sync,
    unsealed,
    write_lasting,
)

_KEYS, _ROUND = "__noise__keys", "__noise__round"
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# Fields of each kind of entry.
_EVENTS: dict[str, dict[str, Any]] = {
    "opened": {"run": str, "bundle": str, "state": str},
    "begun": {"round": int, "attempt": int, "devices": list, "until": float | None},
    "released": {"round": int, "state": str, "attempt": int, "counts": dict},
    "ended": {"rounds": int},
}


class Journal:
    """Events, one line of JSON each, written to disk before the next step; a last line that was cut off is dropped.

    Each line holds the SHA-256 of all lines before it, so that a line that was changed, removed or inserted is noticed.

    Args:
        path: The journal's file; made by the first `add`.

    Attributes:
        entries: The events, in order.
        head: SHA-256 of all lines; an empty text before the first.

    Raises:
        RefusedError: If the file was changed.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        content = read_regular(path) if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        self.entries: list[dict[str, Any]] = []
        self.head = ""
        try:
            for line in whole.splitlines(keepends=True):
                entry = json.loads(line)
                if entry.pop("after") != self.head or not _is_event(entry):
                    raise ValueError("a line does not follow from those before it")
                self._append(entry, line)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RefusedError(f"journal={str(path)!r} was changed ({error}): put it back as it was.") from error

    def add(self, kind: str, **about: Any) -> None:
        """Adds an event, and returns once it would survive a power cut."""
        entry = {"kind": kind, **about}
        line = json.dumps({**entry, "after": self.head}).encode() + b"\n"
        with open(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        sync(self._path.parent)
        self._append(entry, line)

    def last(self, kind: str) -> dict[str, Any] | None:
        """Returns the last event of a kind."""
        return next((entry for entry in reversed(self.entries) if entry["kind"] == kind), None)

    def _append(self, entry: dict[str, Any], line: bytes) -> None:
        self.entries.append(entry)
        self.head = hashlib.sha256(self.head.encode() + line).hexdigest()


def _is_event(entry: Mapping[str, Any]) -> bool:
    fields = _EVENTS[entry["kind"]]
    whole = entry.keys() == {"kind", *fields} and all(isinstance(entry[name], kind) for name, kind in fields.items())
    return whole and all(isinstance(device, str) for device in entry.get("devices", ()))


class StateStore:
    """The states of a deployment: one secret file per round, of which only the newest is kept.

    If the bundle has a stage that draws the rows of noise again, the keys are stored in place of the rows.

    Formal guarantee: `save` returns when the state would survive a power cut, and never replaces the state of a round:
    of two processes that step one state, the second fails. A file of which one bit was changed is refused.

    Args:
        folder: Folder of the states; made if it does not exist.
        stages: The bundle's stages.
    """

    def __init__(self, folder: pathlib.Path, stages: Stages) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        remove_partial(folder)
        self._folder, self._stages = folder, stages
        replay = stages.described.get("replay")
        self._drawn = frozenset(replay["outputs"] if replay else ())

    def rounds(self) -> list[int]:
        """Returns the rounds whose states are stored, in order; 0 is the state before the first round."""
        found = (path.name.removesuffix(SUFFIX) for path in self._folder.glob(f"[0-9]*{SUFFIX}"))
        return sorted(int(name) for name in found if name.isdecimal())

    def save(self, state: Tensors, round_number: int, about: Mapping[str, Any]) -> str:
        """Saves the state after a round, with metadata that is stored as JSON; returns the file's SHA-256.

        Raises:
            FileExistsError: If a state of that round exists.
        """
        arrays = {name: np.asarray(value) for name, value in state.items() if name not in self._drawn}
        texts = {name: _text(value[()]) for name, value in arrays.items() if value.dtype.kind in "OSU"}
        tensors = {name: value for name, value in arrays.items() if name not in texts}
        if self._drawn:
            past = int(state[_one(state, _ROUND)])
            tensors["keys"] = np.asarray(state[_one(state, _KEYS)])[:past]
        content, digest = sealed(tensors, {"texts": json.dumps(texts), "about": json.dumps(about)})
        write_lasting(self._path(round_number), content, replaces=False)
        for old in self.rounds()[:-1]:
            self._path(old).unlink()
        return digest

    def read(self, round_number: int) -> tuple[dict[str, Any], dict[str, Any], str]:
        """Returns a state as it is stored, its metadata, and the file's SHA-256.

        Raises:
            RefusedError: If the file is missing or was changed.
        """
        tensors, metadata, digest = unsealed(self._path(round_number))
        return {**tensors, **json.loads(metadata["texts"])}, json.loads(metadata["about"]), digest

    def load(self, round_number: int) -> dict[str, Any]:
        """Returns a state, with its rows of noise drawn again if they are not stored; raises as `read` does."""
        state, _, _ = self.read(round_number)
        return {**state, **self._stages.replay(state.pop("keys"))} if self._drawn else state

    def remove_all(self) -> None:
        """Deletes every state, the newest last."""
        for number in self.rounds():
            self._path(number).unlink()

    def _path(self, round_number: int) -> pathlib.Path:
        return self._folder / f"{round_number:06d}{SUFFIX}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


def _one(state: Tensors, ending: str) -> str:
    (name,) = (each for each in state if each.endswith(ending))
    return name


def check_times(where: str, states: Sequence[int], journal: Journal, models: Sequence[int]) -> None:
    """Raises unless the files of a deployment can be of one time.

    Formal guarantee: if it returns, no round after the newest state's was released, by the journal and the models
    that are there.

    Args:
        where: The deployment, for the message.
        states: Rounds whose states are stored, in order.
        journal: The journal.
        models: Rounds whose models are stored.

    Raises:
        RefusedError: If there is no state, or the state or the journal is older than the other files.
    """
    if not states:
        raise RefusedError(f"{where} has lost its state: it ends here. What was released keeps its guarantee.")
    begun, released = (journal.last(kind) for kind in ("begun", "released"))
    last = released["round"] if released else 0
    newest = max([last, *models])
    if states[-1] < newest:
        raise RefusedError(
            f"{where} has the state of round {states[-1]}, and round {newest} was released: continuing would release "
            "rounds twice. Put the newest state back, or end the deployment here."
        )
    if states[-1] > (begun["round"] if begun else 0) or states[-1] > last + 1 or max(models, default=0) > last:
        raise RefusedError(f"{where} has a journal that is older than its state or models: put the newest back.")


def check_devices(
    devices: Sequence[str], number: int, settings: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
) -> None:
    """Raises unless all devices may take part in a round.

    Formal guarantee: if it returns, the rounds of each device, this one included, satisfy the participation schema of
    `settings`. Every round that a device was chosen for counts, whether its report arrived or not.

    Args:
        devices: The devices.
        number: The round.
        settings: `run.json` of the bundle.
        entries: The journal's entries.

    Raises:
        RefusedError: If a device takes part sooner or more often than the schema allows, is named twice, or its name is
            not one of a device.
    """
    if len(set(devices)) != len(devices):
        raise RefusedError(f"devices of round {number}: one is named twice.")
    least, most = settings["min_sep"], settings["max_participations"]
    fixed = settings["participation"] == "FixedEpoch"
    past: dict[str, list[int]] = {}
    for entry in entries:
        for device in entry.get("devices", ()):
            past.setdefault(device, []).append(entry["round"])
    for device in devices:
        rounds = sorted(set(past.get(device, ())) - {number})
        if not _DEVICE.fullmatch(device):
            raise RefusedError(f"device={device!r:.80} must be 1 to 200 letters, digits, dots, _ and -.")
        apart = number - rounds[-1] if rounds else least
        place = not fixed or not rounds or (apart % least == 0 and number - rounds[0] <= (most - 1) * least)
        if apart < least or len(rounds) >= most or not place:
            raise RefusedError(
                f"device={device!r} took part in rounds {rounds}: round {number} is sooner or more often than "
                f"min_sep={least} and max_participations={most} allow. Choose another."
            )
