"""What people read: pictures, figures on the safe side, screens as the docs show them, and bars on a terminal alone."""

import os
import pathlib
import re
import runpy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_mf.experiments import cli
from tff_mf.numerics import digits

from .shared import printed, result_of

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


def test_a_log_level_of_the_user_is_kept(monkeypatch):
    for asked, kept in (("0", "0"), ("1", "3"), ("", "3")):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", asked)
        cli._quiet()
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == kept
