"""The command line: results as JSON, and what is said meanwhile. Wrong lines are in refused_lines.txt."""

import json
import os
import pathlib
import subprocess
import sys
import types

import forking
import pytest

import tff_mf
from tff_mf.experiments.output import progress

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


def test_a_search_of_seconds_says_where_it_is(monkeypatch, capsys):
    clock = iter([0.0, 8.0, 16.0, 20.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.search() as report:
        for iteration in range(4):
            report(types.SimpleNamespace(rounds=60, iteration=iteration, error=1.25))
    assert capsys.readouterr().err.splitlines() == [
        "optimize: 60 rounds, iteration 1, error 1.25",
        "optimize: 60 rounds, iteration 3, error 1.25",
    ]


@pytest.mark.parametrize("first", [1, 81])
def test_rounds_say_how_long_the_rest_takes(monkeypatch, capsys, first):
    """Two seconds a round, also where a run was resumed, and its first rounds took their time elsewhere."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.rounds(100, "blt") as on_round:
        for number in range(first, 101):
            now[0] += 2.0
            on_round(number, {progress._ACCURACY: 0.25} if number == 100 else {})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"blt: round {first + 7} of 100, {2 * (100 - first - 7)} s left"
    assert lines[-1] == "blt: round 100 of 100, 0 s left, accuracy 0.2500"


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
