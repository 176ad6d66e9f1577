"""The manifest of a bundle: types of every stage, and hash and size of every file."""

import dataclasses
import hashlib
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from tff_mf import strict_json
from tff_mf.errors import InputValueError

from . import _entries
from .names import FILES, FORMS, LITE, MANIFEST, STAGES
from .runner import MANIFEST_VERSION

_SIGNATURE = ("inputs", "outputs")
_GRID = "grid"
_OF_GRID = {"bits": int, "max_clients": int, "integers": str, "sampler": str}
_VERSION_NAME = re.compile(r"[A-Za-z0-9.+!_-]{1,64}")
_DTYPE = re.compile(r"[a-z]+[0-9]*")
_HASH = re.compile(r"[0-9a-f]{64}")
MOST_MANIFEST_BYTES = 2**24
# Largest size of a file by its ending: larger ones are not read, whatever a manifest says.
_MOST_IN_FILE = {".safetensors": 2**32, ".json": 2**25, ".md": 2**25, ".toml": 2**25}
_MOST_IN_GRAPH = 2**28


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a bundle.

    Attributes:
        process: Type of one round, as TFF writes it.
        stages: For each stage its `path`, the `dtype` and `shape` of its `inputs` and `outputs`, and `graph_bytes`.
        forms: Type of each part of TFF's forms.
        lite: `path` of the device's work for TensorFlow Lite, or the `reason` why there is none.
        local_data: `batch_size`, `client_epochs` and `max_examples` of a device's work.
        test_only: Whether the noise is repeatable, so that there is no privacy.
        versions: Versions of Python and of packages.
        files: `sha256` and `bytes` of every other file, by its path in the bundle.
        grid: `bits`, `max_clients`, `integers` and `sampler` of the grid; `None`, and not in the file, for floating
            point.
    """

    process: str
    stages: Mapping[str, Mapping[str, Any]]
    forms: Mapping[str, str]
    lite: Mapping[str, Any]
    local_data: Mapping[str, int | None]
    test_only: bool
    versions: Mapping[str, str]
    files: Mapping[str, Mapping[str, Any]]
    grid: Mapping[str, Any] | None = None


def file_entries(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns `sha256` and `bytes` of every file of a bundle that was just written, by its path in the bundle."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        found[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    return {name: entry for name, entry in found.items() if name != MANIFEST}


def write_manifest(folder: pathlib.Path, manifest: Manifest) -> str:
    """Writes the manifest, and returns its digest, which identifies the whole bundle.

    Raises:
        InputValueError: If it could not be read again, for example because the model is too large.
    """
    _check(manifest)
    left_out = {_GRID} if manifest.grid is None else set()
    values = {name: value for name, value in dataclasses.asdict(manifest).items() if name not in left_out}
    content = {"version": MANIFEST_VERSION, **values}
    digest = _digest(content)
    (folder / MANIFEST).write_text(_text({**content, "digest": digest}), encoding="utf-8")
    return digest


def read_manifest(folder: pathlib.Path) -> tuple[Manifest, str]:
    """Returns the manifest of a bundle and its digest.

    Raises:
        InputValueError: If it is missing or was modified.
    """
    manifest, digest, _ = manifest_file(folder)
    return manifest, digest


def manifest_file(folder: pathlib.Path) -> tuple[Manifest, str, bytes]:
    """Returns the manifest of a bundle, its digest, and the content of its file.

    Raises:
        InputValueError: If it is missing or was modified.
    """
    raw = _entries.read(folder, MANIFEST, MOST_MANIFEST_BYTES)
    return *parse(raw), raw


def parse(raw: bytes) -> tuple[Manifest, str]:
    """Returns the manifest in the content of a file, and its digest.

    Raises:
        InputValueError: If it is not a manifest, or was modified.
    """
    try:
        text = raw.decode()
        content = strict_json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
        _check_version(content)
        if text != _text(content):
            raise ValueError("it is not written as tff-mf export writes it")
        digest = content.pop("digest", None)
        if digest != _digest(content):
            raise InputValueError(f"{MANIFEST} was modified: its digest does not match its content")
        del content["version"]
        named = {field.name for field in dataclasses.fields(Manifest)}
        _require("keys", content.keys() | {_GRID} == named)
        _require(_GRID, content.get(_GRID, {}) is not None)
        manifest = Manifest(**content)
        _check(manifest)
    except InputValueError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputValueError(f"{MANIFEST} is damaged: {error}") from error
    return manifest, digest


def _check_version(content: Mapping[str, Any]) -> None:
    """Raises unless a manifest is of the one format that is read."""
    version = content.get("version")
    if type(version) is not int or version != MANIFEST_VERSION:
        raise InputValueError(
            f"{MANIFEST} has format version {version!r:.20}, and version {MANIFEST_VERSION} is read: export the bundle "
            "again with `tff-mf export`"
        )


def _check(manifest: Manifest) -> None:
    """Raises an input error unless every field is well-formed, and every path is one that export writes."""
    _texts("forms", manifest.forms)
    _require("forms", set(manifest.forms) == set(FORMS))
    _texts("versions", manifest.versions)
    # They are shown in the report: long enough for a version, and for no sentence.
    _require("versions", all(map(_VERSION_NAME.fullmatch, (*manifest.versions, *manifest.versions.values()))))
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
    lite = manifest.lite
    _require("lite", isinstance(lite, dict) and lite.keys() == {"path", "reason"})
    _require("lite.path", lite["path"] in (None, LITE))
    _require("lite.reason", isinstance(lite["reason"], str))
    local = manifest.local_data
    _require("local_data", isinstance(local, dict) and local.keys() == {"batch_size", "client_epochs", "max_examples"})
    for name, value in local.items():
        _require(f"local_data.{name}", _is_whole(value) or (name == "max_examples" and value is None))
    _check_grid(manifest)
    _check_files(manifest)


def _check_grid(manifest: Manifest) -> None:
    if manifest.grid is None:
        return
    _require(_GRID, isinstance(manifest.grid, dict) and manifest.grid.keys() == set(_OF_GRID))
    for name, kind in _OF_GRID.items():
        _require(f"{_GRID}.{name}", type(manifest.grid[name]) is kind)


def _check_files(manifest: Manifest) -> None:
    _require("files", isinstance(manifest.files, dict))
    expected = {*FILES, *filter(None, [manifest.lite["path"]])}
    for name in sorted(manifest.files.keys() ^ expected):
        problem = "has no" if name in expected else "names"
        raise InputValueError(f"{MANIFEST} is damaged: files {problem} {name!r}, unlike what tff-mf export writes")
    for name, entry in manifest.files.items():
        _require(f"files.{name}", isinstance(entry, dict) and entry.keys() == {"sha256", "bytes"})
        is_hash = isinstance(entry["sha256"], str) and _HASH.fullmatch(entry["sha256"])
        _require(f"files.{name}.sha256", bool(is_hash))
        _require(f"files.{name}.bytes", _is_whole(entry["bytes"], at_least=0))
        most = _MOST_IN_FILE.get(pathlib.PurePosixPath(name).suffix, _MOST_IN_GRAPH)
        if entry["bytes"] > most:
            raise InputValueError(f"{MANIFEST}: files.{name} has more than {most} bytes, the most that is read")


def _require(name: str, holds: bool) -> None:
    if not holds:
        raise InputValueError(f"{MANIFEST} is damaged: {name} is not as tff-mf export writes it")


def _texts(name: str, value: object) -> None:
    _require(name, isinstance(value, dict) and all(isinstance(text, str) for text in value.values()))


def _is_whole(value: object, at_least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value < 2**63


def _is_type(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape"}:
        return False
    shape = value["shape"]
    sizes = isinstance(shape, list) and all(size is None or _is_whole(size, at_least=0) for size in shape)
    return isinstance(value["dtype"], str) and bool(_DTYPE.fullmatch(value["dtype"])) and sizes


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
