"""Patterns of participation, against the definition, and the largest sums over them, against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.sensitivities import sums


@pytest.mark.parametrize(("min_sep", "most"), [(1, 3), (3, 2), (4, 3), (2, 4)])
def test_patterns_are_those_of_the_definition(min_sep, most):
    """Rounds at least so far apart; of fixed epochs, whole epochs apart."""
    subsets = [each for size in range(most + 1) for each in itertools.combinations(range(9), size)]
    for kind, fits in (
        (tff_mf.MinSep, lambda apart: apart >= min_sep),
        (tff_mf.FixedEpoch, lambda apart: apart % min_sep == 0),
    ):
        schema = kind(min_sep=min_sep, max_participations=most)
        expected = [each for each in subsets if all(fits(b - a) for a, b in itertools.combinations(each, 2))]
        if kind is tff_mf.FixedEpoch:
            expected = [each for each in expected if not each or each[-1] - each[0] < most * min_sep]
        assert sorted(schema.patterns(9)) == sorted(expected)
        assert [each for each in subsets if schema.allows(each)] == expected
        fewest = (most - 1) * min_sep + 1
        assert schema.check(fewest) == fewest
        with pytest.raises(InputValueError, match=f"needs {fewest} rounds.*rounds={fewest - 1}"):
            schema.check(fewest - 1)


NUMBERS = st.floats(0, 4) | st.integers(0, 3).map(float)


@st.composite
def cases(draw):
    rounds = draw(st.integers(1, 11))
    values = np.array(draw(st.lists(NUMBERS, min_size=rounds, max_size=rounds)))
    return values, draw(st.integers(1, rounds + 1)), draw(st.integers(1, rounds + 1))


def largest(values, min_sep, max_participations):
    return max(
        sum(values[list(places)])
        for size in range(min(max_participations, len(values)) + 1)
        for places in itertools.combinations(range(len(values)), size)
        if all(later - sooner >= min_sep for sooner, later in itertools.pairwise(places))
    )


@given(cases())
def test_largest_sums_against_brute_force(case):
    values, min_sep, max_participations = case
    arguments = {"min_sep": min_sep, "max_participations": max_participations}
    expected = largest(values, min_sep, max_participations)
    assert sums.largest_sum(values, **arguments) == pytest.approx(expected, rel=1e-14)
    rows = np.stack([values, values[::-1], 2 * values])
    found = sums.largest_sums(rows, **arguments)
    np.testing.assert_allclose(found, [expected, expected, 2 * expected], rtol=1e-14)


@given(cases())
def test_a_price_bounds_the_sum_from_above_and_closely(case):
    values, min_sep, max_participations = case
    expected = largest(values, min_sep, max_participations)
    (bound,) = sums._by_price(values[:, None], min_sep, max_participations)
    assert expected * (1 - 1e-13) <= bound <= expected * (1 + 1e-3) + 1e-300


@pytest.mark.parametrize(("min_sep", "max_participations"), [(2, 40), (3, 30), (2, 25), (2, 50)])
def test_large_limits_go_by_price(min_sep, max_participations):
    rows = np.random.default_rng(0).exponential(size=(20, 100))
    arguments = {"min_sep": min_sep, "max_participations": max_participations}
    exact = [sums.largest_sum(row, **arguments) for row in rows]
    bounds = sums.largest_sums(rows, **arguments)
    assert np.all(bounds >= np.multiply(exact, 1 - 1e-13))
    np.testing.assert_allclose(bounds, exact, rtol=1e-5)


def test_no_place_has_no_sum():
    assert sums.largest_sums(np.ones((2, 3)), min_sep=2, max_participations=0).tolist() == [0.0, 0.0]


@given(cases())
def test_window_sums_are_those_of_the_definition(case):
    values, stride, width = case
    expected = [values[start : start + width * stride : stride].sum() for start in range(len(values))]
    np.testing.assert_allclose(sums.window_sums(values, width=width, stride=stride), expected, rtol=1e-14)
