"""Files from outside, and a bundle: nothing is loaded that is not regular and intact, and no link is followed.

A bundle's SavedModels hold the functions that drive its deployment.
"""

import hashlib
import json
import math
import os
import pathlib
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from ....base import strict_json
from ....base.errors import InputValueError
from ....base.tensor_files import decoded

MANIFEST, MANIFEST_VERSION = "manifest.json", 2
INITIAL = "server/initial.safetensors"
TOKENIZE = "device/tokenize"
SUFFIX = ".safetensors"
# The function of each SavedModel.
SIGNATURE = "serving_default"

_MOST_BYTES, _MOST_MANIFEST_BYTES = 2**40, 2**24
_CHUNK_BYTES, _HEADER_BYTES = 2**20, 4096

Tensors = Mapping[str, Any]
Types = Mapping[str, Mapping[str, Any]]
Files = Mapping[str, Mapping[str, Any]]


class RefusedUpdateError(InputValueError):
    """An update that is not added to the sum; the message is one of `ledger.REASONS`."""


def open_regular(path: pathlib.Path) -> BinaryIO:
    """Returns a regular file, opened for reading; anything else is not opened, or not read."""
    try:
        if stat.S_ISREG(os.lstat(path).st_mode):
            # It may have been replaced since: without O_NONBLOCK, opening a pipe waits for a writer.
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            if stat.S_ISREG(os.fstat(opened).st_mode):
                return open(opened, "rb")
            os.close(opened)
    except OSError as error:
        raise RefusedUpdateError("no regular file") from error
    raise RefusedUpdateError("no regular file")


def read_regular(path: pathlib.Path, most_bytes: int = _MOST_BYTES) -> bytes:
    """Returns the content of a regular file up to a size; raises as `open_regular` does, or if the file is larger."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise RefusedUpdateError("too large")
        return file.read(size)


def remove(path: pathlib.Path) -> None:
    """Deletes a file, or a folder with everything in it; does nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def checked(update: Tensors, types: Types) -> dict[str, np.ndarray]:
    """Returns an update that has exactly these names, types and shapes; nothing is converted or broadcast."""
    if not update:
        raise RefusedUpdateError("empty")
    if update.keys() != types.keys():
        raise RefusedUpdateError("missing leaf" if types.keys() - update.keys() else "extra leaf")
    for name, spec in types.items():
        value = update[name]
        if type(value) is not np.ndarray or value.dtype != np.dtype(spec["dtype"]):
            raise RefusedUpdateError("dtype")
        if list(value.shape) != spec["shape"]:
            raise RefusedUpdateError("shape")
    return {name: update[name] for name in types}


def read_update(path: pathlib.Path, types: Types) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the update in a device's file, and its metadata; a file that is too large for one is not read."""
    size = sum(np.dtype(spec["dtype"]).itemsize * math.prod(spec["shape"]) for spec in types.values())
    header = _HEADER_BYTES + 256 * len(types) + 2 * sum(map(len, types))
    try:
        tensors, about = decoded(read_regular(path, 8 + header + size))
    except RefusedUpdateError:
        raise
    except InputValueError as error:
        raise RefusedUpdateError("damaged") from error
    return checked(tensors, types), about


def read_manifest(folder: pathlib.Path) -> tuple[dict[str, Any], bytes]:
    """Returns the manifest of a bundle, whose version, digest and list of files are checked, and its bytes."""
    try:
        raw = read_regular(folder / MANIFEST, _MOST_MANIFEST_BYTES)
        return parsed(raw), raw
    except InputValueError as error:
        raise InputValueError(f"bundle={str(folder)!r} has no intact {MANIFEST}: {error}.") from error


def parsed(raw: bytes) -> dict[str, Any]:
    """Returns the manifest in the content of a file."""
    try:
        manifest = strict_json.loads(raw.decode())
        version, digest, files, stages = (manifest.get(name) for name in ("version", "digest", "files", "stages"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise InputValueError(f"it is damaged: {error}") from error
    if type(version) is not int or version != MANIFEST_VERSION:
        raise InputValueError(
            f"it has format version {version!r:.20}, and version {MANIFEST_VERSION} is read: export the bundle again "
            "with `tff-mf export`"
        )
    if digest != manifest_digest(manifest):
        raise InputValueError("it was modified, and its digest does not match its content")
    entries = isinstance(files, dict) and all(
        isinstance(each, dict)
        and each.keys() == {"sha256", "bytes"}
        and isinstance(each["sha256"], str)
        and type(each["bytes"]) is int
        for each in files.values()
    )
    if not isinstance(stages, dict) or not entries:
        raise InputValueError("it is damaged: it needs stages, and sha256 and bytes of each file")
    return manifest


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Returns the digest of a manifest, which identifies the whole bundle."""
    content = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_files(folder: pathlib.Path, digest: str | None = None) -> "Stages":
    """Returns the stages of a bundle, once its files are known to be exactly those that its manifest names.

    Args:
        folder: The bundle.
        digest: The bundle's digest, if it is known from elsewhere. It is compared before any file but the
            manifest is read.
    """
    where, (manifest, _) = f"bundle={str(folder)!r}", read_manifest(folder)
    if digest not in (None, manifest["digest"]):
        raise InputValueError(f"digest={digest!r:.80} is not the bundle's digest, {manifest['digest']}.")
    for name, reason in changes(folder, manifest["files"]):
        raise InputValueError(f"{where}: {name!r:.200} {reason}.")
    return Stages(folder, manifest)


def changes(folder: pathlib.Path, listed: Files, to: pathlib.Path | None = None) -> Iterator[tuple[str, str]]:
    """Yields each entry of a folder that differs from a list of files, its manifest aside, and how.

    The kind of an entry is checked before it is opened, links inside the folder are never followed, and no call blocks.

    Formal guarantee: if nothing is yielded, every listed file had the size and the hash of the list when it was read,
    and so has its copy in `to`; and `folder` had no other entry, and no entry that others than its owner may write.

    Args:
        folder: The folder.
        listed: `sha256` and `bytes` of each file, by its path in the folder.
        to: An empty folder of the caller's own, if the files are to be copied while they are read.
    """
    folders = {str(parent) for name in listed for parent in pathlib.PurePosixPath(name).parents}
    missing, waiting = set(listed), [folder]
    yield from _writable("the folder", folder.stat().st_mode)
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
            if name in folders and stat.S_ISDIR(mode):
                yield from _writable(name, mode)
                waiting.append(path)
                continue
            missing.discard(name)
            if name not in listed and name not in folders and name != MANIFEST:
                yield name, "is not in the manifest"
            elif name in folders or not stat.S_ISREG(mode):
                yield name, f"is not a {'folder' if name in folders else 'regular file'}"
            else:
                yield from _writable(name, mode)
                if name in listed and (reason := _change(path, listed[name], to and to / name)):
                    yield name, reason
    for name in sorted(missing):
        yield name, "is missing"


def _change(path: pathlib.Path, expected: Mapping[str, Any], copy: pathlib.Path | None) -> str:
    """Returns how a file differs from its size and hash, or an empty text; what is read is written to `copy`."""
    if copy is not None:
        copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = open_regular(path)
    except InputValueError:
        return "is not a regular file, or cannot be opened"
    digest, left = hashlib.sha256(), expected["bytes"]
    with file, open(os.devnull if copy is None else copy, "wb") as written:
        size = os.fstat(file.fileno()).st_size
        if size != left:
            return f"was modified: it has {size} bytes, and {left} in the manifest"
        # A file that grows meanwhile is not read beyond that size.
        while chunk := file.read(min(_CHUNK_BYTES, left)):
            left -= len(chunk)
            digest.update(chunk)
            written.write(chunk)
    return "" if digest.hexdigest() == expected["sha256"] else "was modified: its SHA-256 differs from the manifest"


def _writable(name: str, mode: int) -> Iterator[tuple[str, str]]:
    """Yields how the mode of an entry lets others than its owner change what runs."""
    shown = f"has mode {stat.S_IMODE(mode):04o}"
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield name, f"{shown}: others may write it. Run `chmod -R go-w` on the bundle"
    if mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(mode):
        yield name, f"{shown}: it runs as its owner. Run `chmod -R a-s` on the bundle"


class Stages:
    """The stages of a bundle, each loaded when it is first called.

    Every stage takes and returns tensors by their full names, such as `state__…`. The model's variables hold a device's
    state during a call of `work`: do not make two calls at a time.

    Formal guarantee: `update` is one release of the mechanism. Its result must be on disk before any part of
    it is published, and of two results for one state at most one may ever be published.
    """

    def __init__(self, folder: pathlib.Path, manifest: Mapping[str, Any]) -> None:
        self.folder, self.manifest, self.described = folder, manifest, manifest["stages"]
        self._loaded: dict[str, Any] = {}

    @property
    def update_types(self) -> Types:
        """Type of each tensor of a device's update."""
        return self.described["work"]["outputs"]

    @property
    def most_devices(self) -> int | None:
        """The most devices that a sum of integers has room for; `None` if sums are floats."""
        grid = self.manifest.get("grid")
        return None if grid is None else int(grid["max_clients"])

    def initialize(self) -> dict[str, Any]:
        """Returns the server's state before the first round."""
        return self._run("initialize", decoded(read_regular(self.folder / INITIAL))[0])

    def prepare(self, state: Tensors) -> dict[str, Any]:
        """Returns what the devices of a round are sent: the part of the state that they may see."""
        return self._run("prepare", state)

    def work(self, examples: Tensors, sent: Tensors) -> dict[str, Any]:
        """Returns a device's clipped update; it depends on the order of the examples."""
        return self._run("work", {**examples, **sent})

    def tokenize(self, sentences: Sequence[str]) -> dict[str, np.ndarray]:
        found = self.signature(TOKENIZE)(sentences=np.asarray(sentences, object))
        return {name: value.numpy() for name, value in found.items()}

    def zero(self) -> dict[str, Any]:
        return self._run("zero", {})

    def accumulate(self, total: Tensors, update: Tensors) -> dict[str, Any]:
        """Returns a sum with one more update in it."""
        return self._run("accumulate", {**total, **update})

    def merge(self, total: Tensors, other: Tensors) -> dict[str, Any]:
        renamed = {f"other{name.removeprefix('sum')}": value for name, value in other.items()}
        return self._run("merge", {**total, **renamed})

    def report(self, total: Tensors) -> dict[str, Any]:
        """Returns the part of a sum that `update` takes."""
        return self._run("report", total)

    def update(self, state: Tensors, report: Tensors) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the state of the next round, with the noised model, and measurements of the noise."""
        result = self._run("update", {**state, **report})
        kept = {name: value for name, value in result.items() if name.startswith("state__")}
        return kept, {name: value for name, value in result.items() if name not in kept}

    def replay(self, keys: Any) -> dict[str, Any]:
        """Returns the rows of noise of a state, drawn again from the keys of the rounds so far."""
        return self._run("replay", {**decoded(read_regular(self.folder / INITIAL))[0], "keys": keys})

    def signature(self, path: str) -> Any:
        """Returns the function of a SavedModel of the bundle."""
        import tensorflow as tf

        # A signature does not keep its SavedModel alive.
        if path not in self._loaded:
            self._loaded[path] = tf.saved_model.load(str(self.folder / path))
        return self._loaded[path].signatures[SIGNATURE]

    def _run(self, stage: str, values: Tensors) -> dict[str, Any]:
        import tensorflow as tf

        described = self.described[stage]
        given = {name: tf.convert_to_tensor(values[name]) for name in described["inputs"]}
        found = self.signature(described["path"])(**given)
        return {name: found[name] for name in described["outputs"]}
