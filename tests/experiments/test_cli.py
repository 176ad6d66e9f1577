"""The command line: results as JSON, and what is said meanwhile. Wrong lines are in refused_lines.txt."""

import json
import os
import pathlib
import subprocess
import sys

import forking
import pytest

import tff_mf

from .shared import result_of

COMMAND = pathlib.Path(sys.executable).with_name("tff-mf")
B400 = ["--rounds", "4000", "--min-sep", "400", "--max-participations", "5"]
ACCOUNT = ["account", "production:b400", "--noise-multiplier", "7.379", *B400, "--delta", "1e-10"]


def run(*arguments, cwd=None, **environment):
    """The command in a process of its own, a fork; test_shell.py and test_command_lines.py start it."""
    return forking.run_command(list(map(str, arguments)), folder=cwd, environment={**os.environ, **environment})


def test_account_knows_restarts_and_the_other_adjacency():
    schema = tff_mf.FixedEpoch(min_sep=400, max_participations=5)
    result = result_of(*ACCOUNT, "--sampling", "fixed-epochs", "--restart-every", "800", "--adjacency", "replace-one")
    blt = tff_mf.BLT.production("b400")
    found = tff_mf.guarantee(blt, 4000, schema, noise_multiplier=7.379, restart_every=800, adjacency="replace-one")
    assert (result["mu"], result["zcdp_rho"]) == (found.mu, found.zcdp_rho)
    assert result["epsilon"] == found.epsilon(1e-10)
    assert result["epsilon_by_pld"] == pytest.approx(found.epsilon(1e-10), abs=1e-6)
    assert result["epsilon_from_zcdp"] > result["epsilon"]
    assert result["adjacency"] == "replace-one"


def test_show_draws(tmp_path):
    picture = tmp_path / "b100.png"
    shown = result_of("show", "production:b100", "--sampling", "single", "--rounds", "300", "--plot", picture)
    assert shown["plot"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


WITHOUT_TENSORFLOW = """
import sys
from tff_mf import InputError
from tff_mf.experiments import sampling
from tff_mf.experiments.cli import cli, guarantees
from tff_mf.experiments.training.datasets import sqlite

sampling.plan_cohorts
try:
    sqlite.load(sys.argv[1])
except InputError:
    cli.main(sys.argv[2:], standalone_mode=False)
    assert not [name for name in sys.modules if name.startswith(("tensorflow", "jax", "matplotlib"))]
    print("end")
"""


def test_what_needs_no_tensorflow_loads_none(tmp_path):
    """Two seconds are promised for a cold start, and TensorFlow's import alone takes longer."""
    (tmp_path / "empty.sqlite").touch()
    plan = ["plan", "--population", "60", "--clients-per-round", "5", "--rounds", "8", "--delta", "1e-6"]
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, tmp_path / "empty.sqlite", *plan, "--epsilon", "4"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith("\nend\n")


def test_doctor():
    finished = run("doctor")
    assert "Python" in finished.stdout
    found = json.loads(run("doctor", "--json").stdout)
    assert found["sound"] == (finished.returncode == 0)
    assert [layer["name"] for layer in found["layers"] if layer["installed"]] == [
        "mechanisms",
        "pictures",
        "noise",
        "training",
    ]
    assert "tensorflow-federated==" in run("doctor", "--requirements").stdout
