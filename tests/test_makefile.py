"""The Makefile: it refuses a Python without TFF before it makes anything, and its targets run the right parts."""

import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent.parent
# `make` may run these tests, and passes its target on in ASKED.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "ASKED" and not name.startswith("MAKE")}


def test_all_texts_give_the_same_duration_of_the_demo():
    for path in ("Makefile", "README.md", "docs/demo.md", "experiments/cli/demo.py"):
        text = " ".join((HERE / path).read_text().split())
        assert text.count("about a minute on 2 cores after installation") == 1, path


@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_an_unsupported_python_is_named_in_one_line(target, tmp_path):
    for name in ("Makefile", "setup.py", "pyproject.toml", "requirements.txt"):
        shutil.copy(HERE / name, tmp_path)
    for folder in ("tff_mf", "aggregators", "experiments"):
        (tmp_path / folder).mkdir()
    other = tmp_path / "python3.12"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    finished = subprocess.run(
        ["make", f"PYTHON={other}", target], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert finished.returncode != 0
    ours = [line for line in finished.stderr.splitlines() if not line.startswith("make")]
    assert len(ours) == 1
    assert "needs Python 3.11" in ours[0]
    assert str(other) in ours[0]
    assert not (tmp_path / ".venv").exists()
    assert f"{target}'" in ours[0]


def commands(target):
    """Returns what a target would run if nothing were up to date."""
    done = subprocess.run(
        ["make", "-nB", "PYTHON=python3", target], cwd=HERE, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_long_check_runs_all_parts_without_sampling():
    short, long = commands("check"), commands("check-long")
    for part in ("ruff format --check", "ruff check", "pyrefly check", "tests.xml", "core.xml", "flower.xml"):
        assert part in short
        assert part in long
    assert "--long" not in short
    assert short.count("/pytest ") == 3
    assert long.count("--long --junitxml") == 3
    assert "tests/faults --short" in short
    assert "tests/faults --out" in long
    assert "tests/fuzz" in long


def test_every_target_for_people_is_in_the_help():
    printed = subprocess.run(
        ["make", "help"], cwd=HERE, env=ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout
    for target in ("demo", "test", "check", "check-long", "faults", "fuzz", "release", "format", "clean"):
        assert f"make {target} " in printed
