#!/usr/bin/env python3
"""Runs the server of a deployment from the files of its bundle, with Python 3.11 and TensorFlow alone.

    python bundle/runner.py start deployment                          state of round 0, in a new folder
    python bundle/runner.py prepare deployment --devices chosen.txt   round 1 begins: deployment/sent.safetensors
    ...                                                               devices train; each file: deployment/updates/
    python bundle/runner.py accumulate deployment                     as often as you like: checks, clips, adds, deletes
    python bundle/runner.py update deployment                         deployment/models/round-000001.safetensors
    python bundle/runner.py resume deployment                         after a crash: puts right what it left
    python bundle/runner.py stop deployment                           deletes all that is secret; no round follows

Each command prints one line of JSON. Exit status: 0 done, 2 refused with one line on stderr, 1 anything else.

A device is sent `sent.safetensors`. It answers with a safetensors file of the tensors that `device/work` returns, and
with the metadata of `sent.safetensors` copied. Whoever receives it authenticates the device, writes the file under a
name that begins with a dot, and renames it to `updates/DEVICE.safetensors`.

A report is late by the time when its file was written here: do not keep the time that a device gave it.

What is refused is counted by its reason ("damaged", "shape", "duplicate", "late" and so on), and ends no command.
Updates longer than the clip norm are scaled, and those that are not finite count as zero, in the bundle's graphs; both
are counted too. The counts depend on what devices sent and have no noise: they are for the operator's eyes.

Formal guarantee: the state of a round is on disk before its model is written, and each state is stepped once, by one
process; a round whose model was written is never run again, however often a process is killed. A state that is older
than the journal or the models beside it is refused; of a folder that was put back as a whole nothing here can know. A
device counts once a round, and is refused if it was chosen sooner or more often than `run.json` accounts for.

`state/`, `updates/`, `taken/`, `sum.safetensors` and files named `.….partial`, which a process that is killed leaves
and the next one deletes, are secret, for their owner alone (modes 0700 and 0600). The journal finds a line that was
changed or left out; of one that somebody wrote anew as a whole nothing here can know.
"""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # A file beside this one must not stand in for a module: nothing of the bundle was checked yet.
    del sys.path[0]

import argparse
import contextlib
import fcntl
import hashlib
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# Why a report is refused. None of them is a text of a device.
REASONS = (
    *("no regular file", "too large", "damaged", "empty", "missing leaf", "extra leaf", "dtype", "shape"),
    *("not chosen", "duplicate", "another round", "late"),
)
# Names of the scalars in a sum that count the updates in it which the graphs scaled, or took for zero.
SCALED, ZEROED = "__clipped", "__zeroed"

_JOURNAL = "journal.jsonl"
_DTYPES = {f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_DTYPES |= {"BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64"}
_NAMES = {name: key for key, name in _DTYPES.items()}
_SUFFIX, _PARTIAL = ".safetensors", ".partial"
INITIAL = "server/initial.safetensors"
SIGNATURE = "serving_default"
_WEIGHTS = "state__global_model_weights__"
_KEYS, _ROUND = "__noise__keys", "__noise__round"
# What a line of a journal has beside its kind.
_EVENTS: dict[str, dict[str, Any]] = {
    "opened": {"run": str, "bundle": str, "state": str},
    "begun": {"round": int, "attempt": int, "devices": list, "until": float | None},
    "released": {"round": int, "state": str, "attempt": int, "counts": dict},
    "ended": {"rounds": int},
}
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_HEADER_BYTES = 4096
_MOST_BYTES, _MOST_MANIFEST_BYTES = 2**40, 2**24
MANIFEST_VERSION = 2
# Files of a bundle that its manifest does not name.
_UNNAMED = frozenset({"manifest.json", "manifest.json.sig"})

Tensors = Mapping[str, Any]
Types = Mapping[str, Mapping[str, Any]]


class RefusedError(ValueError):
    """Something that was passed is wrong; the message names it and the remedy."""


class RefusedUpdateError(RefusedError):
    """An update that does not count; the message is one of `REASONS`."""


# Safetensors files: 8 bytes of length, a JSON object of names, types and places, and the data.


def encoded(tensors: Mapping[str, np.ndarray], about: Mapping[str, str]) -> bytes:
    """Returns tensors and texts as a safetensors file; the same ones always as the same bytes."""
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    header: dict[str, Any] = {"__metadata__": dict(sorted(about.items()))}
    # Wide types first: each tensor is aligned then.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    end = 0
    for name in order:
        array, start = arrays[name], end
        end += array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype.name], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(arrays[name].tobytes() for name in order)])


def decoded(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the tensors and texts of a safetensors file.

    Raises:
        RefusedError: If it is none: every byte belongs to the header or to one tensor.
    """
    try:
        begin = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:begin].decode(), object_pairs_hook=_once)
        about = header.pop("__metadata__", {})
        if begin > len(content) or not all(isinstance(each, str) for each in about.values()):
            raise ValueError("its header is cut off, or has other metadata than texts")
        found, end = {}, 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (start, stop) = np.dtype(_DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
            whole = all(type(each) is int and each >= 0 for each in (*shape, start, stop))
            if not whole or start != end or stop - start != math.prod(shape) * dtype.itemsize:
                raise ValueError("a tensor is not where its header says")
            count, end = math.prod(shape), stop
            found[name] = np.frombuffer(content, dtype, count, begin + start).reshape(shape)
        if begin + end != len(content):
            raise ValueError("it is longer or shorter than its tensors")
        return found, about
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise RefusedError(f"it is no intact safetensors file: {error}") from error


def _sealed(tensors: Mapping[str, np.ndarray], about: Mapping[str, str]) -> tuple[bytes, str]:
    """Returns a safetensors file that names its own SHA-256, and that."""
    digest = hashlib.sha256(encoded(tensors, about)).hexdigest()
    return encoded(tensors, {**about, "sha256": digest}), digest


def _unsealed(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, str], str]:
    """Returns tensors, texts and SHA-256 of a sealed file; raises RefusedError if another bit is in it."""
    try:
        tensors, about = decoded(read_regular(path))
    except RefusedError as error:
        raise RefusedError(
            f"file={str(path)!r} is missing or damaged ({error}): put its newest version back."
        ) from error
    digest = about.pop("sha256", "")
    if hashlib.sha256(encoded(tensors, about)).hexdigest() != digest:
        raise RefusedError(f"file={str(path)!r} was changed: put its newest version back.")
    return tensors, about, digest


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


def read_regular(path: pathlib.Path, most_bytes: int = _MOST_BYTES) -> bytes:
    """Returns the bytes of a regular file of at most a size; anything else is not opened, or not read.

    Raises:
        RefusedUpdateError: If it is a link, a folder, a pipe or a device, or larger.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise RefusedUpdateError("no regular file")
        # It may be another one by now: opening a pipe waits for somebody who writes to it, without O_NONBLOCK.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise RefusedUpdateError("no regular file")
            if about.st_size > most_bytes:
                raise RefusedUpdateError("too large")
            return file.read(about.st_size)
    except OSError as error:
        raise RefusedUpdateError("no regular file") from error


def write_lasting(path: pathlib.Path, content: bytes, *, mode: int = 0o600, replaces: bool = True) -> None:
    """Writes a file, whole or not at all, and returns when it would survive a power cut.

    Raises:
        FileExistsError: If there is one and it may not be replaced.
    """
    aside = path.with_name(f".{secrets.token_hex(8)}{_PARTIAL}")
    try:
        with open(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link never takes the place of a file that is there.
        (aside.replace if replaces else lambda target: os.link(aside, target))(path)
    finally:
        aside.unlink(missing_ok=True)
    _sync(path.parent)


def _remove_partial(folder: pathlib.Path) -> None:
    """Deletes what a process that was killed left of files that it was writing: it may be secret."""
    for path in folder.glob(f".*{_PARTIAL}"):
        path.unlink(missing_ok=True)


def _remove(path: pathlib.Path) -> None:
    """Deletes a folder with all that is in it, or a file; nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Updates of devices.


def checked(update: Any, types: Types) -> dict[str, np.ndarray]:
    """Returns an update that has exactly these names, types and shapes.

    Raises:
        RefusedUpdateError: If it has not; nothing is converted or broadcast.
    """
    if not isinstance(update, Mapping) or not update:
        raise RefusedUpdateError("empty")
    if update.keys() != types.keys():
        raise RefusedUpdateError("missing leaf" if types.keys() - update.keys() else "extra leaf")
    found = {}
    for name, spec in types.items():
        value = update[name].numpy() if hasattr(update[name], "numpy") else update[name]
        value = np.asarray(value) if isinstance(value, np.generic) else value
        if type(value) is not np.ndarray or value.dtype != np.dtype(spec["dtype"]):
            raise RefusedUpdateError("dtype")
        if list(value.shape) != spec["shape"]:
            raise RefusedUpdateError("shape")
        found[name] = value
    return found


def read_update(path: pathlib.Path, types: Types) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the update in a device's file, and its metadata; of more bytes than an update has, none is read.

    Raises:
        RefusedUpdateError: If it is no such file.
    """
    size = sum(np.dtype(spec["dtype"]).itemsize * math.prod(spec["shape"]) for spec in types.values())
    header = _HEADER_BYTES + 256 * len(types) + 2 * sum(map(len, types))
    try:
        tensors, about = decoded(read_regular(path, 8 + header + size))
    except RefusedUpdateError:
        raise
    except RefusedError as error:
        raise RefusedUpdateError("damaged") from error
    return checked(tensors, types), about


# The stages of a bundle.


class Stages:
    """The stages of a bundle, each loaded when it is first called.

    Every stage takes and returns tensors by their full names, such as `state__…`. A model with variables keeps them
    between the start and the end of a call of `work`: one call at a time.

    Formal guarantee: `update` is one release of the mechanism. Its result must be on disk before anything of it is
    shown, and no state may be given to it twice with both results shown.

    Args:
        folder: The bundle.

    Raises:
        RefusedError: If it has no manifest.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        try:
            raw = read_regular(folder / "manifest.json", _MOST_MANIFEST_BYTES)
            self.manifest = json.loads(raw.decode(), object_pairs_hook=_once)
            self.described = self.manifest["stages"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RefusedError(f"bundle={str(folder)!r} has no intact manifest.json: {error}") from error
        self._loaded: dict[str, Any] = {}

    @property
    def update_types(self) -> Types:
        """Type of each tensor of a device's update."""
        return self.described["work"]["outputs"]

    def initialize(self) -> dict[str, Any]:
        """Returns the server's state before the first round."""
        return self._run("initialize", decoded(read_regular(self.folder / INITIAL))[0])

    def prepare(self, state: Tensors) -> dict[str, Any]:
        """Returns what the devices of a round are sent: all that they may see of the state."""
        return self._run("prepare", state)

    def work(self, examples: Tensors, sent: Tensors) -> dict[str, Any]:
        """Returns a device's clipped update; examples count in their order."""
        return self._run("work", {**examples, **sent})

    def zero(self) -> dict[str, Any]:
        """Returns a sum of no updates."""
        return self._run("zero", {})

    def accumulate(self, total: Tensors, update: Tensors) -> dict[str, Any]:
        """Returns a sum with one more update in it."""
        return self._run("accumulate", {**total, **update})

    def merge(self, total: Tensors, other: Tensors) -> dict[str, Any]:
        """Returns the sum of two sums."""
        renamed = {f"other{name.removeprefix('sum')}": value for name, value in other.items()}
        return self._run("merge", {**total, **renamed})

    def report(self, total: Tensors) -> dict[str, Any]:
        """Returns what `update` is given of a sum."""
        return self._run("report", total)

    def update(self, state: Tensors, report: Tensors) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the state of the next round, with a model that has this round's noise, and figures of the noise."""
        result = self._run("update", {**state, **report})
        kept = {name: value for name, value in result.items() if name.startswith("state__")}
        return kept, {name: value for name, value in result.items() if name not in kept}

    def replay(self, keys: Any) -> dict[str, Any]:
        """Returns the noise's part of a state, from the keys of the rounds so far."""
        return self._run("replay", {**decoded(read_regular(self.folder / INITIAL))[0], "keys": keys})

    def signature(self, path: str) -> Any:
        """Returns the function of a SavedModel of the bundle."""
        import tensorflow as tf

        # A signature does not keep its model alive.
        if path not in self._loaded:
            self._loaded[path] = tf.saved_model.load(str(self.folder / path))
        return self._loaded[path].signatures[SIGNATURE]

    def _run(self, stage: str, values: Tensors) -> dict[str, Any]:
        import tensorflow as tf

        described = self.described[stage]
        given = {name: tf.convert_to_tensor(values[name]) for name in described["inputs"]}
        found = self.signature(described["path"])(**given)
        return {name: found[name] for name in described["outputs"]}


# What is on disk.


class StateStore:
    """States of a deployment, one secret file a round, of which the newest is kept.

    In place of rows of noise it stores the keys that they are drawn from, where the bundle has a stage that does so.

    Formal guarantee: `save` returns when the state would survive a power cut, and never replaces the state of a round:
    of two processes that step one state, the second fails. A file with another bit than was written is refused.

    Args:
        folder: Folder of the states; made if need be.
        stages: Those of the bundle.
    """

    def __init__(self, folder: pathlib.Path, stages: Stages) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        _remove_partial(folder)
        self._folder, self._stages = folder, stages
        replay = stages.described.get("replay")
        self._drawn = frozenset(replay["outputs"] if replay else ())

    def rounds(self) -> list[int]:
        """Returns the rounds whose states there are, in order; 0 is the state before the first."""
        found = (path.name.removesuffix(_SUFFIX) for path in self._folder.glob(f"[0-9]*{_SUFFIX}"))
        return sorted(int(name) for name in found if name.isdecimal())

    def save(self, state: Tensors, round_number: int, about: Mapping[str, Any]) -> str:
        """Saves the state after a round and what is to be known of it, as JSON; returns the file's SHA-256.

        Raises:
            FileExistsError: If there is a state of that round.
        """
        arrays = {name: np.asarray(value) for name, value in state.items() if name not in self._drawn}
        texts = {name: _text(value[()]) for name, value in arrays.items() if value.dtype.kind in "OSU"}
        tensors = {name: value for name, value in arrays.items() if name not in texts}
        if self._drawn:
            past = int(state[_one(state, _ROUND)])
            tensors["keys"] = np.asarray(state[_one(state, _KEYS)])[:past]
        content, digest = _sealed(tensors, {"texts": json.dumps(texts), "about": json.dumps(about)})
        write_lasting(self._path(round_number), content, replaces=False)
        for old in self.rounds()[:-1]:
            self._path(old).unlink()
        return digest

    def read(self, round_number: int) -> tuple[dict[str, Any], dict[str, Any], str]:
        """Returns a state as it is stored, what is to be known of it, and its SHA-256.

        Raises:
            RefusedError: If the file is missing or was changed.
        """
        tensors, metadata, digest = _unsealed(self._path(round_number))
        return {**tensors, **json.loads(metadata["texts"])}, json.loads(metadata["about"]), digest

    def load(self, round_number: int) -> dict[str, Any]:
        """Returns a state, its rows of noise drawn again; raises as `read` does."""
        state, _, _ = self.read(round_number)
        return {**state, **self._stages.replay(state.pop("keys"))} if self._drawn else state

    def remove_all(self) -> None:
        """Deletes every state, the newest last."""
        for number in self.rounds():
            self._path(number).unlink()

    def _path(self, round_number: int) -> pathlib.Path:
        return self._folder / f"{round_number:06d}{_SUFFIX}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


def _one(state: Tensors, ending: str) -> str:
    (name,) = (each for each in state if each.endswith(ending))
    return name


class _Journal:
    """What happened, a line of JSON each, on disk before the next thing happens; a line that was cut off did not.

    Each line names the SHA-256 of all lines before it: one that was changed, left out or put in is found.

    Attributes:
        entries: What each line says.
        head: SHA-256 of all lines; an empty text before the first.
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
        entry = {"kind": kind, **about}
        line = json.dumps({**entry, "after": self.head}).encode() + b"\n"
        with open(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        _sync(self._path.parent)
        self._append(entry, line)

    def last(self, kind: str) -> dict[str, Any] | None:
        return next((entry for entry in reversed(self.entries) if entry["kind"] == kind), None)

    def _append(self, entry: dict[str, Any], line: bytes) -> None:
        self.entries.append(entry)
        self.head = hashlib.sha256(self.head.encode() + line).hexdigest()


def _is_event(entry: Mapping[str, Any]) -> bool:
    fields = _EVENTS[entry["kind"]]
    whole = entry.keys() == {"kind", *fields} and all(isinstance(entry[name], kind) for name, kind in fields.items())
    return whole and all(isinstance(device, str) for device in entry.get("devices", ()))


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Keeps every other process out of a deployment.

    Raises:
        RefusedError: If another process is at work there.
    """
    with open(os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o600), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"deployment={str(folder)!r} is run by another process: a state must be stepped once. Wait for it."
            ) from None
        yield


# A deployment.


class RoundSum:
    """The sum of a round's updates, and what came.

    Args:
        stages: Those of the bundle.
        chosen: The devices of the round.
        earlier: What was added before, if anything: the sum, the devices in it, and reports refused by their reasons.
    """

    def __init__(
        self,
        stages: Stages,
        chosen: Sequence[str],
        earlier: tuple[Tensors, Sequence[str], Mapping[str, int]] | None = None,
    ) -> None:
        self._stages, self._chosen = stages, frozenset(chosen)
        self._earlier = earlier[0] if earlier else None
        self._added: Tensors = stages.zero()
        self.counted: set[str] = set(earlier[1] if earlier else ())
        self.refused = Counter(earlier[2] if earlier else {})

    def take(self, device: Any, read: Any) -> str:
        """Adds the report of a device, or refuses it.

        Args:
            device: Who sent it, as the server knows.
            read: Returns its update, of which names, types and shapes were checked, or raises why it does not count.

        Returns:
            Why it was refused, one of `REASONS`, or an empty text.
        """
        try:
            if not isinstance(device, str) or device not in self._chosen:
                raise RefusedUpdateError("not chosen")
            if device in self.counted:
                raise RefusedUpdateError("duplicate")
            self._added = self._stages.accumulate(self._added, read())
        except RefusedUpdateError as error:
            return self.refuse(str(error))
        self.counted.add(device)
        return ""

    def refuse(self, reason: str) -> str:
        """Counts a report that is not even looked at, and returns the reason, one of `REASONS`."""
        self.refused[reason] += 1
        return reason

    def total(self) -> dict[str, Any]:
        """Returns the sum."""
        return dict(self._added if self._earlier is None else self._stages.merge(self._earlier, self._added))

    def counts(self) -> dict[str, Any]:
        """Returns how many reports came, counted, were scaled, zeroed, or refused by reason: for the operator alone."""
        found, total = (
            {"came": len(self.counted) + sum(self.refused.values()), "counted": len(self.counted)},
            self.total(),
        )
        for name, ending in (("clipped", SCALED), ("zeroed", ZEROED)):
            found[name] = sum(int(value) for each, value in total.items() if each.endswith(ending))
        return {**found, "refused": dict(sorted(self.refused.items()))}


class Deployment:
    """A deployment on disk. Made by `start`, opened by `opened`; one process at a time.

    Formal guarantee: that of this file. What a killed process left half done is finished when it is opened: a round
    whose state is on disk is released, and one whose state is not was shown to nobody and goes on where it was.

    Args:
        folder: The deployment.
        stages: Those of its bundle.

    Raises:
        RefusedError: If it is of another bundle, its files are of different times, or its state is lost.
    """

    def __init__(self, folder: pathlib.Path, stages: Stages) -> None:
        self._folder, self._stages = folder, stages
        self._journal = _Journal(folder / _JOURNAL)
        first = self._journal.entries[0] if self._journal.entries else {}
        if first.get("kind") != "opened":
            raise RefusedError(f"deployment={str(folder)!r} is none: begin one with start.")
        if first["bundle"] != stages.manifest["digest"]:
            raise RefusedError(f"deployment={str(folder)!r} is of another bundle, {first['bundle'][:8]}…: use that.")
        self._run, self._settings = first["run"], json.loads((stages.folder / "run.json").read_text("utf-8"))
        self._states = StateStore(folder / "state", stages)
        for each in (folder, folder / "models"):
            _remove_partial(each)
        self._finish()

    @property
    def released(self) -> int:
        """The last round that was released, 0 if none was."""
        entry = self._journal.last("released")
        return entry["round"] if entry else 0

    @property
    def open_round(self) -> dict[str, Any] | None:
        """The journal's entry of the round that was begun and not released."""
        entry = self._journal.last("begun")
        return entry if entry and entry["round"] > self.released and not self.ended else None

    @property
    def ended(self) -> bool:
        """Whether no round follows."""
        return self._journal.last("ended") is not None

    def prepare(self, devices: Sequence[str], *, minutes: float | None = None, again: bool = False) -> dict[str, Any]:
        """Begins the next round.

        Args:
            devices: Who was chosen. They have taken part from now on, whatever becomes of the round.
            minutes: Reports that are written later than that are late.
            again: Gives up a round that was begun, and all that was reported in it.

        Raises:
            RefusedError: If there is no such round, it was begun, or a device may not take part.
        """
        number = self.released + 1
        if self.ended:
            raise RefusedError(f"round={number}: no round follows, the deployment was stopped.")
        if number > self._settings["rounds"]:
            raise RefusedError(f"round={number}: no round follows, of {self._settings['rounds']}. Stop the deployment.")
        if self.open_round and not again:
            raise RefusedError(
                f"round={number} was begun: go on with accumulate and update. --again throws its reports away."
            )
        if not devices:
            raise RefusedError(f"devices of round {number}: there are none. Name those that were chosen, one a line.")
        self._check_devices(devices, number)
        attempt = 1 + sum((each["kind"], each.get("round")) == ("begun", number) for each in self._journal.entries)
        until = None if minutes is None else time.time() + 60 * minutes
        self._journal.add("begun", round=number, attempt=attempt, devices=list(devices), until=until)
        self._clear()
        self._send()
        return self.status()

    def accumulate(self) -> dict[str, Any]:
        """Adds the updates that are there, and deletes them; returns the counts of the round so far."""
        begun = self._begun()
        total, done = self._sum(begun)
        # What is in this folder when a process is killed is taken first by the next one, or was counted.
        batch = self._folder / "taken" / f"{begun['round']}-{begun['attempt']}-{done + 1}"
        for other in (self._folder / "taken").iterdir():
            if other != batch:
                _remove(other)
        batch.mkdir(mode=0o700, exist_ok=True)
        for path in sorted((self._folder / "updates").iterdir()):
            if not path.name.startswith(".") and not os.path.lexists(batch / path.name):
                path.rename(batch / path.name)
        for path in sorted(batch.iterdir()):
            total.take(path.name.removesuffix(_SUFFIX), lambda path=path: self._read(path, begun))
        about = {
            "counted": sorted(total.counted),
            "refused": total.refused,
            "counts": total.counts(),
            "batch": done + 1,
        }
        about |= {"run": self._run, "round": begun["round"], "attempt": begun["attempt"]}
        arrays = {name: np.asarray(value) for name, value in total.total().items()}
        write_lasting(self._folder / "sum.safetensors", _sealed(arrays, {"about": json.dumps(about)})[0])
        _remove(batch)
        return self.status()

    def update(self) -> dict[str, Any]:
        """Steps the state: momentum, noise, model. What is in the sum counts, and nothing that comes later."""
        begun = self._begun()
        total, _ = self._sum(begun)
        state, _ = self._stages.update(self._state(), self._stages.report(total.total()))
        about = {"run": self._run, "round": begun["round"], "attempt": begun["attempt"], "counts": total.counts()}
        # A journal that has not all of those who were chosen is not gone on with.
        self._states.save(state, begun["round"], {**about, "journal": self._journal.head})
        self._finish()
        return self.status()

    def stop(self) -> dict[str, Any]:
        """Ends the deployment, and deletes all that is secret."""
        if not self.ended:
            self._journal.add("ended", rounds=self.released)
        self._finish()
        return self.status()

    def status(self) -> dict[str, Any]:
        """Returns where the deployment is, as JSON."""
        begun, last = self.open_round, self._journal.last("released")
        found = {"rounds": self._settings["rounds"], "released": self.released, "ended": self.ended}
        if last:
            found |= {"model": f"models/round-{last['round']:06d}{_SUFFIX}", "counts": last["counts"]}
        if begun:
            counts = self._sum(begun)[0].counts()
            found |= {"round": begun["round"], "attempt": begun["attempt"], "chosen": len(begun["devices"])}
            found |= {"until": begun["until"], "counts": counts}
        return found

    def _begun(self) -> dict[str, Any]:
        if self.open_round is None:
            raise RefusedError(f"deployment={str(self._folder)!r} has no round that was begun: prepare one.")
        return self.open_round

    def _check_devices(self, devices: Sequence[str], number: int) -> None:
        """Raises unless devices may take part in a round, by all that were begun."""
        if len(set(devices)) != len(devices):
            raise RefusedError(f"devices of round {number}: one is there twice.")
        least, most = self._settings["min_sep"], self._settings["max_participations"]
        fixed = self._settings["participation"] == "FixedEpoch"
        past: dict[str, list[int]] = {}
        for entry in self._journal.entries:
            for device in entry.get("devices", ()):
                past.setdefault(device, []).append(entry["round"])
        for device in devices:
            rounds = sorted(set(past.get(device, ())) - {number})
            if not _DEVICE.fullmatch(device):
                raise RefusedError(f"device={device!r:.80} must be 1 to 200 letters, digits, dots, _ and -.")
            apart = number - rounds[-1] if rounds else least
            if apart < least or len(rounds) >= most or (fixed and rounds and apart % least):
                raise RefusedError(
                    f"device={device!r} took part in rounds {rounds}: round {number} is sooner or more often than "
                    f"min_sep={least} and max_participations={most} allow. Choose another."
                )

    def _read(self, path: pathlib.Path, begun: Mapping[str, Any]) -> dict[str, np.ndarray]:
        if not path.name.endswith(_SUFFIX):
            raise RefusedUpdateError("not chosen")
        if begun["until"] is not None and path.lstat().st_mtime > begun["until"]:
            raise RefusedUpdateError("late")
        update, about = read_update(path, self._stages.update_types)
        if any(about.get(name) != value for name, value in self._ticket(begun).items()):
            raise RefusedUpdateError("another round")
        return update

    def _ticket(self, begun: Mapping[str, Any]) -> dict[str, str]:
        """Returns what a report names to be of this round: no other round, attempt or deployment has the same."""
        of = hashlib.sha256(f"{self._run} {begun['round']} {begun['attempt']}".encode()).hexdigest()[:32]
        return {"round": str(begun["round"]), "ticket": of}

    def _send(self) -> None:
        begun = self._begun()
        sent = {name: np.asarray(value) for name, value in self._stages.prepare(self._state()).items()}
        write_lasting(self._folder / "sent.safetensors", encoded(sent, self._ticket(begun)))

    def _sum(self, begun: Mapping[str, Any]) -> tuple[RoundSum, int]:
        """Returns what was added in a round so far, and how many batches of files that were."""
        path = self._folder / "sum.safetensors"
        if path.exists():
            tensors, metadata, _ = _unsealed(path)
            about = json.loads(metadata["about"])
            if (self._run, begun["round"], begun["attempt"]) == (about["run"], about["round"], about["attempt"]):
                earlier = tensors, about["counted"], about["refused"]
                return RoundSum(self._stages, begun["devices"], earlier), about["batch"]
        return RoundSum(self._stages, begun["devices"]), 0

    def _state(self) -> dict[str, Any]:
        """Returns the state after the last round, if it is the one that the journal names."""
        _, about, digest = self._states.read(self.released)
        entry = self._journal.last("released") or self._journal.entries[0]
        if about["run"] != self._run or digest != entry["state"]:
            raise RefusedError(
                f"deployment={str(self._folder)!r} has another state of round {self.released} than it released: put "
                "its own newest state back."
            )
        return self._states.load(self.released)

    def _finish(self) -> None:
        """Does what follows from what is on disk."""
        if self.ended:
            self._states.remove_all()
            self._clear()
            _remove(self._folder / "updates")
            return
        for name in ("updates", "taken", "models"):
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)
        self._check_times()
        number = self._states.rounds()[-1]
        if number > self.released:
            _, about, digest = self._states.read(number)
            if (about["run"], about["journal"]) != (self._run, self._journal.head):
                raise RefusedError(
                    f"deployment={str(self._folder)!r} has another journal than when its state was made: put that back."
                )
            self._journal.add("released", round=number, state=digest, attempt=about["attempt"], counts=about["counts"])
        self._clear_stale()
        if self.released and not self._model(number).exists():
            state, _, _ = self._states.read(number)
            model = {name.removeprefix(_WEIGHTS): each for name, each in state.items() if name.startswith(_WEIGHTS)}
            write_lasting(self._model(number), encoded(model, {"round": str(number)}), mode=0o644)
        if self.open_round and not (self._folder / "sent.safetensors").exists():
            self._send()

    def _clear_stale(self) -> None:
        """Deletes what a process that was killed left of a round, or of an attempt, that is over."""
        begun, sent = self.open_round, self._folder / "sent.safetensors"
        if begun is None or ((self._folder / "sum.safetensors").exists() and not self._sum(begun)[1]):
            self._clear()
        elif sent.exists() and decoded(read_regular(sent))[1] != self._ticket(begun):
            sent.unlink()

    def _check_times(self) -> None:
        """Raises if the state, the journal and the models cannot be of one time."""
        rounds, last = self._states.rounds(), self.released
        names = (path.stem.removeprefix("round-") for path in (self._folder / "models").glob(f"round-*{_SUFFIX}"))
        models = [int(name) for name in names if name.isdecimal()]
        where = f"deployment={str(self._folder)!r}"
        if not rounds:
            raise RefusedError(f"{where} has lost its state: it ends here. What was released keeps its guarantee.")
        begun = self._journal.last("begun")
        newest = max([last, *models])
        if rounds[-1] < newest:
            raise RefusedError(
                f"{where} has the state of round {rounds[-1]}, and round {newest} was released: going on would release "
                "rounds twice. Put the newest state back, or end the deployment here."
            )
        if rounds[-1] > (begun["round"] if begun else 0) or rounds[-1] > last + 1 or max(models, default=0) > last:
            raise RefusedError(f"{where} has a journal that is older than its state or models: put the newest back.")

    def _model(self, number: int) -> pathlib.Path:
        return self._folder / "models" / f"round-{number:06d}{_SUFFIX}"

    def _clear(self) -> None:
        """Deletes what is of a round that is over."""
        for name in ("sum.safetensors", "sent.safetensors"):
            (self._folder / name).unlink(missing_ok=True)
        for path in (self._folder / "taken").glob("*"):
            _remove(path)


def check_files(folder: pathlib.Path, digest: str | None = None) -> Stages:
    """Returns the stages of a bundle whose files are those that its manifest names, and no others.

    Args:
        folder: The bundle.
        digest: The bundle's digest, if it is known from elsewhere: compared before any file is read but the manifest.

    Raises:
        RefusedError: If a file is missing, was changed, is not named or is no regular file, or the manifest is of
            another version.
    """
    stages = Stages(folder)
    where, manifest = f"bundle={str(folder)!r}", stages.manifest
    version = manifest.get("version")
    if type(version) is not int or version != MANIFEST_VERSION:
        raise RefusedError(
            f"{where} has manifest.json of version {version!r:.20}, and this runner reads version {MANIFEST_VERSION}: "
            "export the bundle anew, with `tff-mf export`."
        )
    content = {name: value for name, value in manifest.items() if name != "digest"}
    if hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest() != manifest.get("digest"):
        raise RefusedError(f"{where}: manifest.json was changed.")
    if digest not in (None, manifest["digest"]):
        raise RefusedError(f"digest={digest!r:.80} is not that of the bundle, {manifest['digest']}.")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise RefusedError(f"{where}: manifest.json is damaged: each of its files needs sha256 and bytes.")
    _check_names(folder, frozenset(files))
    for name, entry in files.items():
        size = (folder / name).lstat().st_size
        # One that grows meanwhile is not read beyond what the manifest says.
        if size != entry["bytes"] or entry["sha256"] != hashlib.sha256(read_regular(folder / name, size)).hexdigest():
            raise RefusedError(f"{where}: {name} was changed.")
    return stages


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {"sha256", "bytes"}:
        return False
    return isinstance(entry["sha256"], str) and type(entry["bytes"]) is int


def _check_names(folder: pathlib.Path, named: frozenset[str]) -> None:
    """Raises unless a folder has the regular files that are named, and nothing else but the manifest's signature."""
    where = f"bundle={str(folder)!r}"
    folders = {str(above) for name in named for above in pathlib.PurePosixPath(name).parents}
    missing = set(named)
    for path in sorted(_entries(folder)):
        name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
        if stat.S_ISDIR(mode) and name in folders:
            continue
        if name not in named and name not in _UNNAMED:
            raise RefusedError(f"{where}: {name!r:.200} is not named by manifest.json: remove it.")
        if not stat.S_ISREG(mode):
            raise RefusedError(f"{where}: {name} is no regular file.")
        missing.discard(name)
    if missing:
        raise RefusedError(f"{where}: {min(missing)!r:.200} is missing.")


def _entries(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields all that is in a folder; links are not followed."""
    for path in folder.iterdir():
        yield path
        if stat.S_ISDIR(path.lstat().st_mode):
            yield from _entries(path)


def start(
    folder: pathlib.Path, bundle: pathlib.Path, *, digest: str | None = None, test_only: bool = False
) -> dict[str, Any]:
    """Makes a deployment of a bundle.

    Args:
        folder: A new folder, or an empty one.
        bundle: The bundle.
        digest: The bundle's digest, if it is known from elsewhere.
        test_only: Whether it may be one whose noise is repeatable, which protects nobody.

    Raises:
        RefusedError: If the bundle was changed or is TEST ONLY, or the folder holds something.
    """
    stages = check_files(bundle, digest)
    if stages.manifest["test_only"] is not False and not test_only:
        raise RefusedError(
            f"bundle={str(bundle)!r} is TEST ONLY: its noise is repeatable and protects nobody. Export it without "
            "--insecure-seed, or pass --test-only if no device is anybody's."
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    with alone(folder):
        # A process that was killed here has left the state of round 0, and a first line that is not whole.
        known = (".lock", "state", *(() if _begun_journal(folder) else (_JOURNAL,)))
        if any(path.name not in known for path in folder.iterdir()):
            raise RefusedError(f"deployment={str(folder)!r} holds something: resume it, or name another folder.")
        states = StateStore(folder / "state", stages)
        if states.rounds() not in ([], [0]):
            raise RefusedError(f"deployment={str(folder)!r} has states, and has lost its journal: put that back.")
        states.remove_all()
        run = secrets.token_hex(16)
        state = states.save(stages.initialize(), 0, {"run": run, "round": 0})
        _Journal(folder / _JOURNAL).add("opened", run=run, bundle=stages.manifest["digest"], state=state)
        return Deployment(folder, stages).status()


@contextlib.contextmanager
def opened(folder: pathlib.Path, bundle: pathlib.Path) -> Iterator[Deployment]:
    """Yields a deployment that goes on; no other process can have it meanwhile.

    Raises:
        RefusedError: If there is none, or it cannot go on.
    """
    if not _begun_journal(folder):
        raise RefusedError(f"deployment={str(folder)!r} is none: begin one with start.")
    stages = check_files(bundle)
    with alone(folder):
        yield Deployment(folder, stages)


def _begun_journal(folder: pathlib.Path) -> bool:
    """Returns whether a deployment was begun: whether its journal has a line."""
    path = folder / _JOURNAL
    return path.is_file() and b"\n" in read_regular(path)


def _devices(path: pathlib.Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"devices={str(path)!r} cannot be read: {error}.") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("start", "prepare", "accumulate", "update", "stop", "resume", "status"))
    parser.add_argument("deployment", type=pathlib.Path, help="the deployment's folder")
    parser.add_argument("--devices", type=pathlib.Path, help="prepare: file with a chosen device in each line")
    parser.add_argument("--minutes", type=float, help="prepare: how long reports are taken")
    parser.add_argument("--again", action="store_true", help="prepare: give up the round that was begun")
    parser.add_argument("--digest", help="start: the bundle's digest, as export printed it")
    parser.add_argument("--test-only", action="store_true", help="start: take a bundle whose noise protects nobody")
    given = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    bundle = pathlib.Path(__file__).resolve().parent
    try:
        if given.command == "start":
            found = start(given.deployment, bundle, digest=given.digest, test_only=given.test_only)
        else:
            with opened(given.deployment, bundle) as deployment:
                if given.command == "prepare":
                    if given.devices is None:
                        raise RefusedError("--devices is missing: name the file of the devices that were chosen.")
                    if given.minutes is not None and not 0 < given.minutes < math.inf:
                        raise RefusedError(f"--minutes={given.minutes} must be more than 0.")
                    found = deployment.prepare(_devices(given.devices), minutes=given.minutes, again=given.again)
                else:
                    found = getattr(deployment, "status" if given.command == "resume" else given.command)()
    except (RefusedError, OSError) as error:
        print(f"runner: {error}", file=sys.stderr)
        return 2 if isinstance(error, RefusedError) else 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
