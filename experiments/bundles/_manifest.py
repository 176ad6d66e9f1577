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
LITE = "device/work.tflite"
_SERVER = ("initialize", "prepare", "zero", "accumulate", "merge", "report", "update", "replay")
STAGES = {**{name: f"server/{name}" for name in _SERVER}, "work": "device/work"}

_VERSION = 1
_CHUNK_BYTES = 2**20
_SIGNATURE = ("inputs", "outputs")


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
        manifest = Manifest(**{name: value for name, value in content.items() if name != "version"})
        _check(manifest)
        return manifest, digest
    except FileNotFoundError as error:
        raise InputValueError(f"bundle={str(folder)!r} has no {MANIFEST}: it is no bundle of tff-mf export.") from error
    except InputValueError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputValueError(f"{MANIFEST} is damaged: {error}") from error


def _check(manifest: Manifest) -> None:
    """Raises an input error unless every field is of its form, and every path is one that export writes."""
    _texts("forms", manifest.forms)
    _texts("versions", manifest.versions)
    _texts("files", manifest.files)
    _require("process", isinstance(manifest.process, str))
    _require("test_only", isinstance(manifest.test_only, bool))
    _require("stages", isinstance(manifest.stages, dict) and set(manifest.stages) == set(STAGES))
    for name, stage in manifest.stages.items():
        _require(f"stages.{name}", isinstance(stage, dict) and stage.keys() == {"path", "graph_bytes", *_SIGNATURE})
        _require(f"stages.{name}.path", stage["path"] == STAGES[name])
        _require(f"stages.{name}.graph_bytes", _is_whole(stage["graph_bytes"]))
        for kind in _SIGNATURE:
            types = stage[kind]
            _require(f"stages.{name}.{kind}", isinstance(types, dict) and all(map(_is_type, types.values())))
    for name in manifest.forms:
        _require(f"forms.{name}", f"forms/{name}.pb" in manifest.files)
    lite = manifest.lite
    _require("lite", isinstance(lite, dict) and lite.keys() == {"path", "reason"})
    _require("lite.path", lite["path"] is None or (lite["path"] == LITE and LITE in manifest.files))
    local = manifest.local_data
    _require("local_data", isinstance(local, dict) and local.keys() == {"batch_size", "client_epochs", "max_examples"})
    for name, value in local.items():
        _require(f"local_data.{name}", _is_whole(value) or (name == "max_examples" and value is None))


def _require(name: str, holds: bool) -> None:
    if not holds:
        raise InputValueError(f"{MANIFEST} is damaged: {name} is not as tff-mf export writes it")


def _texts(name: str, value: object) -> None:
    _require(name, isinstance(value, dict) and all(isinstance(text, str) for text in value.values()))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_type(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape"}:
        return False
    shape = value["shape"]
    sizes = isinstance(shape, list) and all(size is None or (isinstance(size, int) and size >= 0) for size in shape)
    return isinstance(value["dtype"], str) and sizes


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _hash(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
