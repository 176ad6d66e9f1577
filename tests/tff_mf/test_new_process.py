"""A mechanism that one process optimizes and saves is loaded by another, to the bit."""

import hashlib
import json
import subprocess
import sys

import tff_mf

ROUNDS = 24
SCHEMA = tff_mf.MinSep(min_sep=6, max_participations=4)
LOAD = """
import hashlib, json, sys, tff_mf
schema = tff_mf.MinSep(min_sep=6, max_participations=4)
found = {}
for path in sys.argv[1:]:
    m = tff_mf.load(path)
    found[path] = [hashlib.sha256(m.encoder(24).tobytes()).hexdigest(), tff_mf.sensitivity(m, 24, schema)]
print(json.dumps(found))
"""


def test_every_kind_is_the_same_in_another_process(tmp_path):
    setting = {"rounds": ROUNDS, "participation": SCHEMA}
    dense = tff_mf.optimize_dense(**setting)
    mechanisms = [
        tff_mf.Identity(),
        tff_mf.optimize_blt(**setting, buffers=2),
        tff_mf.optimize_banded(rounds=ROUNDS, bands=6),
        tff_mf.optimize_banded_toeplitz(**setting, bands=6),
        tff_mf.optimize_banded_inverse(**setting, bands=6),
        dense,
        tff_mf.optimize_banded_plus_low_rank(mechanism=dense, diagonals=3, rank=2),
        tff_mf.Tree(ROUNDS, variant="full"),
        tff_mf.Tree(ROUNDS, variant="online"),
    ]
    expected = {}
    for index, mechanism in enumerate(mechanisms):
        path = str(tmp_path / f"{index}.safetensors")
        tff_mf.save(mechanism, path)
        digest = hashlib.sha256(mechanism.encoder(ROUNDS).tobytes()).hexdigest()
        expected[path] = [digest, tff_mf.sensitivity(mechanism, ROUNDS, SCHEMA)]
    finished = subprocess.run(
        [sys.executable, "-c", LOAD, *expected], capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(finished.stdout) == expected
