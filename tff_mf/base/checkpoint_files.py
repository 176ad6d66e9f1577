"""Reads and writes checkpoint files: safetensors files that are complete and durable once they have their name."""

import hashlib
import json
import logging
import pathlib
import stat
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import files
from .errors import InputValueError
from .tensor_files import LENGTH_BYTES, decoded, header

_LOG = logging.getLogger(__name__)

_KEY, _HASH = "tff_mf_checkpoint", "sha256"
# Placeholder in the header until everything is written, and while the hash is computed.
_NO_HASH = "0" * 64
_VERSION = 3
# Other files beside checkpoints contain no keys.
_SETTINGS = ".json"
_PREFIX, _SUFFIX = "checkpoint_", ".safetensors"


def path_of(folder: pathlib.Path, round_number: int) -> pathlib.Path:
    """Returns the file of the state after a round in a folder of checkpoints."""
    return folder / f"{_PREFIX}{round_number}{_SUFFIX}"


def saved_rounds(folder: pathlib.Path) -> list[int]:
    """Returns the rounds after which a state was saved in a folder and is there, in order."""
    names = (path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in folder.glob(f"{_PREFIX}*"))
    return sorted(int(name) for name in names if name.isdecimal())


def remove_all(folder: pathlib.Path) -> None:
    """Deletes every state in a folder, the newest last, so that a kill in between leaves the newest."""
    files.remove_unfinished(folder)
    for round_number in saved_rounds(folder):
        path_of(folder, round_number).unlink()


def write(
    path: pathlib.Path, tensors: Mapping[str, Any], description: Mapping[str, Any], *, replaces: bool = False
) -> None:
    """Writes a checkpoint that only its owner can read, and returns when it would survive a power failure.

    Args:
        path: The file.
        tensors: Arrays, or objects that NumPy converts to arrays, by name; read one at a time.
        description: Everything else, as JSON.
        replaces: Whether to replace an existing file.

    Raises:
        FileExistsError: If the file exists and is not to be replaced.
    """
    facts = json.dumps({"version": _VERSION, **description})
    text, order = header(tensors, {_HASH: _NO_HASH, _KEY: facts})
    with files.atomic_file(path, mode=0o600, overwrite=replaces) as file:
        digest = hashlib.sha256(text)
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for name in order:
            array = np.ascontiguousarray(tensors[name])
            content = array.data.cast("B") if array.size else b""
            digest.update(content)
            file.write(content)
        # Metadata comes first, in the order of its names.
        file.seek(LENGTH_BYTES + text.index(_NO_HASH.encode()))
        file.write(digest.hexdigest().encode())
    files.sync_folder(path.parent)


def read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the tensors of a checkpoint by name, which cannot be written to, and its description.

    Formal guarantee: a file in which any bit has changed is refused. A changed key of a past round would be replayed as
    different noise, which later rounds would not cancel.

    Raises:
        InputValueError: If the file is not a checkpoint, is damaged, or was written by a release with another version
            of the format.
    """
    try:
        content = path.read_bytes()
        tensors, metadata = decoded(content)
        description = json.loads(metadata[_KEY])
        version = description["version"]
        if version != _VERSION:
            raise InputValueError(
                f"its format version is {version!r:.80}, and this release reads version {_VERSION}: finish the run "
                "with the release of tff-mf that started it"
            )
        if metadata[_HASH] != _digest(content, metadata[_HASH]):
            raise InputValueError("its content does not match its sha256")
        return tensors, description
    except (OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputValueError(
            f"checkpoint {str(path)!r} is damaged or was not written by this release of tff-mf: {error}. A damaged "
            "checkpoint cannot be repaired; what the run has released is not affected."
        ) from error


def _digest(content: bytes, claimed: str) -> str:
    """Returns the hash of a file, without the hash in its header."""
    end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    text = content[LENGTH_BYTES:end].replace(claimed.encode(), _NO_HASH.encode(), 1)
    digest = hashlib.sha256(text)
    digest.update(memoryview(content)[end:])
    return digest.hexdigest()


def make_private(folder: pathlib.Path) -> None:
    """Creates a folder of checkpoints that only its owner can read, or restricts an existing one to its owner.

    Checkpoints that killed processes left unfinished are deleted: they have keys too. Logs a warning if others could
    read checkpoints in it.

    Raises:
        InputValueError: If it cannot be created or restricted.
    """
    try:
        if folder.is_dir() and _open_to_others(folder) and any(map(_open_to_others, _with_keys(folder))):
            _LOG.warning(
                "Others could read the checkpoints in %r, whose keys allow removing the noise from every released "
                "model. They no longer can; against anyone who did, the run has no guarantee.",
                str(folder),
            )
        close(folder)
        files.remove_unfinished(folder)
    except OSError as error:
        raise InputValueError(f"checkpoints={str(folder)!r} cannot be made private: {error}.") from error


def close(folder: pathlib.Path) -> None:
    """Creates a folder that only its owner can read, or restricts an existing one and its files to their owner."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for path in filter(pathlib.Path.is_file, folder.iterdir()):
        path.chmod(0o600)


def _open_to_others(path: pathlib.Path) -> bool:
    """Returns whether anyone but the owner has any permission on a path."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _with_keys(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files in a folder and its subfolders that may contain keys: all but settings."""
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != _SETTINGS]
