"""The tables, arithmetic and bound of the normals whose error is proved, against exact probabilities."""

import dataclasses
import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from tff_mf.numerics import normals
from tff_mf.numerics.normals import _error

from . import normal_law

TABLE = normals.tables()
LEVEL_ENDS = [end for end, _ in _error._DENSITY_ERRORS]


def damaged(level, item, by):
    """Tables in which `by` units of probability moved from one item to the one after it."""
    sums = TABLE.cumulative[level].copy()
    sums[item] -= by
    return dataclasses.replace(TABLE, cumulative=(*TABLE.cumulative[:level], sums, *TABLE.cumulative[level + 1 :]))


def with_layer(place, by):
    """Tables with one layer, and the edge that belongs to it, moved."""
    layers, edges = TABLE.layers.copy(), TABLE.edges[0].copy()
    edges[edges == layers[place]] += by
    layers[place] += by
    return dataclasses.replace(TABLE, layers=layers, edges=(edges, *TABLE.edges[1:]))


def is_proved(table, levels=None):
    errors = normal_law.density_errors(table, levels)
    bounds = [error for _, error in _error._DENSITY_ERRORS]
    # A limit in a later level has cells of this one too.
    return all(
        error <= min(bounds[level:]) * mpf(2) ** -40
        for level, error in zip(levels or range(table.levels), errors, strict=True)
    )


def test_tables_have_the_form_that_the_proof_assumes():
    assert [edges[-1] / normal_law.GRID for edges in TABLE.edges] == LEVEL_ENDS
    assert [edges[0] for edges in TABLE.edges[1:]] == [edges[-1] for edges in TABLE.edges[:-1]]
    assert TABLE.edges[0][0] == 0
    for level, (edges, cumulative) in enumerate(zip(TABLE.edges, TABLE.cumulative, strict=True)):
        assert len(cumulative) == 6 * (len(edges) - 1)
        lengths = np.diff(edges)
        # The product with 48 bits must fit into 63, and a step of 2⁻⁴⁸ of a piece must not exceed 2⁻⁵³.
        assert lengths.min() > 0
        assert lengths.max() < 2**15
        assert min(TABLE.masses(level)) >= 0
        assert sum(TABLE.masses(level)) == 2**64
    assert np.all(np.diff(TABLE.layers.astype(np.int64)) < 0)
    assert TABLE.layers[0] < 4 * normal_law.GRID
    assert set(TABLE.layers.tolist()) <= set(TABLE.edges[0].tolist())
    # All scales are exact, so that a product is rounded once.
    assert [int(scale * 2.0**83) for scale in TABLE.scales] == [*TABLE.layers.tolist(), 0, 0, 0]


@pytest.mark.once
def test_the_density_of_every_piece_is_proved():
    assert is_proved(TABLE)


def test_the_probability_beyond_the_last_level():
    with mpmath.workdps(40):
        beyond = mpmath.erfc(mpf(LEVEL_ENDS[-1]) / mpmath.sqrt(2))
        assert abs(normal_law.total(TABLE, TABLE.levels) / beyond - 1) < mpf(2) ** -40


@pytest.mark.once
@pytest.mark.parametrize(
    ("table", "level"),
    [
        (damaged(2, 500, 2**22), 2),
        (with_layer(100, 1), 0),
        (dataclasses.replace(TABLE, layers=np.delete(TABLE.layers, 7)), 0),
    ],
)
def test_tables_with_one_damaged_number_are_not_proved(table, level):
    try:
        proved = is_proved(table, [level])
    except normal_law.BrokenTablesError:
        proved = False
    assert not proved


def rounded(s, shift, below):
    return lambda z: np.floor((s * z - shift) + 0.5) >= below


def exact_cell(s, shift, k, table=TABLE):
    """The exact probability of R(s·z − L) = k in float64, and that of a real normal."""
    probability = normal_law.below(table, rounded(s, shift, k + 1)) - normal_law.below(table, rounded(s, shift, k))
    low, high = ((mpf(shift) + k + offset) / mpf(s) / mpmath.sqrt(2) for offset in (mpf(-0.5), mpf(0.5)))
    if low < 0:
        low, high = -high, -low
    return probability, (mpmath.erfc(low) - mpmath.erfc(high)) / 2


@pytest.mark.once
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    s=st.floats(2.0**14 / 10, 2.0**22 * 100),
    shift=st.floats(-1e6, 1e6),
    z=st.floats(-13, 13) | st.floats(-3.9, 3.9),
)
def test_cells_of_the_computed_integers_have_exactly_the_proved_probabilities(s, shift, z):
    k = round(s * z - shift)
    with mpmath.workdps(60):
        computed, real = exact_cell(s, shift, k)
        # The difference with L, and the sum with ½, round |v| ≤ |k| + 1.
        error = normals.rounding_error(
            cell=1 / s,
            limit=min(13.25, (abs(k + shift) + 2) / s),
            later=2.0**-52 * (abs(k) + 2) / s,
            later_relative=2.0**-53,
        )
        assert abs(mpmath.log(computed / real)) <= error.log_ratio


WORDS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), -1, 0, 1, 2**62 - 1, 2**62 + 512, 2**63 - 1])
)


@pytest.mark.once
@settings(max_examples=60, deadline=None)
@given(word=WORDS, more=st.lists(WORDS, min_size=7, max_size=7))
def test_computed_positions_are_within_the_bound_of_the_proof(word, more):
    found = normals.from_words(np.array([word]), lambda _, count: np.array(more).reshape(7, count))[0]
    exact = mpmath.MPContext()
    exact.prec = 300
    layer, step = word % 512, word // 512
    if layer < len(TABLE.layers):
        width = exact.mpf(int(TABLE.layers[layer])) / normal_law.GRID
        ends = [width * (step + end) / 2**54 for end in (0, 1)]
    else:
        item = next((i for i, sum_ in enumerate(TABLE.cumulative[0].tolist()) if sum_ > more[0]), None)
        if item is None:
            return
        left, right = (exact.mpf(int(edge)) / normal_law.GRID for edge in TABLE.edges[0][item // 6 : item // 6 + 2])
        statistic = (sorted(more[1:])[item % 6] + 2**63) // 2**16
        sign = -1 if word < 0 else 1
        ends = [sign * (left + (right - left) * (statistic + end) / 2**48) for end in (0, 1)]
    for end in ends:
        assert abs(exact.mpf(float(found)) - end) <= (4 + abs(end)) / 2**53


def test_a_value_that_descends_at_every_level_is_the_end_of_the_last():
    last = np.full([7, 2], 2**63 - 1)
    assert normals.from_words(np.array([511, 511 - 2**63]), lambda *_: last).tolist() == [
        LEVEL_ENDS[-1],
        -LEVEL_ENDS[-1],
    ]


def test_levels_get_words_of_their_own(monkeypatch):
    """Joint law: no two of the values are computed from one output of the generator, even if all need all levels."""
    used = []
    monkeypatch.setattr(normals._philox, "PART", 2**10)

    def recorded(key, block, count):
        used.append((block, block + -(-count // 2)))
        return np.full(count, 2**63 - 1)

    monkeypatch.setattr(normals._philox, "words", recorded)
    normals.draw(np.array([1, 2]), 5_000)
    assert len(used) > 5 * 3
    assert max(end for _, end in used) < 2**64
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sorted(used)))


def test_coordinates_drawn_together_are_independent():
    place = np.searchsorted([-1.5, -1, -0.6, -0.3, 0, 0.3, 0.6, 1, 1.5], normals.draw(np.array([3, 4]), 2**18))
    for distance in (1, 2, 3):
        counts = np.bincount(place[:-distance] * 10 + place[distance:], minlength=100).reshape(10, 10)
        single = counts.sum(axis=1)
        expected = np.outer(single, counts.sum(axis=0)) / counts.sum()
        # χ² of 81 degrees of freedom: beyond 145 with probability 2e-5.
        assert np.sum((counts - expected) ** 2 / expected) < 145


def test_exact_probabilities_sum_to_one_and_are_symmetric():
    with mpmath.workdps(60):
        half = normal_law.below(TABLE, lambda z: z >= 1.0)
        assert normal_law.below(TABLE, lambda z: z > 20.0) == 1
        assert abs(half + normal_law.below(TABLE, lambda z: z > -1.0) - 1) < mpf(2) ** -50


@pytest.mark.parametrize(("later", "relative"), [(0.0, 0.0), (2.0**-30, 0.0), (0.0, 2.0**-30)])
@pytest.mark.parametrize("cell", [2.0**-20, 0.01])
def test_log_ratio_covers_a_cell_both_of_whose_ends_move_and_the_density(cell, later, relative):
    found = normals.rounding_error(cell=cell, delta_tail=1e-9, later=later, later_relative=relative)
    with mpmath.workdps(60):
        moved = mpf(2) ** -53 * (4 + found.limit) + later + mpf(relative) * found.limit
        density = mpf(2) ** -40 * next(error for end, error in _error._DENSITY_ERRORS if found.limit + moved <= end)
        for begin in (0, found.limit - cell):
            inside = mpmath.ncdf(begin + cell) - mpmath.ncdf(begin)
            wider = mpmath.ncdf(begin + cell + moved) - mpmath.ncdf(begin - moved)
            assert mpmath.log(wider / inside) + density <= found.log_ratio
