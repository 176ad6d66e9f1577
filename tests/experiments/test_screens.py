"""What people read: pictures, figures on the safe side, screens as the docs show them, and bars on a terminal alone."""

import json
import os
import pathlib
import pty
import re
import runpy
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments import cli, plots
from tff_mf.experiments.output import console
from tff_mf.numerics import digits

from .shared import invoke, printed, result_of

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
SETTING = "--rounds 24 --min-sep 6 --max-participations 4"
LINES = {
    "account": f"account tree-online --noise-multiplier 3.7654321 {SETTING} --delta 1e-6",
    "calibrate": "account identity --rounds 24 --delta 1e-6 --epsilon 2 --sampling cyclic-poisson --population 600 "
    "--clients-per-round 5 --groups 6",
    "dense": f"optimize dense {SETTING} --sampling fixed-epochs --out dense",
}
COMMANDS = {name: line.split() for name, line in LINES.items()}


LABELS = {
    "noise_multiplier": "noise multiplier σ",
    "sensitivity": "sensitivity",
    "zcdp_rho": "ρ of zCDP",
    "mu": "μ of Gaussian DP",
    "epsilon": "ε",
    "amplified_noise_multiplier": "amplified σ",
    "amplified_epsilon": "amplified ε",
    "sensitivity_as_run": "as run, in float32",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_copied_figures_are_safe(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = dict(re.findall(r"^(\S.*?)  +(\S+)$", printed(*COMMANDS[name]), re.M))
    exact = result_of(*COMMANDS[name])
    copied = {figure: float(lines[label]) for figure, label in LABELS.items() if figure in exact}
    assert len(copied) >= 2
    for figure, value in copied.items():
        assert exact[figure] <= value <= exact[figure] * 1.001 + 1e-3, figure
    if "effective_noise_multiplier" in exact:
        assert float(lines["effective σ"]) <= exact["effective_noise_multiplier"]


@pytest.mark.parametrize("name", ["account", "calibrate"])
def test_no_figure_states_an_epsilon_that_the_statement_refuses(name, tmp_path, monkeypatch):
    """δ is 1 / population or more."""
    monkeypatch.chdir(tmp_path)
    arguments = [*COMMANDS[name], "--delta", "0.01", *([] if name == "calibrate" else ["--population", "100"])]
    refused = invoke(*arguments)
    assert refused.exit_code == 1
    text = refused.stdout
    assert "NO ε CAN BE STATED" in text
    figures = dict(re.findall(r"^(\S.*?)  +(.+)$", text, re.M))
    assert {value for label, value in figures.items() if "ε" in label} == {"not stated"}
    assert figures["noise multiplier σ"] != "not stated"
    assert result_of(*arguments)["epsilon"] is None


@given(st.floats(5e-324, 1e300), st.integers(1, 12))
def test_rounded_figures_are_on_the_safe_side(value, count):
    assert float(digits.downwards(value, count)) <= value <= float(digits.upwards(value, count))
    if value > 1e-300:
        assert float(digits.nearest(value, count)) == pytest.approx(value, rel=10.0 ** (1 - count))
        assert float(digits.upwards(value, count)) <= value * (1 + 10.0 ** (1 - count)) * (1 + 1e-12)


def test_the_screens_of_pages_show_what_is_printed():
    drawing = runpy.run_path(str(DOCS / "pictures.py"))
    for name, draw in drawing["PICTURES"].items():
        if name.startswith("screen-"):
            assert (drawing["FOLDER"] / f"{name}.svg").read_text() == draw(), name


SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}
SCHEMA = tff_mf.MinSep(min_sep=8, max_participations=4)


def draw_mechanism(path, mechanism=None, schema=SCHEMA):
    plots.draw_mechanism(mechanism or tff_mf.Tree(32), 32, schema, tff_mf.PrefixSum(), path)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("ending", [*SIGNATURES, "SVG"])
def test_the_ending_is_the_format_and_bytes_are_reproducible(tmp_path, ending):
    paths = [tmp_path / f"{number}.{ending}" for number in range(2)]
    for path in paths:
        draw_mechanism(path)
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(SIGNATURES[ending.lower()])
    assert ending.lower() != "svg" or b"<svg" in first
    assert first == second
    assert sorted(tmp_path.iterdir()) == paths


def test_nothing_of_matplotlib_is_changed_for_others(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_mechanism(tmp_path / "x.svg")
    assert dict(matplotlib.rcParams) == before


SEARCHED = ["--rounds", "400", "--min-sep", "60", "--max-participations", "6"]
SEARCH = ["optimize", "banded", *SEARCHED, "--bands", "20", "--set", "unit_norms=false", "--out", "x"]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def on_a_terminal(program, cwd, *arguments):
    """What a program writes to standard output, a pipe, and to standard error, a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, cwd=cwd) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                some = os.read(ours, 4096)
            except OSError:  # Linux says so when nobody is at the other end any more.
                break
            if not some:
                break
            shown += some
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, shown
    return out.decode(), shown.decode()


def lines(shown):
    """What was on a line of the terminal at some time, without what moves the cursor or sets a color."""
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).rstrip() for line in re.split(r"[\r\n]+", shown)]


COMMAND = "import sys\nfrom tff_mf.experiments.cli import main\nmain()"


def test_a_command_has_a_bar_on_a_terminal_and_no_trace_of_one_elsewhere(tmp_path):
    out, shown = on_a_terminal(COMMAND, tmp_path, *SEARCH, "--json")
    assert json.loads(out)
    assert any(line.startswith("optimize") for line in lines(shown))
    assert "\r" in shown.replace("\r\n", "")
    piped = subprocess.run(
        [sys.executable, "-c", COMMAND, *SEARCH, "--json"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert json.loads(piped.stdout).keys() == json.loads(out).keys()
    assert not CONTROL.search(piped.stdout + piped.stderr)
    assert "optimize" not in piped.stderr


def test_without_a_terminal_a_bar_writes_nothing(capsys):
    with console.bar("x", 3) as advance:
        console.step("a")
        advance(2, "b")
        console.say("a line")
    assert list(console.steps(range(3), 3, "x")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "a line\n")


def test_a_log_level_of_the_user_is_kept(monkeypatch):
    for asked, kept in (("0", "0"), ("1", "3"), ("", "3")):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", asked)
        cli._quiet()
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == kept
