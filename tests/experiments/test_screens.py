"""What people read: figures on the safe side, none that is refused, and as the docs show it."""

import pathlib
import re
import runpy
import shlex

import pytest
import run_folders
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments.runs import statements
from tff_mf.numerics import digits

from .shared import printed, result_of

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.S | re.M)
SETTING = "--rounds 24 --min-sep 6 --max-participations 4"
LINES = {
    "account": f"account tree-online --noise-multiplier 3.7654321 {SETTING} --delta 1e-6",
    "calibrate": "calibrate banded --rounds 24 --delta 1e-6 --epsilon 2 --sampling cyclic-poisson --population 600 "
    "--clients-per-round 5 --groups 6 --workload momentum --server-momentum 0.9",
    "blt": f"optimize blt {SETTING} --delta 1e-6 --epsilon 2 --out blt",
    "dense": f"optimize dense {SETTING} --sampling fixed-epochs --adjacency replace-one --out dense",
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
    "sensitivity_replace_one": "for replace-one",
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


@pytest.mark.parametrize("name", ["account", "calibrate", "blt"])
def test_no_figure_states_an_epsilon_that_the_statement_refuses(name, tmp_path, monkeypatch):
    """δ is 1 / population or more."""
    monkeypatch.chdir(tmp_path)
    arguments = [*COMMANDS[name], "--delta", "0.01", *([] if name == "calibrate" else ["--population", "100"])]
    text = printed(*arguments)
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


def test_parameters_close_to_one_are_distinguishable_from_it():
    text = printed("show", "production:b1000")
    assert "theta               1 - 1.66e-13, 0.997341, 0.958463, 0.658180" in text
    assert tff_mf.BLT.production("b1000").theta[0] == pytest.approx(1 - 1.66e-13, abs=1e-15)


def test_the_screens_in_the_docs_are_what_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    own = list(documented())
    assert own
    for words, screen in own:
        assert settled(printed(*words)) == settled(screen), words


def test_the_gallery_shows_what_is_printed():
    drawing = runpy.run_path(str(PAGE.with_name("pictures.py")))
    for name, draw in drawing["PICTURES"].items():
        if name.startswith("screen-"):
            assert (drawing["FOLDER"] / f"{name}.svg").read_text() == draw(), name


def documented():
    """The arguments of every command of the page that has a screen, and the screen."""
    for block in BLOCKS:
        command, _, screen = block.replace("\\\n", " ").partition("\n")
        words = shlex.split(command)
        assert words[:2] == ["$", "tff-mf"]
        yield words[2:], screen


def settled(text):
    """Without what differs from machine to machine: seconds, and the last digits of a search."""
    text = re.sub(r"\b\d+\.\d s\b|(?<=^seconds)( +)[\d.e-]+", "\\1…", text, flags=re.M)
    return re.sub(r"\d\.\de-\d\d", "…", text).split()


def test_the_demo_ends_with_the_guarantee_of_each_mechanism(monkeypatch, tmp_path):
    from tff_mf.experiments.comparison import demo

    claim = statements.facts(statements.of_plan(run_folders.plan()))
    run = {
        "accuracy": 0.1,
        "noise_multiplier": 5.0,
        "server_learning_rate": 1.0,
        "claim": claim,
        "baseline_accuracy": 0.08,
    }
    summary = {"mechanisms": {"blt": run, "identity": run}, "accuracy_gain": 0.0, "cohort_note": "", "seconds": 1.0}
    monkeypatch.setattr(demo, "run_demo", lambda folder: summary)
    shown = " ".join(printed("demo", "--out", tmp_path / "demo").split())
    assert shown.count(statements.at_a_glance(claim)) == 2
    assert "most frequent word: 8.00 %" in shown
