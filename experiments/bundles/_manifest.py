"""The manifest of a bundle: types of every stage, and hash and size of every file."""

import dataclasses
import hashlib
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from tff_mf.errors import InputValueError

from ..output import strict_json
from ..run_folder.names import MECHANISM, PLANNED, PLANNED_TEXT, RUN_JSON, VOCABULARY
from ..run_folder.names import SETTINGS_TOML as SETTINGS
from . import _entries

MANIFEST = "manifest.json"
# A detached signature of the manifest: the one file that the manifest does not name.
SIGNATURE = f"{MANIFEST}.sig"
POLICY = "participation.json"
DEVICE_POLICY = "device-policy.json"
INITIAL = "server/initial.safetensors"
TOKENIZE = "device/tokenize"
LITE = "device/work.tflite"
RUNNER = "runner.py"
_SERVER = ("initialize", "prepare", "zero", "accumulate", "merge", "report", "update", "replay")
STAGES = {**{name: f"server/{name}" for name in _SERVER}, "work": "device/work"}
FORMS = (
    *(f"map_reduce/{name}" for name in ("prepare", "work", "zero", "accumulate", "merge", "report", "update")),
    *("distribute_aggregate/server_prepare", "distribute_aggregate/server_to_client_broadcast"),
    *("distribute_aggregate/client_work", "distribute_aggregate/client_to_server_aggregation"),
    "distribute_aggregate/server_result",
)
# Every file of every bundle, but for the one of TensorFlow Lite, which some have.
FILES = (
    *(RUN_JSON, MECHANISM, SETTINGS, PLANNED, PLANNED_TEXT, POLICY, DEVICE_POLICY, VOCABULARY, INITIAL, RUNNER),
    *(f"forms/{name}.pb" for name in FORMS),
    *(
        f"{folder}/{name}"
        for folder in (*STAGES.values(), TOKENIZE)
        for name in (*("saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index"),)
    ),
)

_VERSION = 2
_SIGNATURE = ("inputs", "outputs")
_VERSION_NAME = re.compile(r"[A-Za-z0-9.+!_-]{1,64}")
_DTYPE = re.compile(r"[a-z]+[0-9]*")
_HASH = re.compile(r"[0-9a-f]{64}")
MOST_MANIFEST_BYTES = 2**24
# The largest file, by its ending: nothing larger is read, whatever a manifest says.
_MOST_IN_FILE = {".safetensors": 2**32, ".json": 2**25, ".md": 2**25, ".toml": 2**25}
_MOST_IN_GRAPH = 2**28


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
        files: `sha256` and `bytes` of every other file, by its path in the bundle.
    """

    process: str
    stages: Mapping[str, Mapping[str, Any]]
    forms: Mapping[str, str]
    lite: Mapping[str, Any]
    local_data: Mapping[str, int | None]
    test_only: bool
    versions: Mapping[str, str]
    files: Mapping[str, Mapping[str, Any]]


def file_entries(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns `sha256` and `bytes` of every file of a bundle that was just written, by its path in it."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        found[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    return {name: entry for name, entry in found.items() if name not in (MANIFEST, SIGNATURE)}


def write_manifest(folder: pathlib.Path, manifest: Manifest) -> str:
    """Writes the manifest, and returns its digest, which stands for the whole bundle.

    Raises:
        InputValueError: If it is none that would be read again, such as one of a model that is too large.
    """
    _check(manifest)
    content = {"version": _VERSION, **dataclasses.asdict(manifest)}
    digest = _digest(content)
    (folder / MANIFEST).write_text(_text({**content, "digest": digest}), encoding="utf-8")
    return digest


def read_manifest(folder: pathlib.Path) -> tuple[Manifest, str]:
    """Returns the manifest of a bundle and its digest.

    Raises:
        InputValueError: If there is none, or it was changed.
    """
    manifest, digest, _ = manifest_file(folder)
    return manifest, digest


def manifest_file(folder: pathlib.Path) -> tuple[Manifest, str, bytes]:
    """Returns the manifest of a bundle, its digest, and the content of its file.

    Raises:
        InputValueError: If there is none, or it was changed.
    """
    raw = _entries.read(folder, MANIFEST, MOST_MANIFEST_BYTES)
    return *parse(raw), raw


def parse(raw: bytes) -> tuple[Manifest, str]:
    """Returns the manifest that the content of a file is, and its digest.

    Raises:
        InputValueError: If it is none, or was changed.
    """
    try:
        text = raw.decode()
        content = strict_json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        _check_version(content.get("version"))
        if text != _text(content):
            raise ValueError("it is not written as tff-mf export writes it")
        digest = content.pop("digest", None)
        if digest != _digest(content):
            raise InputValueError(f"{MANIFEST} was changed: its digest is not that of what it says")
        del content["version"]
        _require("keys", content.keys() == {field.name for field in dataclasses.fields(Manifest)})
        manifest = Manifest(**content)
        _check(manifest)
    except InputValueError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputValueError(f"{MANIFEST} is damaged: {error}") from error
    return manifest, digest


def _check_version(version: object) -> None:
    if type(version) is int and 0 < version < _VERSION:
        raise InputValueError(
            f"{MANIFEST} is of version {version} of the format, and this release reads version {_VERSION}: export the "
            "bundle anew, with `tff-mf export`"
        )
    if version != _VERSION or type(version) is not int:
        raise InputValueError(f"{MANIFEST} is of another version of this package: this one reads version {_VERSION}")


def _check(manifest: Manifest) -> None:
    """Raises an input error unless every field is of its form, and every path is one that export writes."""
    _texts("forms", manifest.forms)
    _require("forms", set(manifest.forms) == set(FORMS))
    _texts("versions", manifest.versions)
    # They are shown in the report: room for a version, and for no sentence.
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
    _check_files(manifest)


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
            raise InputValueError(f"{MANIFEST}: files.{name} has more than {most} bytes, which is more than is read")


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
