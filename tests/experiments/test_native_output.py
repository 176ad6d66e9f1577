"""What native code writes to standard error: its chatter is kept off, and nothing else."""

import contextlib
import os
import pathlib
import subprocess
import sys

import pytest

from tff_mf.experiments import cli
from tff_mf.experiments.output import native_output

COMMAND = pathlib.Path(sys.executable).with_name("tff-mf")


def test_only_lines_with_the_beginning_are_removed(capfd):
    with contextlib.suppress(ValueError), native_output.without("INFO: "):
        os.write(2, b"INFO: made a delegate\nERROR: it matters\n\nanother line\n")
        raise ValueError
    os.write(2, b"INFO: after\n")
    assert capfd.readouterr().err == "ERROR: it matters\nanother line\nINFO: after\n"


# Long: the level becomes the one without any, as test_a_log_level_of_the_user_is_kept shows, with which
# tests/test_command_lines.py runs docs/commands.md's line for export-model in a new process, and reads what it prints.
@pytest.mark.long
@pytest.mark.parametrize("level", ["2", "1"])
def test_no_library_is_registered_on_the_screen(level, tmp_path):
    """Whatever a Makefile or JAX exports: TensorFlow reports as errors what it registers twice, on every start."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": level}
    command = [COMMAND, "audit", "identity", "--rounds", "6", "--max-participations", "1", "--coordinates", "2048"]
    with (tmp_path / "errors").open("wb") as errors:
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, check=False)
    assert (tmp_path / "errors").read_bytes() == b""


# The line for verify in docs/commands.md is run in CI, and its output is looked through: tests/test_command_lines.py.
@pytest.mark.long
def test_verification_prints_nothing_else(bundle, tmp_path):
    command = [COMMAND, "verify", bundle.folder, "--rounds", "1", "--digest", bundle.digest]
    with (tmp_path / "out").open("wb") as out, (tmp_path / "errors").open("wb") as errors:
        subprocess.run(command, stdout=out, stderr=errors, check=True)
    assert (tmp_path / "out").read_text().startswith("verified")
    assert (tmp_path / "errors").read_bytes() == b""


def test_a_log_level_of_the_user_is_kept(monkeypatch):
    for asked, kept in (("0", "0"), ("1", "3"), ("2", "3"), ("", "3")):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", asked)
        cli._quiet()
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == kept
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    cli._quiet()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
