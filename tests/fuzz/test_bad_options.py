"""Wrong values for options: a sample of every command; `make fuzz` tries all of them."""

import os
import pathlib
import subprocess
import sys

import click
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bad_options
import bad_values

from tff_mf.experiments import cli
from tff_mf.experiments.cli import _boundary

INPUTS = 220


def test_sample_is_of_every_command():
    chosen = {each.command for each in bad_options.chosen(INPUTS)}
    assert chosen >= {name for name, _ in bad_values.leaves()} - {"demo", "doctor"}


def test_wrong_values_are_refused_in_a_line():
    """In a process of its own, since this one may have loaded TensorFlow."""
    command = [sys.executable, str(pathlib.Path(__file__).parent), "options", "--inputs", str(INPUTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(bad_options.chosen(INPUTS))} outcomes in " in done.stdout


def test_every_option_has_cases():
    tried = {(each.command, each.parameter) for each in bad_values.cases()}
    for name, command in bad_values.leaves():
        for each in command.params:
            if isinstance(each, click.Option):
                assert (name, max(each.opts, key=len)) in tried


def test_result_on_a_terminal_that_has_no_greek():
    line = ["account", "identity", "--noise-multiplier", "3", "--rounds", "20", "--sampling", "single"]
    source = (
        f"import sys; from tff_mf.experiments import cli; sys.argv = {['tff-mf', *line, '--delta', '1e-6']}; cli.main()"
    )
    for more in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        done = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, timeout=120, env={**os.environ, **more}
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"1.448" in done.stdout


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("--out='a\u202eb' is \x1b[2Jwrong\nhere", "--out='a\\u202eb' is \\x1b[2Jwrong here"),
        ("'short' is none of " + 40 * "words, " + "mean 'this'?", None),
    ],
)
def test_messages_are_one_line_as_typed(message, shown):
    assert _boundary.line(message) == (message if shown is None else shown)


def test_long_values_are_cut():
    for long in (f"--out='{5000 * 'x '}' is long", 5000 * "x"):
        assert len(_boundary.line(long)) < 100


def test_command_lines_pass_the_boundary():
    """The check is that of the group's context, which every subcommand gets."""
    with pytest.raises(click.UsageError, match="--out='' is empty"):
        cli.cli.main(["optimize", "blt", "--rounds", "20", "--out", ""], standalone_mode=False)
