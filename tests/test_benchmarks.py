"""Every benchmark that README and docs name between backticks runs to its last line, with sizes appended.

Lines of their blocks run in test_command_lines.py. `command_lines.toml` has the few that run nowhere, with reasons.
"""

import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

pytest.importorskip("tensorflow_privacy")

HERE = pathlib.Path(__file__).resolve().parents[1]
PAGES = [HERE / "README.md", *sorted((HERE / "docs").rglob("*.md"))]
# A line, and what is put after it. {folder} is one of the test's own.
APPENDED = {
    "benchmarks/accounting_table.py --proofs": "--part 0 2",
    "benchmarks/balls_in_bins.py": "--only 'identity, unamplified 2'",
    "benchmarks/central_training.py": "--rounds 2 --repeats 1 --batch-size 8 --only BLT",
    "benchmarks/exact_normals.py": "--draws 1000",
    "benchmarks/grid_charges.py": "--dimension 1000",
    "benchmarks/noise.py": "--only 'tree online, 2048 rounds' --dimension 1000",
    "benchmarks/normal_tables.py": "--out {folder}/tables.npz",
    "benchmarks/papers.py kairouz-table-2": "",
    "benchmarks/tree_restarts.py": "",
}
NOT_RUN = [entry["line"] for entry in tomllib.loads((HERE / "tests/command_lines.toml").read_text())["not_run"]]


def named() -> set[str]:
    """Returns the benchmarks that pages name, with their arguments."""
    prose = "".join(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M) for page in PAGES)
    lines = [re.sub(r"\s+", " ", line) for line in re.findall(r"`python\s+(benchmarks/[^`]*)`", prose)]
    return {line for line in lines if not f"python {line}".startswith(tuple(NOT_RUN))}


def test_every_benchmark_that_a_page_names_is_run():
    assert named() == set(APPENDED)


# Each imports TensorFlow for itself, and no ε depends on any.
@pytest.mark.sampled(most=5)
@pytest.mark.parametrize("line", sorted(APPENDED))
def test_a_benchmark_runs_to_its_last_line(line, tmp_path):
    command = [sys.executable, *shlex.split(f"{line} {APPENDED[line].format(folder=tmp_path)}")]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
