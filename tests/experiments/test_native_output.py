"""What native code writes to standard error: its chatter is kept off, and nothing else."""

import contextlib
import os

from tff_mf.experiments import cli
from tff_mf.experiments.output import native_output


def test_only_lines_with_the_beginning_are_removed(capfd):
    with contextlib.suppress(ValueError), native_output.without("INFO: "):
        os.write(2, b"INFO: made a delegate\nERROR: it matters\n\nanother line\n")
        raise ValueError
    os.write(2, b"INFO: after\n")
    assert capfd.readouterr().err == "ERROR: it matters\nanother line\nINFO: after\n"


def test_a_log_level_of_the_user_is_kept(monkeypatch):
    for asked, kept in (("0", "0"), ("1", "3"), ("2", "3"), ("", "3")):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", asked)
        cli._quiet()
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == kept
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    cli._quiet()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
