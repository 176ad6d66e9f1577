"""Without TensorFlow floor 1 works, and what needs it says how to install it."""

import subprocess
import sys

import pytest

HIDE = (
    "import sys\nfor name in ('tensorflow', 'tensorflow_privacy', 'tensorflow_federated'): sys.modules[name] = None\n"
)


def run(program):
    return subprocess.run(
        [sys.executable, "-c", HIDE + program], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("module", ["queries", "aggregators", "noise"])
def test_the_error_has_the_command(module):
    finished = run(f"from tff_mf import {module}")
    assert finished.returncode == 1
    last = finished.stderr.strip().splitlines()[-1]
    assert last.startswith("tff_mf.errors.MissingDependencyError")
    assert "tff-mf doctor --requirements > requirements.txt && pip install --no-deps -r requirements.txt" in last


def test_floor_1_works():
    finished = run(
        "import tff_mf\n"
        "p = tff_mf.MinSep(min_sep=400, max_participations=5)\n"
        "print(tff_mf.epsilon(tff_mf.BLT.production('b400'), 4000, p, noise_multiplier=7.379, delta=1e-10))"
    )
    assert finished.returncode == 0, finished.stderr
    assert float(finished.stdout) > 0


@pytest.mark.parametrize("command", ["train --rounds 5 --clients-per-round 2 --epsilon 1 --delta 1e-6", "demo"])
def test_commands_that_need_it_say_so_in_one_line(command):
    program = f"sys.argv = ['tff-mf', *{command.split()!r}]\nfrom tff_mf.experiments.cli import main\nmain()"
    finished = run(program)
    assert finished.returncode == 2
    assert len(finished.stderr.splitlines()) == 1
    assert "pip install" in finished.stderr


def test_account_by_command():
    program = (
        "sys.argv = 'tff-mf account identity --max-participations 1 --noise-multiplier 2'.split()\n"
        "sys.argv += '--rounds 9 --delta 1e-6'.split()\n"
        "from tff_mf.experiments.cli import main\nmain()"
    )
    finished = run(program)
    assert finished.returncode == 0, finished.stderr
    assert "epsilon" in finished.stdout
