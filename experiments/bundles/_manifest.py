"""The manifest of a bundle: types of every stage, and hash of every file."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from tff_mf.errors import InputValueError

MANIFEST = "manifest.json"
PLANNED = "planned.json"
PLANNED_TEXT = "planned.md"
POLICY = "participation.json"
VOCABULARY = "vocabulary.json"
TOKENIZE = "device/tokenize"

_VERSION = 1
_CHUNK_BYTES = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a bundle says of itself.

    Attributes:
        process: Type of one round, as TFF writes it.
        stages: For each stage its `path`, the `dtype` and `shape` of its `inputs` and `outputs`, and `graph_bytes`.
        forms: Type of each part of TFF's forms.
        lite: `path` of the device's work for TensorFlow Lite, or the `reason` why there is none.
        local_data: What a device's work does with examples: `batch_size`, `client_epochs` and `max_examples`.
        test_only: Whether the noise is repeatable, so that there is no privacy.
        versions: Of Python and of packages.
        files: SHA-256 of every other file, by its path in the bundle.
    """

    process: str
    stages: Mapping[str, Mapping[str, Any]]
    forms: Mapping[str, str]
    lite: Mapping[str, Any]
    local_data: Mapping[str, int | None]
    test_only: bool
    versions: Mapping[str, str]
    files: Mapping[str, str]


def file_hashes(folder: pathlib.Path) -> dict[str, str]:
    """Returns the SHA-256 of every file of a bundle but its manifest, by its path in it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    found = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: _hash(path) for name, path in found.items() if name != MANIFEST}


def write_manifest(folder: pathlib.Path, manifest: Manifest) -> str:
    """Writes the manifest, and returns its digest, which stands for the whole bundle."""
    content = {"version": _VERSION, **dataclasses.asdict(manifest)}
    digest = _digest(content)
    text = json.dumps({**content, "digest": digest}, indent=1, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    return digest


def read_manifest(folder: pathlib.Path) -> tuple[Manifest, str]:
    """Returns the manifest of a bundle and its digest.

    Raises:
        InputValueError: If there is none, or it was changed.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        digest = content.pop("digest")
        if content["version"] != _VERSION:
            raise InputValueError(f"bundle={str(folder)!r} is of another version of this package: {MANIFEST}.")
        if digest != _digest(content):
            raise InputValueError(f"{MANIFEST} was changed: its digest is not that of what it says")
        return Manifest(**{name: value for name, value in content.items() if name != "version"}), digest
    except FileNotFoundError as error:
        raise InputValueError(f"bundle={str(folder)!r} has no {MANIFEST}: it is no bundle of tff-mf export.") from error
    except InputValueError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputValueError(f"{MANIFEST} is damaged: {error}") from error


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _hash(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
