"""Damaged and forged files in every reader: read, or refused with an input error. `TFF_MF_FUZZ=10` tries more."""

import copy
import dataclasses
import json
import os
import pathlib
import random
import tomllib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tff_mf
from tff_mf import artifacts
from tff_mf.base.errors import InputError

pytest.importorskip("tensorflow_federated")

from tff_mf.base import checkpoint_files
from tff_mf.experiments import central, compare, reports
from tff_mf.experiments.runs import ledger, model_file
from tff_mf.experiments.runs.settings import PRESETS, resolve
from tff_mf.experiments.training import deployment

INPUTS = 150 * int(os.environ.get("TFF_MF_FUZZ", "1"))
SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=3)
PLANNED = {"rounds": 9, "delta": 1e-6, "clients_per_round": 2, "noise_multiplier": 5.0}
WORDS = (b"{", b"}", b"[", b"]", b'"', b",", b":", b"=", b"'", b"null", b"NaN", b"1e999", b"-1", b"0", b"\x00", b"\r\n")
WORDS += (b"\xff\xff\xff\xff", b"9" * 400, b"\xe2\x80\xa8", b"\xed\xa0\x80", b"\x80" * 10, b"[" * 3000)
# Sizes and offsets in headers.
WORDS += tuple(size.to_bytes(8, "little") for size in (1, 2**31, 2**63 - 1, 2**64 - 1))
VALUES = (None, True, False, 0, 1, -1, 2, 2**31, 2**63, 10**30, 10**400, -(10**30), 0.0, -0.0, 0.5, 1e-320, 1e308)
VALUES += (float("nan"), float("inf"), "", "x", "0", "1e9999", "\x00", "\ud800", "٣", "a" * 5000)
VALUES += ([], [1], [[]], {}, {"a": 1})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """What reads a file.

    Attributes:
        valid: A content that it takes.
        read: Reads a file; the only errors that it may raise are input errors.
        written: A content of a structure, as a forger writes it who knows the format.
        structure: The structure of the valid content, if there is one.
    """

    valid: bytes
    read: Callable[[pathlib.Path], Any]
    written: Callable[[Any], bytes] = lambda found: json.dumps(found).encode()
    structure: Any = None

    def made(self, generator):
        if self.structure is not None and generator.random() < 0.6:
            return self.written(with_another_part(with_another_part(self.structure, generator), generator))
        return with_other_bytes(self.valid, generator)

    def takes(self, path, content):
        path.write_bytes(content)
        try:
            self.read(path)
        except InputError:
            return
        except Exception as error:
            error.add_note(f"{content[:2000]!r}")
            raise


def with_other_bytes(data, generator):
    found = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        place, kind = generator.randrange(len(found) + 1), generator.randrange(5)
        if kind == 0 and found:
            found[place % len(found)] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del found[place:]
        elif kind == 2:
            del found[place : place + generator.randint(1, 16)]
        elif kind == 3:
            found[place:place] = generator.choice(WORDS)
        else:
            word = generator.choice(WORDS)
            found[place : place + len(word)] = word
    return bytes(found)


def with_another_part(value, generator):
    """A structure of dictionaries and lists with one part replaced, left out, doubled or renamed."""
    part = found = copy.deepcopy(value)
    while isinstance(part, dict | list) and part:
        key = generator.choice(list(part) if isinstance(part, dict) else range(len(part)))
        if isinstance(part[key], dict | list) and part[key] and generator.random() < 0.8:
            part = part[key]
            continue
        kind, old = generator.randrange(6), part[key]
        if kind == 0:
            del part[key]
        elif kind == 1:
            part.append(old) if isinstance(part, list) else part.update(unknown=old)
        elif kind == 2 and isinstance(old, int | float):
            part[key] = generator.choice((old + 1, old - 1, -old, old * 10**6, f"{old}"))
        else:
            part[key] = copy.deepcopy(generator.choice(VALUES))
        return found
    return copy.deepcopy(generator.choice(VALUES))


def of_artifacts(mechanism):
    tensors = {name: np.array(each) for name, each in mechanism.tensors().items()}
    text = artifacts._described(mechanism, tensors)

    def written(found):
        try:
            manifest = {key: value for key, value in found["manifest"].items() if key != "sha256"}
            changed = {name: np.array(value, np.float64) for name, value in found["tensors"].items()}
            return artifacts.pack(json.dumps({**manifest, "sha256": artifacts.digest(manifest, changed)}), changed)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            # No artifact can have such parts.
            return artifacts.pack(text, tensors)

    structure = {"manifest": json.loads(text), "tensors": {name: each.tolist() for name, each in tensors.items()}}
    valid = artifacts.pack(text, tensors)
    return lambda folder: Reader(valid=valid, read=tff_mf.load, written=written, structure=structure)


RUN = """preset = "pydoc-light"
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
GRID = RUN + '[[grid]]\nmechanism = ["identity", "blt"]\nseed = [1, 2]\n[[grid]]\nsampling = "single"\n'


def as_toml(value):
    """TOML, or what is none: values of JSON that TOML has not are written as in JSON."""
    lines, tables = [], []
    for name, each in value.items() if isinstance(value, dict) else ():
        if isinstance(each, dict):
            tables.append(f"[{name}]\n{as_toml(each).decode()}")
        elif isinstance(each, list) and each and all(isinstance(one, dict) for one in each):
            tables += [f"[[{name}]]\n{as_toml(one).decode()}" for one in each]
        else:
            lines.append(f"{name} = {json.dumps(each)}")
    return ("\n".join([*lines, *tables]) + "\n").encode()


def of_toml(text, read):
    return lambda folder: Reader(valid=text.encode(), read=read, written=as_toml, structure=tomllib.loads(text))


def of_presets(presets):
    name = presets.names()[0]
    return lambda folder: of_toml((presets.path / f"{name}.toml").read_text(), lambda path: presets.read(name, path))(
        folder
    )


TIME = "2026-01-02T03:04:05+00:00"
OPENED = {"kind": "opened", "version": 1, "run": "ab" * 16, "bound_to": "cd" * 32, "time": TIME}
ENTRIES = [
    OPENED,
    {"kind": "begun", "round": 1, "attempt": 1, "clients": ["a", "b"], "divisor": 2, "clip_norm": 1.0},
    {"kind": "released", "round": 1},
    {"kind": "begun", "round": 2, "attempt": 1, "clients": [], "divisor": 2, "clip_norm": 1.0, "restarts": True},
    {"kind": "ended", "rounds": 2, "time": TIME},
]


def lines(entries):
    return "".join(json.dumps(entry) + "\n" for entry in (entries if isinstance(entries, list) else [entries])).encode()


def of_ledgers(folder):
    return Reader(valid=lines(ENTRIES), read=ledger.read_ledger, written=lines, structure=ENTRIES)


def of_vocabularies(folder):
    return Reader(valid=b'["the", "of", "a"]', read=deployment.read_vocabulary, structure=["the", "of", "a"])


def of_plans(folder):
    grid = {"grid": tff_mf.Grid(bits=14, max_clients=1000), "dimension": 7}
    sampling = tff_mf.BMinSep(min_sep=3, probability=0.25)
    tff_mf.plan(mechanism="tree-full", sampling=sampling, **PLANNED, **grid).save(folder)
    content = (folder / "plan.json").read_bytes()
    return Reader(valid=content, read=as_file(folder, "plan.json", tff_mf.Plan.load), structure=json.loads(content))


def as_file(folder, name, read):
    """Reads a folder in which the file of a name has the content that is tried."""

    def read_folder(path):
        (folder / name).write_bytes(path.read_bytes())
        return read(folder)

    return read_folder


def of_runs(name, read):
    def made(folder):
        reports.write_record(folder, tff_mf.plan(mechanism=tff_mf.BLT.production("b100"), sampling=SCHEMA, **PLANNED))
        reports.write(folder, realised=False)
        content = (folder / name).read_bytes()
        return Reader(valid=content, read=as_file(folder, name, read), structure=json.loads(content))

    return made


def of_checkpoints(folder):
    leaves = {"leaves": [{"tensor": 0}, {"tensor": 1}, {"json": 3}], "replay": True, "noise": "ab"}
    path = folder / "checkpoint_1.safetensors"
    checkpoint_files.write(path, {"a": np.arange(6.0), "b": np.zeros([2, 2], np.int64)}, leaves)
    return Reader(valid=path.read_bytes(), read=checkpoint_files.read)


TENSORS = {"0": np.ones((2, 3), np.float32), "1": np.zeros(3, np.float32)}


def of_models(folder):
    content = model_file.content(TENSORS, {})
    return Reader(valid=content, read=lambda path: model_file.read_from(path.parent, path.name))


OPTIMIZED = tff_mf.OptimizedFor(rounds=8, participation=SCHEMA, workload=tff_mf.Momentum(momentum=0.5))
READERS: dict[str, Callable[[pathlib.Path], Reader]] = {
    "artifact of a BLT": of_artifacts(tff_mf.BLT(theta=[0.9, 0.5], omega=[0.2, 0.1], optimized_for=OPTIMIZED)),
    "artifact of a scaled BLT": of_artifacts(tff_mf.ScaledBLT(theta=[0.9], omega=[0.2], scales=[1.0] * 8)),
    "artifact of bands": of_artifacts(tff_mf.Banded(values=[[1.0] * 8, [0.5] * 8], optimized_for=OPTIMIZED)),
    "artifact of a column": of_artifacts(tff_mf.BandedToeplitz(column=[1.0, 0.5, 0.25])),
    "artifact of a matrix": of_artifacts(tff_mf.Dense(matrix=np.tri(4) / 2 + np.eye(4))),
    "artifact of a tree": of_artifacts(tff_mf.Tree(8, variant="full")),
    "settings of a run": of_toml(GRID, lambda path: resolve(None, path, {})[1].settings()),
    "comparison": of_toml(GRID, compare.read),
    "preset": of_presets(PRESETS),
    "preset of central training": of_presets(central.PRESETS),
    "ledger": of_ledgers,
    "vocabulary": of_vocabularies,
    "plan": of_plans,
    "record": of_runs("run.json", reports.read_record),
    "report": of_runs("planned.json", reports.check),
    "checkpoint": of_checkpoints,
    "model": of_models,
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_takes_what_is_damaged_or_forged(name, tmp_path):
    reader, generator = READERS[name](tmp_path), random.Random(name)
    for _ in range(INPUTS):
        reader.takes(tmp_path / "input", reader.made(generator))


# Inputs that were once handled wrongly.
DEEP = b"[" * 100_000
# More runs than fit in memory, of a small file.
MANY = "".join(f"{name} = {list(range(1, 60))}\n" for name in ("buffers", "bands", "cohort", "units", "seed"))
ONCE = {
    "artifact of a BLT": [artifacts.pack('{"format_version":1,"kind":"identity","losses":1e999}', {})],
    "settings of a run": [b"preset = " + b"[" * 3000, b"[run]\nserver_learning_rate = 1" + b"0" * 400 + b"\n"],
    "comparison": [
        b"preset = " + b"[" * 3000,
        RUN.replace("noise_multiplier = 1.5\n", "").encode(),
        f"{RUN}[[grid]]\n{MANY}".encode(),
    ],
    "preset": [b"", b'title = "x"\nrow = 3\n', b'title = "x"\n[[row]]\nsource = "y"\n', b"title = 3\n"],
    "ledger": [
        *(DEEP, b'{"kind": ' + DEEP, lines([OPENED, {"kind": "x"}]), lines([OPENED, {"kind": "begun"}])),
        *(lines([{"kind": "ended", "rounds": 1}]), lines([{"version": 1}])),
    ],
    "record": [DEEP],
    "report": [DEEP],
    "checkpoint": [b"\xff" * 8, b"\x02" + bytes(7) + b"{}", b""],
}


@pytest.mark.parametrize("name", ONCE)
def test_what_was_once_taken_badly(name, tmp_path):
    reader = READERS[name](tmp_path)
    for content in ONCE[name]:
        reader.takes(tmp_path / "input", content)
