import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf._sensitivity import tree_nodes
from tff_mf.mechanisms import tree_factors

from . import tree_oracle

STACK_OVERFLOW = tff_mf.MinSep(min_sep=342, max_participations=6)
VARIANTS = ["full", "online"]


def node_matrix(rounds):
    """Every node that is complete within `rounds`: found one by one, not by the code that is tested."""
    rows, begin = [], 0
    while begin < rounds:
        size = 1 << (rounds - begin).bit_length() - 1
        for width in (1 << level for level in range(size.bit_length())):
            for first in range(begin, begin + size, width):
                rows.append([first <= column < first + width for column in range(rounds)])
        begin += size
    return np.array(rows, dtype=np.float64)


def honaker_from_below(rounds):
    """The decoder [rounds, nodes] by least squares: each node from the nodes within it, by definition."""
    nodes = node_matrix(rounds)
    decoder = np.zeros((rounds, len(nodes)))
    for done in range(1, rounds + 1):
        begin = 0
        while begin < done:
            width = 1 << (done - begin).bit_length() - 1
            inside = [
                row for row, node in enumerate(nodes) if set(np.flatnonzero(node)) <= {*range(begin, begin + width)}
            ]
            block = nodes[np.ix_(inside, range(begin, begin + width))]
            decoder[done - 1, inside] += np.ones(width) @ np.linalg.pinv(block)
            begin += width
    return decoder


def brute_force(rounds, schema):
    nodes = node_matrix(rounds)
    return max(np.sum(np.square(nodes[:, list(pattern)].sum(axis=1))) for pattern in schema.patterns(rounds))


@pytest.mark.parametrize("rounds", [*range(1, 20), 31, 64, 100])
def test_the_full_factor_has_the_gram_matrix_of_the_nodes(rounds):
    nodes = node_matrix(rounds)
    encoder = tff_mf.Tree(rounds, variant="full").encoder(rounds)
    assert not np.any(np.triu(encoder, 1))
    assert np.all(np.diagonal(encoder) > 0)
    np.testing.assert_allclose(encoder.T @ encoder, nodes.T @ nodes, atol=1e-13)


@pytest.mark.parametrize("height", range(8))
def test_the_recursion_is_cholesky_from_the_other_end(height):
    nodes = node_matrix(2**height)
    gram = nodes.T @ nodes
    factor = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T
    np.testing.assert_allclose(tree_factors.full_encoder(height), factor, atol=2e-15)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7, 8, 11, 16, 21])
def test_the_online_factor_has_the_law_of_the_estimator_from_below(rounds):
    decoder = honaker_from_below(rounds)
    inverse = tff_mf.Tree(rounds, variant="online").inverse(rounds)
    noise = np.diff(decoder, axis=0, prepend=0.0)
    assert not np.any(np.triu(inverse, 1))
    np.testing.assert_allclose(inverse @ inverse.T, noise @ noise.T, atol=1e-13)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7, 8, 11])
def test_the_estimator_is_unbiased(rounds):
    np.testing.assert_allclose(honaker_from_below(rounds) @ node_matrix(rounds), np.tri(rounds), atol=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rounds", [*range(1, 18), 50, 64])
def test_encoder_inverse_and_the_oracle_are_one_matrix(rounds, variant):
    tree = tff_mf.Tree(rounds, variant=variant)
    np.testing.assert_allclose(tree.encoder(rounds) @ tree.inverse(rounds), np.eye(rounds), atol=1e-13)
    np.testing.assert_allclose(tree_oracle.rows(tree, np.eye(rounds)), tree.inverse(rounds), atol=1e-14)


@pytest.mark.parametrize("variant", VARIANTS)
def test_fewer_rounds_are_the_first_of_all(variant):
    tree = tff_mf.Tree(13, variant=variant)
    assert np.array_equal(tree.inverse(6), tree.inverse(13)[:6, :6])
    np.testing.assert_allclose(tree.encoder(6), tree.encoder(13)[:6, :6], atol=1e-14)


def test_the_first_rounds_of_an_online_tree_are_a_smaller_tree():
    assert np.array_equal(tff_mf.Tree(13, variant="online").inverse(6), tff_mf.Tree(6, variant="online").inverse(6))


@pytest.mark.parametrize("schema", [tff_mf.MinSep, tff_mf.FixedEpoch])
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_sensitivity_against_brute_force(schema, rounds, separation, limit):
    separation = min(separation, rounds)
    participation = schema(min_sep=separation, max_participations=min(limit, (rounds - 1) // separation + 1))
    result = tff_mf.explain_sensitivity(tff_mf.Tree(rounds, variant="full"), rounds, participation)
    assert result.exact
    assert result.value**2 == pytest.approx(brute_force(rounds, participation), rel=1e-14)


@pytest.mark.parametrize("rounds", range(1, 13))
def test_node_counts_against_every_pattern(rounds):
    for separation in range(1, rounds + 1):
        for limit in range(1, (rounds - 1) // separation + 2):
            schema = tff_mf.MinSep(min_sep=separation, max_participations=limit)
            assert tree_nodes.min_sep(rounds, separation, limit) == brute_force(rounds, schema)


@pytest.mark.parametrize("variant", VARIANTS)
@given(st.integers(1, 10), st.integers(0, 3), st.integers(1, 10), st.integers(1, 10))
def test_no_client_is_above_it_whatever_its_signs(variant, rounds, fewer, separation, limit):
    first = max(rounds - fewer, 1)
    separation = min(separation, first)
    schema = tff_mf.MinSep(min_sep=separation, max_participations=min(limit, (first - 1) // separation + 1))
    tree = tff_mf.Tree(rounds, variant=variant)
    result, encoder = tff_mf.explain_sensitivity(tree, first, schema), tree.encoder(first)
    largest = max(
        np.linalg.norm(encoder[:, list(pattern)] @ np.array(signs))
        for pattern in schema.patterns(first)
        for signs in itertools.product((1, -1), repeat=len(pattern))
    )
    assert result.value >= largest * (1 - 1e-14)
    if result.exact:
        assert result.value == pytest.approx(largest, rel=1e-13)


@pytest.mark.parametrize("separation", [1, 3, 20, 63])
def test_node_counts_at_sizes_where_the_program_branches(separation):
    """Against a dense quadratic form over random patterns: never below any of them."""
    rounds, generator = 203, np.random.default_rng(separation)
    nodes = node_matrix(rounds)
    limit = (rounds - 1) // separation + 1
    largest = tree_nodes.min_sep(rounds, separation, limit)
    for _ in range(200):
        gaps = separation + generator.geometric(0.3, size=limit) - 1
        pattern = np.cumsum(np.concatenate([[generator.integers(separation)], gaps]))
        pattern = pattern[pattern < rounds][:limit]
        value = np.sum(np.square(nodes[:, pattern].sum(axis=1)))
        assert largest >= value


@pytest.mark.parametrize(
    ("limit", "free", "rounds", "expected"),
    [(1, 7, 8, 4), (3, 3, 9, 11), (3, 2, 7, 9), (8, 2, 24, 88), (4, 127, 512, 56)],
)
def test_it_agrees_with_the_accountant_of_tensorflow_privacy(limit, free, rounds, expected):
    # Its separation counts the rounds in between: tree_aggregation_accountant of TensorFlow Privacy 0.9.0.
    assert tree_nodes.min_sep(rounds, free + 1, limit) == expected


@pytest.mark.parametrize(("rounds", "rms_loss", "max_loss"), [(2052, 12.47150, 14.98092), (2048, 12.47311, 14.98092)])
def test_the_full_tree_of_stack_overflow(rounds, rms_loss, max_loss):
    # McMahan et al. (2024), table 1, row TreeAgg-Full, has 12.47 and 14.98.
    tree = tff_mf.Tree(rounds, variant="full")
    assert tff_mf.sensitivity(tree, rounds, STACK_OVERFLOW) == pytest.approx(10.86278, abs=5e-6)
    assert tff_mf.rms_loss(tree, rounds, STACK_OVERFLOW) == pytest.approx(rms_loss, abs=5.1e-6)
    assert tff_mf.max_loss(tree, rounds, STACK_OVERFLOW) == pytest.approx(max_loss, abs=5.1e-6)


@pytest.mark.parametrize(("rounds", "expected"), [(256, 74.4), (512, 116.5), (1024, 180.8), (2048, 278.3)])
def test_the_online_tree_of_one_participation(rounds, expected):
    # Denisov et al. (2022), table 2, column Honaker.
    loss = tff_mf.rms_loss(tff_mf.Tree(rounds, variant="online"), rounds, tff_mf.SingleParticipation())
    assert round(loss * rounds**0.5, 1) == expected


@pytest.mark.parametrize(("rounds", "separation", "limit"), [(2052, 342, 6), (2000, 314, 6), (2052, 1, 2052)])
def test_sensitivity_takes_no_time(rounds, separation, limit):
    began = time.process_time()
    tree_nodes.min_sep(rounds, separation, limit)
    assert time.process_time() - began < 1


def test_a_million_rounds_have_a_sensitivity():
    tree = tff_mf.Tree(10**6, variant="full")
    schema = tff_mf.MinSep(min_sep=10**5, max_participations=10)
    assert tff_mf.sensitivity(tree, 10**6, schema) > tff_mf.sensitivity(tree, 10**6, tff_mf.SingleParticipation())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rounds": 0}, ValueError, "rounds=0"),
        ({"rounds": 2.0}, TypeError, "rounds=2.0"),
        ({"rounds": 10**12}, ValueError, "rounds=1000000000000 exceeds the maximum"),
        ({"rounds": 4, "variant": "best"}, ValueError, "variant='best' must be one of full, online"),
        ({"rounds": 4, "variant": None}, TypeError, "variant=None"),
    ],
)
def test_bad_fields_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        tff_mf.Tree(**arguments)


@pytest.mark.parametrize("variant", VARIANTS)
def test_there_is_no_round_after_the_last(variant):
    tree = tff_mf.Tree(3, variant=variant)
    with pytest.raises(tff_mf.InputError, match="rounds=4 is more than the 3"):
        tree.encoder(4)
