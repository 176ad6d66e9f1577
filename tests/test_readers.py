"""Damaged files in every reader: read, or refused with an input error. `TFF_MF_FUZZ=10` tries more."""

import json
import os
import pathlib
import random
import unittest.mock
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
from tff_mf.experiments.runs import ledger, names, results
from tff_mf.experiments.runs.settings import PRESETS, resolve

INPUTS = 150 * int(os.environ.get("TFF_MF_FUZZ", "1"))
SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=3)
PLANNED = {"rounds": 9, "delta": 1e-6, "clients_per_round": 2, "noise_multiplier": 5.0}
# What a damaged file may have in some place: signs and numbers of JSON and TOML, sizes and offsets of headers.
WORDS = (b"{", b"}", b"[", b"]", b'"', b",", b":", b"=", b"'", b"null", b"NaN", b"1e999", b"-1", b"0", b"\x00", b"\r\n")
WORDS += (b"\xff\xff\xff\xff", b"9" * 400, b"\xe2\x80\xa8", b"\xed\xa0\x80", b"\x80" * 10, b"[" * 3000, b"{}", b'""')
WORDS += tuple(size.to_bytes(8, "little") for size in (1, 2**31, 2**63 - 1, 2**64 - 1))
# Of a reader: a file that it takes, in a folder of the test's own, and what reads it.
Reader = tuple[bytes, Callable[[pathlib.Path], Any]]


def damaged(data, generator):
    """In a few places; or, of a line of JSON or TOML, with another value, or none."""
    found = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        place, kind = generator.randrange(len(found) + 1), generator.randrange(6)
        if kind == 0 and found:
            found[place % len(found)] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del found[place:]
        elif kind == 2:
            del found[place : place + generator.randint(1, 16)]
        elif kind == 3:
            found[place:place] = generator.choice(WORDS)
        elif kind == 4:
            ends = [end for end in (found.find(sign, place) for sign in (b",", b"\n", b"}")) if end > place]
            found[place : min(ends, default=place)] = generator.choice(WORDS)
        else:
            word = generator.choice(WORDS)
            found[place : place + len(word)] = word
    return bytes(found)


def takes(read, path, content):
    path.write_bytes(content)
    try:
        read(path)
    except InputError:
        return
    except Exception as error:
        error.add_note(f"{content[:2000]!r}")
        raise


def of_artifacts(mechanism):
    tensors = {name: np.array(each) for name, each in mechanism.tensors().items()}
    return lambda folder: (artifacts.pack(artifacts._described(mechanism, tensors), tensors), tff_mf.load)


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


def of_toml(text, read):
    return lambda folder: (text.encode(), read)


def of_presets(presets):
    name = presets.names()[0]
    file = type(presets).file

    def read(path):
        def found(folder, other):
            return path if other == name else file(folder, other)

        with unittest.mock.patch.object(type(presets), "file", found):
            return presets.load(name)

    return of_toml(presets.file(name).read_text(), read)


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


def of_plans(folder):
    grid = {"grid": tff_mf.Grid(bits=14, max_clients=1000), "dimension": 7}
    sampling = tff_mf.BMinSep(min_sep=3, probability=0.25)
    tff_mf.plan(mechanism="tree-full", sampling=sampling, **PLANNED, **grid).save(folder)
    return (folder / "plan.json").read_bytes(), as_file(folder, "plan.json", tff_mf.Plan.load)


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
        return (folder / name).read_bytes(), as_file(folder, name, read)

    return made


def of_checkpoints(folder):
    leaves = {"leaves": [{"tensor": 0}, {"tensor": 1}, {"json": 3}], "replay": True, "noise": "ab"}
    path = folder / "checkpoint_1.safetensors"
    checkpoint_files.write(path, {"a": np.arange(6.0), "b": np.zeros([2, 2], np.int64)}, leaves)
    return path.read_bytes(), checkpoint_files.read


def of_models(folder):
    content = results.model_content({"0": np.ones((2, 3), np.float32), "1": np.zeros(3, np.float32)}, {})
    return content, lambda path: results.read_model(path.parent, path.name)


OPTIMIZED = tff_mf.OptimizedFor(rounds=8, participation=SCHEMA, workload=tff_mf.Momentum(momentum=0.5))
READERS: dict[str, Callable[[pathlib.Path], Reader]] = {
    "artifact of a BLT": of_artifacts(tff_mf.BLT(theta=[0.9, 0.5], omega=[0.2, 0.1], optimized_for=OPTIMIZED)),
    "artifact of bands": of_artifacts(tff_mf.Banded(values=[[1.0] * 8, [0.5] * 8], optimized_for=OPTIMIZED)),
    "artifact of a tree": of_artifacts(tff_mf.Tree(8, variant="full")),
    "settings of a run": of_toml(RUN, lambda path: resolve(None, path, {})[1].settings()),
    "comparison": of_toml(GRID, compare.read),
    "preset": of_presets(PRESETS),
    "preset of central training": of_presets(central.PRESETS),
    "ledger": lambda folder: (lines(ENTRIES), ledger.read_ledger),
    "vocabulary": lambda folder: (
        b'["the", "of", "a"]',
        as_file(folder, names.VOCABULARY, results.read_vocabulary),
    ),
    "plan": of_plans,
    "record": of_runs("run.json", reports.read_record),
    "report": of_runs("planned.json", reports.check),
    "checkpoint": of_checkpoints,
    "model": of_models,
}


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


@pytest.mark.parametrize("name", READERS)
def test_every_reader_takes_what_is_damaged(name, tmp_path):
    (valid, read), generator = READERS[name](tmp_path), random.Random(name)
    (tmp_path / "input").write_bytes(valid)
    read(tmp_path / "input")
    for content in (*ONCE.get(name, ()), *(damaged(valid, generator) for _ in range(INPUTS))):
        takes(read, tmp_path / "input", content)
