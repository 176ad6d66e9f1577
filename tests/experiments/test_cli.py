"""The command line: results as JSON, and what is said meanwhile. Wrong options are in test_option_refusals.py."""

import json
import math
import os
import pathlib
import subprocess
import sys
import types

import forking
import pytest

import tff_mf
from tff_mf.experiments.output import progress

COMMAND = pathlib.Path(sys.executable).with_name("tff-mf")
B400 = ["--rounds", "4000", "--min-sep", "400", "--max-participations", "5"]
ACCOUNT = ["account", "production:b400", "--noise-multiplier", "7.379", *B400, "--delta", "1e-10"]
CALIBRATE = ["calibrate", "production:b400", "--epsilon", "2", *B400, "--delta", "1e-6"]


def run(*arguments, cwd=None, **environment):
    """The command in a process of its own, a fork; test_shell.py and test_command_lines.py start it."""
    return forking.run_command(list(map(str, arguments)), folder=cwd, environment={**os.environ, **environment})


def result_of(*arguments):
    finished = run(*arguments, "--json")
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_account_knows_restarts_and_the_other_adjacency():
    schema = tff_mf.FixedEpoch(min_sep=400, max_participations=5)
    result = result_of(*ACCOUNT, "--sampling", "fixed-epochs", "--restart-every", "800", "--adjacency", "replace-one")
    blt = tff_mf.BLT.production("b400")
    found = tff_mf.guarantee(blt, 4000, schema, noise_multiplier=7.379, restart_every=800, adjacency="replace-one")
    assert result["mu"] == found.mu
    assert result["epsilon"] == found.epsilon(1e-10)
    assert result["epsilon_by_pld"] == pytest.approx(found.epsilon(1e-10), abs=1e-6)
    assert result["epsilon_from_zcdp"] > result["epsilon"]
    assert result["adjacency"] == "replace-one"


def test_account_agrees_with_the_library():
    participation = tff_mf.MinSep(min_sep=400, max_participations=5)
    result = result_of(*ACCOUNT)
    blt = tff_mf.BLT.production("b400")
    assert result["sensitivity"] == pytest.approx(4.883132, rel=1e-6)
    assert result["zcdp_rho"] == tff_mf.zcdp_rho(blt, 4000, participation, noise_multiplier=7.379)
    assert result["epsilon"] == tff_mf.epsilon(blt, 4000, participation, noise_multiplier=7.379, delta=1e-10)


def test_account_prints_no_number_for_an_unbounded_epsilon():
    assert result_of(*ACCOUNT, "--noise-multiplier", "0")["epsilon"] is None


def test_calibrate_then_account_stays_within_the_target():
    multiplier = result_of(*CALIBRATE)["noise_multiplier"]
    arguments = [*ACCOUNT, "--noise-multiplier", multiplier, "--delta", "1e-6"]
    assert 2 - 1e-9 < result_of(*arguments)["epsilon"] <= 2


def test_optimize_banded_needs_no_participation_and_may_fit_norms(tmp_path):
    setting = ["--rounds", "60", "--bands", "20", "--out", tmp_path / "banded.safetensors"]
    unit = result_of("optimize", "banded", *setting)
    assert unit["sensitivity"] == pytest.approx(math.sqrt(3))
    assert result_of("optimize", "banded", *setting, "--set", "unit_norms=false")["rms_loss"] < unit["rms_loss"]
    refused = run("optimize", "banded", *setting, "--min-sep", "19", "--max-participations", "3")
    assert refused.returncode == 2
    assert "--bands=20 exceeds --min-sep=19" in refused.stderr


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


def test_account_imports_no_tensorflow():
    """Two seconds are promised for a cold start, and TensorFlow's import alone takes longer."""
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from tff_mf.experiments.cli import guarantees"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert "tensorflow" not in listed
    assert "matplotlib" not in listed


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
