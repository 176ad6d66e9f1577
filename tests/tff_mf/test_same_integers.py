"""Integers of noise, the numbers they are computed from and the decisions about them are the same on every machine."""

import functools
import json
import pathlib

import numpy as np
import pytest

import tff_mf
from tff_mf.base import in_order
from tff_mf.mechanisms import grid

from ..machines import environments
from . import same_integers

# Written by `json.dump(same_integers.stored(), file, indent=1)`. Another hash is other noise for the same keys: states
# and keys of earlier runs then cannot be continued.
STORED = json.loads((pathlib.Path(__file__).parent / "same_integers.json").read_text())
FILE = "tests/tff_mf/same_integers.py"
EACH = environments.cases("oldest")


@functools.cache
def here():
    return same_integers.in_numpy()


def test_integers_are_those_that_are_stored():
    """With the newest NumPy, and with the pinned one beside TensorFlow."""
    assert {name: {key: found[key] for key in STORED[name]} for name, found in here().items()} == STORED


@pytest.mark.parametrize("environment", EACH)
def test_numpy_gives_the_same_on_other_machines(environment):
    assert environments.call(environment, FILE, "in_numpy") == here()


# In CI one mechanism of each recursion: tests of streams compare TensorFlow with NumPy, which gives the same above.
@pytest.mark.parametrize("environment", EACH)
def test_tensorflow_gives_the_same_on_other_machines(environment, request):
    pytest.importorskip("tensorflow")
    names = list(STORED) if request.config.getoption("--long") else ["blt b400", "dense", "tree full"]
    there = environments.call(environment, FILE, "in_tensorflow", names)
    assert {name: found["integers"] for name, found in there.items()} == {
        name: STORED[name]["integers"] for name in names
    }


def test_other_numbers_are_refused(monkeypatch):
    """A machine that computes C otherwise, and so rounds some entries otherwise, continues no state."""
    mechanism = same_integers.mechanisms()["low rank"]
    state = same_integers.stream_of(mechanism).init()
    rounded = grid.Rows.rounded

    def moved(bounds, bits):
        rows = bounds.encoder_rows * np.linspace(1, 1 + 1e-4, bounds.encoder_rows.shape[-1])
        return rounded(grid.Rows(bounds.mechanism, rows, banded=True), bits)

    monkeypatch.setattr(grid.Rows, "rounded", moved)
    with pytest.raises(tff_mf.InputError, match="other noise"):
        same_integers.stream_of(mechanism).next(state)


@pytest.mark.parametrize("rounds", [1, 2, 127, 128, 129, 300])
def test_solve_takes_one_column_after_another(rounds):
    lower = np.tril(same_integers.values(rounds, rounds, seed=7) - 0.5) + np.eye(rounds)
    for right in (np.eye(rounds), np.tri(rounds)):
        expected = right.copy()
        for k in range(rounds):
            expected[k] /= lower[k, k]
            for later in range(k + 1, rounds):
                expected[later] -= lower[later, k] * expected[k]
        np.testing.assert_array_equal(in_order.solve(lower, right), expected)


@pytest.mark.parametrize("bands", [1, 2, 7, 300])
@pytest.mark.parametrize("rounds", [1, 2, 1024, 1025, 3000])
def test_reciprocals_over_several_blocks(bands, rounds):
    column = [1.25, *(1 / np.arange(2.0, bands + 1))]
    found = in_order.reciprocal(column, rounds)
    product = np.convolve(column, found)[:rounds]
    np.testing.assert_allclose(product, np.eye(1, rounds)[0], atol=1e-14)


def test_sums_and_products_are_in_order():
    row = np.array([2.0**53, *[1.0] * 40, -(2.0**53)])
    assert in_order.sums(row) == 0.0
    assert in_order.product(row[np.newaxis], np.ones((42, 1))) == 0.0
