"""Denisov et al. (2022), section D.1: noise that only an adaptive adversary sees through, and that no command runs."""

import math
import pathlib

import numpy as np
import pytest
from scipy import stats

import tff_mf
from tff_mf.experiments.reports.auditing import _audit
from tff_mf.mechanisms import registry

from .shared import invoke

PLUGIN = pathlib.Path(__file__).parents[2] / "docs" / "not_adaptive.py"
DIMENSION, SIGMA = 4096, 4.0


@pytest.fixture(autouse=True)
def registered_for_one_test(monkeypatch):
    monkeypatch.setattr(registry._kinds, "_KINDS", dict(registry._kinds._KINDS))


def test_an_audit_refuses_it():
    arguments = ["--rounds", "20", "--min-sep", "1", "--max-participations", "2", "--coordinates", str(DIMENSION)]
    found = invoke("--plugin", PLUGIN, "audit", "not-adaptive", *arguments, catch_exceptions=True)
    # The command prints an InputError in one line, with exit status 2.
    assert isinstance(found.exception, tff_mf.InputError)
    assert "the recursion of kind 'not_adaptive' is" in str(found.exception)


def noise(seed):
    """The two rows of D.1 by its definition, float64 `[2, DIMENSION]`."""
    first, second = np.random.default_rng(seed).normal(size=(2, DIMENSION))
    share = 5 * math.sqrt(math.log(DIMENSION)) / DIMENSION
    direction = first / np.linalg.norm(first)
    return np.stack([first, second - (1 - share) * (second @ direction) * direction])


def test_the_statistics_of_fixed_directions_do_not_find_it():
    rows, others = noise(1), noise(2)
    tests = [_audit.variance(rows), _audit.correlation(rows), _audit.normality(rows)]
    assert all(test.passed for test in [*tests, _audit.repeats(rows, others)])


def test_an_adaptive_adversary_is_always_right():
    """It submits x₂ = ±a / ‖a‖: the sign of ⟨a, b⟩ tells which, where independent noise of σ = 4 leaves 60 %."""
    right = independent = 0
    for seed in range(60):
        for side in (1, -1):
            first, second = SIGMA * noise([seed, side + 1])
            direction = first / np.linalg.norm(first)
            right += np.sign((side * direction + second) @ direction) == side
            fresh = SIGMA * np.random.default_rng([seed, side + 1, 7]).normal()
            independent += np.sign(side + fresh) == side
    assert right == 120
    # P(N(1, σ²) > 0), within six standard deviations.
    expected = stats.norm.cdf(1 / SIGMA)
    assert abs(independent - 120 * expected) < 6 * math.sqrt(120 * expected * (1 - expected))
