"""The benchmarks that README names run, with sizes appended: nothing that a page tells a person to run is broken."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow_privacy")

HERE = pathlib.Path(__file__).resolve().parents[1]
SIZES = {
    "benchmarks/noise.py": ["--only", "tree online, 2048 rounds", "--dimension", "1000"],
    "benchmarks/central_training.py": ["--rounds", "2", "--repeats", "1", "--batch-size", "8", "--only", "BLT"],
}
# In environments of their own, which have the peers.
NOT_RUN = {"benchmarks/peers.py table full"}


def test_readme_names_no_other():
    named = re.findall(r"`python (benchmarks/[^`]*)`", (HERE / "README.md").read_text())
    assert set(named) == set(SIZES) | NOT_RUN


@pytest.mark.parametrize("script", SIZES)
def test_a_benchmark_of_readme_runs_to_its_last_line(script):
    # -P, as the folder tff_mf of the checkout has no experiments in it.
    command = [sys.executable, "-P", str(HERE / script), *SIZES[script]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
