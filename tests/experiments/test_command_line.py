"""The command line: wrong lines, options, help, completion, results as JSON, and what is imported."""

import json
import os
import pathlib
import shlex
import subprocess
import sys

import click
import forking
import pytest

from .shared import leaves, refused, result_of


def refused_lines():
    """The words of each line of the table, and what the message about it has."""
    begin = ""
    for line in pathlib.Path(__file__).with_name("refused_lines.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            begin = line.strip("[]")
        elif "=> " in line:
            words, _, named = line.partition("=> ")
            yield pytest.param(shlex.split(f"{begin} {words}"), named, id=f"{begin.split()[0]} {words.strip()}")


@pytest.mark.parametrize(("arguments", "named"), refused_lines())
def test_a_wrong_line_is_refused_in_one_line_with_nothing_written(typed, tmp_path, arguments, named):
    assert named in refused(typed, *arguments)
    assert list(tmp_path.iterdir()) == []


LEAVES = leaves()


def test_the_command_line_is_small_enough_to_learn():
    counted = {name: sum(isinstance(each, click.Option) for each in command.params) for name, command in LEAVES.items()}
    assert sum(counted.values()) <= 110
    assert counted["train"] <= 20


COMMAND = pathlib.Path(sys.executable).with_name("tff-mf")


def test_a_wrong_value_of_a_file_is_named_with_the_file(typed, tmp_path):
    (tmp_path / "run.toml").write_text("[run]\nmin_sep = 'x'\n")
    for command in (["train", "--config"], ["compare"]):
        assert "run.toml [run]: min_sep='x'" in refused(typed, *command, "run.toml")
    (tmp_path / "run.toml").write_text("[run]\nseed = [0, 1]\n")
    assert "seed=[0, 1] is a list" in refused(typed, "compare", "run.toml")


def run(*arguments, cwd=None, **environment):
    """The command in a process of its own, a fork; test_command_lines.py starts it."""
    return forking.run_command(list(map(str, arguments)), folder=cwd, environment={**os.environ, **environment})


def test_show_draws(tmp_path):
    picture = tmp_path / "b100.png"
    shown = result_of("show", "production:b100", "--sampling", "single", "--rounds", "300", "--plot", picture)
    assert shown["plot"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


FAULTY = """
import numpy as np
from tff_mf import conformance

class Unclipped:
    start = lambda self: 0
    step = lambda self, state, updates: (state, np.random.default_rng().normal(size=500) + sum(updates))

subject = lambda: (Unclipped(), conformance.Claim(clip_norm=1.0, noise_multiplier=1.0), np.zeros(500))
"""


def test_check_fails_with_the_law_that_a_module_breaks(tmp_path):
    (tmp_path / "mine.py").write_text(FAULTY)
    ended = run("check", "mine:subject", "--json", cwd=tmp_path)
    failed = [law for law, outcome in json.loads(ended.stdout)["laws"].items() if outcome["status"] == "failed"]
    assert (ended.returncode, "bound" in failed, "scale" in failed) == (1, True, False)


WITHOUT_TENSORFLOW = """
import sys
from tff_mf import InputError
from tff_mf.experiments import sampling
from tff_mf.experiments.cli import account, cli
from tff_mf.experiments.data import data_file

sampling.plan_cohorts
try:
    data_file(sys.argv[1])
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


def test_result_on_a_terminal_that_has_no_greek():
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    line = [COMMAND, "account", "identity", "--noise-multiplier", "3", "--rounds", "20", "--sampling", "single"]
    done = subprocess.run([*line, "--delta", "1e-6"], capture_output=True, env={**os.environ, **environment})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"1.448" in done.stdout
