"""Without TensorFlow, tff_mf works, and everything else says how to install it."""

import os
import pathlib
import shlex
import subprocess
import sys
import tomllib

import pytest

from tff_mf.base import required_packages

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "forks"))
import forking

HERE = pathlib.Path(__file__).resolve().parents[2]

# With TensorFlow hidden; CI runs it where there is none.
pytestmark = pytest.mark.once

REMEDY = (
    "tff-mf doctor --requirements > tff-pins.txt && pip install --no-deps -r tff-pins.txt"
    if sys.version_info[:2] == (3, 11)
    else "install tff-mf in an environment with Python 3.11"
)
HIDE = (
    "import sys\nfor name in ('tensorflow', 'tensorflow_privacy', 'tensorflow_federated'): sys.modules[name] = None\n"
)


def run(program):
    return forking.run_program(HIDE + program, [], folder=None, environment=dict(os.environ))


def test_commands_name_the_packages_of_the_extras_and_never_tff_mf_on_an_index():
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    for name in ("core", "plot", "flower", "jax", "torch", "aes"):
        command = getattr(required_packages, f"{name.upper()}_COMMAND")
        assert shlex.split(command) == ["pip", "install", *groups[name]], name
    pattern = r"pip3? install( -[^ ]+)* +[\"']?tff[-_]mf"
    found = subprocess.run(["git", "grep", "-nE", pattern], cwd=HERE, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "")


@pytest.mark.parametrize("module", ["queries", "aggregators", "noise.tensorflow", "frameworks.keras"])
def test_the_error_has_the_command(module):
    finished = run(f"import tff_mf.{module}")
    assert finished.returncode == 1
    last = finished.stderr.strip().splitlines()[-1]
    assert last.startswith("tff_mf.base.errors.MissingDependencyError")
    assert REMEDY in last
