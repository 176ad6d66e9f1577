"""The files of a bundle by name, and its manifest: types of every stage, and hash and size of every file."""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tff_mf.base.errors import InputValueError

from ..output import typed
from ..runs.names import MECHANISM, PLANNED, PLANNED_TEXT, RUN_JSON, VOCABULARY
from . import runner
from .runner import INITIAL, MANIFEST, TOKENIZE

POLICY, DEVICE_POLICY = "participation.json", "device-policy.json"
LITE = "device/work.tflite"
RUNNER = "runner.pyz"
_SERVER = ("initialize", "prepare", "zero", "accumulate", "merge", "report", "update", "replay")
STAGES = {**{name: f"server/{name}" for name in _SERVER}, "work": "device/work"}
FORMS = (
    *(f"map_reduce/{name}" for name in ("prepare", "work", "zero", "accumulate", "merge", "report", "update")),
    *("distribute_aggregate/server_prepare", "distribute_aggregate/server_to_client_broadcast"),
    *("distribute_aggregate/client_work", "distribute_aggregate/client_to_server_aggregation"),
    "distribute_aggregate/server_result",
)
_SAVED_MODEL = ("saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index")
# Every file of every bundle, except the model for TensorFlow Lite, which some bundles lack.
FILES = (
    *(RUN_JSON, MECHANISM, PLANNED, PLANNED_TEXT, POLICY, DEVICE_POLICY, VOCABULARY, INITIAL, RUNNER),
    *(f"forms/{name}.pb" for name in FORMS),
    *(f"{folder}/{name}" for folder in (*STAGES.values(), TOKENIZE) for name in _SAVED_MODEL),
)
# Largest size of a file by its ending: larger ones are not read, whatever a manifest says.
_MOST_IN_FILE = {".safetensors": 2**32, ".json": 2**25, ".md": 2**25, ".toml": 2**25}
_MOST_IN_GRAPH = 2**28

_Size = Annotated[int, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=1)]
# They are shown in the report: long enough for a version, and for no sentence.
_Version = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.+!_-]{1,64}\Z")]


class Tensor(typed.Record):
    """Type of a tensor."""

    dtype: Annotated[str, Meta(pattern=r"^[a-z]+[0-9]*\Z")]
    shape: list[_Size | None]


class Stage(typed.Record):
    """A stage: folder of its SavedModel, types of what it takes and returns, and size of its graph."""

    path: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    graph_bytes: _Count


class Lite(typed.Record):
    """File of the device's work for TensorFlow Lite, or the reason why there is none."""

    path: str | None
    reason: str


class LocalData(typed.Record):
    """What a device's work makes of its examples."""

    batch_size: _Count
    client_epochs: _Count
    max_examples: _Count | None


class File(typed.Record):
    """Hash and size of a file."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    bytes: _Size


class GridOfSums(typed.Record):
    """The grid of updates, sums and noise."""

    bits: int
    max_clients: int
    integers: str
    sampler: str


class Manifest(typed.Record, omit_defaults=True):
    """The contents of a bundle.

    Attributes:
        process: Type of one round, as TFF writes it.
        forms: Type of each part of TFF's forms.
        test_only: Whether the noise is repeatable, so that there is no privacy.
        files: Every other file, by its path in the bundle.
        grid: The grid; `None`, and not in the file, for floating point.
    """

    process: str
    stages: dict[str, Stage]
    forms: dict[str, str]
    lite: Lite
    local_data: LocalData
    test_only: bool
    versions: dict[_Version, _Version]
    files: dict[str, File]
    grid: GridOfSums | None = None


def file_entries(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns `sha256` and `bytes` of every file of a bundle that was just written, by its path in the bundle."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST):
        content = path.read_bytes()
        entry = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        found[path.relative_to(folder).as_posix()] = entry
    return found


def write_manifest(folder: pathlib.Path, content: Mapping[str, Any]) -> str:
    """Writes the manifest, and returns its digest, which identifies the whole bundle."""
    text = manifest_text(msgspec.to_builtins(typed.convert(content, Manifest, MANIFEST)))
    _, digest = parse(text)
    (folder / MANIFEST).write_bytes(text)
    return digest


def manifest_text(content: Mapping[str, Any]) -> bytes:
    """Returns the manifest's file, with version and digest, for the contents of a bundle."""
    content = {"version": runner.MANIFEST_VERSION, **content}
    content["digest"] = runner.manifest_digest(content)
    # A text that is none is written too, and refused when it is read.
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode(errors="surrogatepass")


def read_manifest(folder: pathlib.Path) -> tuple[Manifest, str]:
    """Returns the manifest of a bundle and its digest."""
    manifest, digest, _ = manifest_file(folder)
    return manifest, digest


def manifest_file(folder: pathlib.Path) -> tuple[Manifest, str, bytes]:
    """Returns the manifest of a bundle, its digest, and the content of its file."""
    _, raw = runner.read_manifest(folder)
    return *parse(raw), raw


def parse(raw: bytes) -> tuple[Manifest, str]:
    """Returns the manifest in the content of a file, and its digest."""
    try:
        content = runner.parsed(raw)
    except InputValueError as error:
        raise InputValueError(f"{MANIFEST}: {error}.") from error
    digest = content.pop("digest")
    del content["version"]
    manifest = typed.convert(content, Manifest, MANIFEST)
    if raw != manifest_text(msgspec.to_builtins(manifest)):
        raise InputValueError(f"{MANIFEST} is damaged: it is not written as tff-mf export writes it.")
    # It names the stages, forms and files that export writes.
    for field, is_right in (
        ("stages", {name: stage.path for name, stage in manifest.stages.items()} == STAGES),
        ("forms", manifest.forms.keys() == set(FORMS)),
        ("lite.path", manifest.lite.path in (None, LITE)),
    ):
        if not is_right:
            raise InputValueError(f"{MANIFEST} is damaged: {field} is not as tff-mf export writes it.")
    expected = {*FILES, *filter(None, [manifest.lite.path])}
    for name in sorted(manifest.files.keys() ^ expected):
        problem = "has no" if name in expected else "names"
        raise InputValueError(f"{MANIFEST} is damaged: files {problem} {name!r}, unlike what tff-mf export writes.")
    for name, entry in manifest.files.items():
        most = _MOST_IN_FILE.get(pathlib.PurePosixPath(name).suffix, _MOST_IN_GRAPH)
        if entry.bytes > most:
            raise InputValueError(f"{MANIFEST}: files.{name} has more than {most} bytes, the most that is read.")
    return manifest, digest
