"""Everything that reads a file, each with valid inputs to start from and a function that reads an input."""

import base64
import contextlib
import dataclasses
import hashlib
import io
import json
import pathlib
import pickle
import random
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import mutations
import numpy as np
import safetensors.numpy
from outcomes import CRASHED, HANGS, Outcome

import tff_mf
from tff_mf import artifacts
from tff_mf.base.errors import InputError
from tff_mf.experiments import central, compare, reports
from tff_mf.experiments.runs import initial_model, ledger
from tff_mf.experiments.runs.settings import PRESETS, Preset, PresetFolder, resolve
from tff_mf.experiments.training import deployment

_HANG_SECONDS = 120.0
_TIME = "2026-01-02T03:04:05+00:00"
_JSON = (type(None), bool, int, float, str, list, dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader of files.

    Attributes:
        name: What it reads.
        made: Makes an input at random.
        read: Reads it; the only errors it may raise are input errors.
    """

    name: str
    made: Callable[[random.Random], Any]
    read: Callable[[Any], Any]


def _bytes_of(valid: list[bytes]) -> Callable[[random.Random], bytes]:
    return lambda generator: mutations.of_bytes(generator.choice(valid), generator)


def _json_of(value: Any) -> Callable[[random.Random], bytes]:
    """Returns what makes a JSON text of a value with changes: of its bytes, or of its structure."""

    def made(generator: random.Random) -> bytes:
        if generator.random() < 0.4:
            return mutations.of_bytes(json.dumps(value).encode(), generator)
        return json.dumps(mutations.of_structure(value, generator, _JSON)).encode()

    return made


def _mechanisms() -> list[tff_mf.Mechanism]:
    schema = tff_mf.MinSep(min_sep=4, max_participations=2)
    generator = np.random.default_rng(0)
    optimized_for = tff_mf.OptimizedFor(rounds=8, participation=schema, workload=tff_mf.Momentum(momentum=0.5))
    return [
        tff_mf.BLT(theta=[0.9, 0.5], omega=[0.2, 0.1], optimized_for=optimized_for),
        tff_mf.ScaledBLT(theta=[0.9], omega=[0.2], scales=[1.0] * 8),
        tff_mf.Banded(values=generator.uniform(0.5, 1, size=(2, 8)), optimized_for=optimized_for),
        tff_mf.BandedToeplitz(column=[1.0, 0.5, 0.25]),
        tff_mf.Dense(matrix=np.tril(generator.uniform(0.1, 0.2, size=(4, 4))) + np.eye(4)),
        tff_mf.BandedPlusLowRank(diagonals=[[1.0] * 4], left=[[0.0]] * 4, right=[[1.0]] * 4),
        tff_mf.Tree(8, variant="full"),
        tff_mf.Identity(),
    ]


def _artifacts() -> list[Reader]:
    valid, parts = [], []
    for mechanism in _mechanisms():
        tensors = {name: np.array(each) for name, each in mechanism.tensors().items()}
        text = artifacts._described(mechanism, tensors)
        valid.append(artifacts.pack(text, tensors))
        parts.append((json.loads(text), tensors))

    def forged(generator: random.Random) -> bytes:
        """As an attacker writes it who knows how the hash is computed."""
        manifest, tensors = generator.choice(parts)
        tensors = dict(tensors)
        if generator.random() < 0.6:
            manifest = mutations.of_structure(manifest, generator, _JSON)
        if tensors and generator.random() < 0.6:
            name = generator.choice(list(tensors))
            tensor = np.array(tensors[name], dtype=np.float64)
            tensor.reshape(-1)[generator.randrange(tensor.size)] = generator.choice(
                [0.0, -1.0, 1.0, 2.0, 1e-320, 1e308, -1e308, np.nan, np.inf, 3e9, 1e15, 0.9999999]
            )
            if generator.random() < 0.3:
                tensor = generator.choice([tensor[:1], tensor[..., :1], tensor.reshape(-1), tensor[None], tensor[:0]])
            tensors[name] = np.ascontiguousarray(tensor)
        if isinstance(manifest, dict):
            unsigned = {key: value for key, value in manifest.items() if key != "sha256"}
            with contextlib.suppress(ValueError):
                manifest = {**unsigned, "sha256": artifacts.digest(unsigned, tensors)}
        return artifacts.pack(json.dumps(manifest), tensors)

    return [
        Reader(name="artifact", made=_bytes_of(valid), read=_load),
        Reader(name="artifact, forged", made=forged, read=_load),
    ]


def _load(data: bytes) -> tff_mf.Mechanism:
    # Replaces the system's own, for which every input would have to be written to disk.
    artifacts._read = lambda path: data
    try:
        return tff_mf.load("artifact.safetensors")
    finally:
        artifacts._read = _READ


_READ = artifacts._read


class _HeldPath(pathlib.PosixPath):
    """A path, and the paths made from it, whose content is held in memory: no disk is written two million times."""

    content: bytes = b""

    def read_bytes(self) -> bytes:
        return self.content

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        # As in a file that is opened as text: all kinds of line ends are equal.
        return io.TextIOWrapper(io.BytesIO(self.content), encoding=encoding, errors=errors).read()

    def open(self, mode: str = "r", **more: Any) -> Any:  # type: ignore[override]
        stream = io.BytesIO(self.content)
        return stream if "b" in mode else io.TextIOWrapper(stream, **more)

    def exists(self) -> bool:
        return True


class _OneFile:
    """Returns a function that reads the content of a file as a given reader does."""

    def __init__(self, read: Callable[[pathlib.Path], Any]) -> None:
        self._read = read

    def __call__(self, data: bytes) -> Any:
        _HeldPath.content = data
        return self._read(_HeldPath("input"))


_RUN = b"""preset = "pydoc-light"
[run]
rounds = 8
clients_per_round = 2
delta = 1e-6
min_sep = 2
max_participations = 2
mechanism = "blt"
server_learning_rate = "proposed"
noise_multiplier = 1.5
"""
_GRID = _RUN + b'[[grid]]\nmechanism = ["identity", "blt"]\nseed = [1, 2]\n[[grid]]\nsampling = "timer"\n'


def _settings() -> list[Reader]:
    valid = [_RUN, _GRID]

    def toml(generator: random.Random) -> bytes:
        if generator.random() < 0.5:
            return mutations.of_bytes(generator.choice(valid), generator)
        changed = mutations.of_structure(tomllib.loads(_GRID.decode()), generator, (bool, int, float, str, list, dict))
        return _as_toml(changed).encode(errors="surrogatepass")

    def config(path: pathlib.Path) -> Any:
        return resolve(None, path, {})[1].settings()

    def preset_reader(name: str, folder: PresetFolder) -> Reader:
        originals = {each: folder.load(each) for each in folder.names()}
        files = [(folder.path / f"{each}.toml").read_bytes() for each in originals]

        def load(self: PresetFolder, each: Any) -> Preset:
            # A preset that extends another must not read itself again.
            return originals[each] if isinstance(each, str) and each in originals else _load_preset(self, each)

        def read(path: pathlib.Path) -> Any:
            # Other presets, which a preset may extend, are not fuzzed.
            with mock.patch.object(PresetFolder, "load", load):
                return folder.read("input", path)

        return Reader(name=name, made=_bytes_of(files), read=_OneFile(read))

    return [
        Reader(name="run settings (TOML)", made=toml, read=_OneFile(config)),
        Reader(name="comparison (TOML)", made=toml, read=_OneFile(compare.read)),
        preset_reader("preset (TOML)", PRESETS),
        preset_reader("preset of central training (TOML)", central.PRESETS),
    ]


_load_preset = PresetFolder.load


def _as_toml(value: Any) -> str:
    if not isinstance(value, dict):
        return repr(value)
    lines = [f"{name} = {_toml_value(each)}" for name, each in value.items() if not isinstance(each, dict)]
    tables = [f"[{name}]\n{_as_toml(each)}" for name, each in value.items() if isinstance(each, dict)]
    return "\n".join([*lines, *tables]) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else str(value)


def _logs() -> list[Reader]:
    entries = [
        {"kind": "opened", "version": 1, "run": "ab" * 16, "bound_to": "cd" * 32, "time": _TIME},
        {"kind": "begun", "round": 1, "attempt": 1, "clients": ["a", "b"], "divisor": 2, "clip_norm": 1.0},
        {"kind": "released", "round": 1},
        {"kind": "begun", "round": 2, "attempt": 1, "clients": [], "divisor": 2, "clip_norm": 1.0, "restarts": True},
        {"kind": "ended", "rounds": 2, "time": _TIME},
    ]

    def written(found: Any) -> bytes:
        return "".join(json.dumps(entry) + "\n" for entry in (found if isinstance(found, list) else [found])).encode()

    def forged(generator: random.Random) -> bytes:
        return written(mutations.of_structure(entries, generator, _JSON))

    return [
        Reader(name="ledger", made=_bytes_of([written(entries)]), read=_OneFile(ledger.read_ledger)),
        Reader(name="ledger, forged", made=forged, read=_OneFile(ledger.read_ledger)),
    ]


def _initial_models(folder: pathlib.Path) -> list[Reader]:
    tensors = {"0": np.ones((2, 3), np.float32), "1": np.zeros(3, np.float32)}
    content = safetensors.numpy.save(tensors)
    digest = hashlib.sha256(content).hexdigest()
    named = initial_model.InitialModel(file="model.safetensors", sha256=digest, vocabulary_sha256=digest)

    folder = folder / "initial"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)

    def beside(data: bytes) -> Any:
        # As each of the two files that are read beside a model.
        for name in ("configuration.toml", "vocabulary.json"):
            (folder / name).write_bytes(data)
        return initial_model.given(str(folder / "model.safetensors"), dataset="pydoc")

    return [
        Reader(
            name="initial model",
            made=_bytes_of([content]),
            read=lambda data: initial_model.parameters(named, data, list(tensors.values())),
        ),
        Reader(
            name="vocabulary of an initial model",
            made=_bytes_of([b'["the", "of", "a"]', b'[run]\ndataset = "stackoverflow"\ninitial_model = "x/y"\n']),
            read=beside,
        ),
    ]


def _plans(folder: pathlib.Path) -> list[Reader]:
    sampling = tff_mf.BMinSep(min_sep=3, probability=0.25)
    grid = {"grid": tff_mf.Grid(bits=14, max_clients=1000), "dimension": 7}
    plan = tff_mf.plan(
        mechanism="tree-full",
        rounds=9,
        sampling=sampling,
        delta=1e-6,
        clients_per_round=2,
        noise_multiplier=5.0,
        **grid,
    )
    plan.save(folder)
    content = json.loads((folder / "plan.json").read_text())

    def read(data: bytes) -> tff_mf.Plan:
        (folder / "plan.json").write_bytes(data)
        return tff_mf.Plan.load(folder)

    return [Reader(name="plan", made=_json_of(content), read=read)]


def _reports(folder: pathlib.Path) -> list[Reader]:

    schema = tff_mf.MinSep(min_sep=3, max_participations=3)
    plan = tff_mf.plan(
        mechanism=tff_mf.BLT.production("b100"),
        rounds=9,
        sampling=schema,
        delta=1e-6,
        clients_per_round=2,
        noise_multiplier=5.0,
    )
    reports.write_record(folder, plan)
    report = reports.write(folder, realised=False)
    run = (folder / "run.json").read_bytes()

    def read_run(data: bytes) -> Any:
        # By way of the disk: the reader is given a folder, and looks whether it is one.
        (folder / "run.json").write_bytes(data)
        return reports.read_record(folder)

    def read_report(data: bytes) -> Any:
        (folder / "planned.json").write_bytes(data)
        return None if reports.check(folder).differs else hashlib.sha256(data)

    return [
        Reader(name="report (JSON)", made=_json_of(report.as_json()), read=read_report),
        Reader(name="run.json", made=_json_of(json.loads(run)), read=read_run),
    ]


def _checkpoints(folder: pathlib.Path) -> list[Reader]:
    from tff_mf.base import checkpoint_files

    path, input_path = folder / "checkpoint_1.safetensors", folder / "input.safetensors"
    leaves = {"leaves": [{"tensor": 0}, {"tensor": 1}, {"json": 3}], "replay": True, "noise": "ab"}
    checkpoint_files.write(path, {"a": np.arange(6.0), "b": np.zeros([2, 2], np.int64)}, leaves)

    def read(data: bytes) -> Any:
        # Memory-mapped by the reader, and therefore a real file.
        input_path.write_bytes(data)
        return checkpoint_files.read(input_path)

    return [Reader(name="checkpoint", made=_bytes_of([path.read_bytes()]), read=read)]


def _vocabularies() -> list[Reader]:
    words, read = ["the", "of", "a"], _OneFile(deployment.read_vocabulary)

    def forged(generator: random.Random) -> bytes:
        return json.dumps(mutations.of_structure(words, generator, _JSON)).encode()

    return [
        Reader(name="vocabulary", made=_bytes_of([json.dumps(words).encode()]), read=read),
        Reader(name="vocabulary, forged", made=forged, read=read),
    ]


def all_readers(folder: pathlib.Path) -> list[Reader]:
    """Returns every reader; `folder` is for the few that need real files."""
    own = (*_artifacts(), *_settings(), *_logs(), *_vocabularies())
    return [*own, *_initial_models(folder), *_reports(folder), *_plans(folder), *_checkpoints(folder)]


def outcome(reader: Reader, data: Any) -> Outcome:
    """Returns how a reader takes an input: read, or refused with an input error."""
    result, about, start = "read", "", time.perf_counter()
    try:
        reader.read(data)
    except InputError:
        result = "refused"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        encoded = base64.b64encode(pickle.dumps(data)).decode()[:4000]
        result, about = CRASHED, f"{error!r:.200} in {where.filename}:{where.lineno}\n  {encoded}"
    if time.perf_counter() - start > _HANG_SECONDS:
        result = HANGS
    return Outcome(target=reader.name, fault="damaged or forged", result=result, about=about)


def outcomes(folder: pathlib.Path, *, inputs: int, seed: int, only: str) -> Iterator[Outcome]:
    """Yields what came of random inputs: half of them in equal parts, half for the fastest readers."""
    readers = [each for each in all_readers(folder) if only in each.name]
    rates = [_rate(reader) for reader in readers]
    for reader, rate in zip(readers, rates, strict=True):
        share = inputs // 2 // len(readers) + round(inputs / 2 * rate / sum(rates)) + 1
        generator = random.Random(f"{seed} {reader.name}")
        for _ in range(share):
            yield outcome(reader, reader.made(generator))


def _rate(reader: Reader) -> float:
    """Returns how many inputs are read in a second."""
    generator, start = random.Random(1), time.perf_counter()
    for _ in range(100):
        outcome(reader, reader.made(generator))
    return 100 / (time.perf_counter() - start)
