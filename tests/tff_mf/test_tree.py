import itertools
import math

import numpy as np
import pytest
import scipy.linalg

import tff_mf
from tff_mf.mechanisms.tree import forest
from tff_mf.sensitivities import tree_nodes


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


def vanilla_decoder(rounds):
    """The decoder [rounds, nodes] that adds up the nodes of each prefix sum: the largest that fits, and so on."""
    nodes = [set(np.flatnonzero(node)) for node in node_matrix(rounds)]
    decoder = np.zeros((rounds, len(nodes)))
    for done in range(1, rounds + 1):
        rest = set(range(done))
        while rest:
            inside = [node for node in nodes if node <= rest and min(rest) in node]
            largest = max(inside, key=len)
            decoder[done - 1, nodes.index(largest)] = 1
            rest -= largest
    return decoder


@pytest.mark.parametrize("rounds", [*range(1, 20), 31, 64, 100])
def test_the_full_factor_has_the_gram_matrix_of_the_nodes(rounds):
    nodes = node_matrix(rounds)
    encoder = tff_mf.Tree(rounds, variant="full").encoder(rounds)
    assert not np.any(np.triu(encoder, 1))
    assert np.all(np.diagonal(encoder) > 0)
    np.testing.assert_allclose(encoder.T @ encoder, nodes.T @ nodes, atol=1e-13)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7, 8, 11, 16, 21])
def test_the_online_factor_has_the_law_of_the_estimator_from_below(rounds):
    decoder = honaker_from_below(rounds)
    inverse = tff_mf.Tree(rounds, variant="online").inverse(rounds)
    noise = np.diff(decoder, axis=0, prepend=0.0)
    assert not np.any(np.triu(inverse, 1))
    np.testing.assert_allclose(inverse @ inverse.T, noise @ noise.T, atol=1e-13)


@pytest.mark.parametrize("rounds", [*range(1, 18), 31, 32, 33])
def test_the_vanilla_factor_is_the_matrix_of_the_nodes_that_its_decoder_uses(rounds):
    """One node for each round, of which the first t are complete after t rounds: C is square, and B is C⁻¹ summed."""
    decoder, nodes = vanilla_decoder(rounds), node_matrix(rounds)
    used = np.flatnonzero(np.any(decoder, axis=0))
    ends = [np.flatnonzero(node)[-1] for node in nodes[used]]
    in_order = used[np.argsort(ends)]
    tree = tff_mf.Tree(rounds, variant="vanilla")
    assert sorted(ends) == list(range(rounds))
    assert np.array_equal(tree.encoder(rounds), nodes[in_order])
    assert np.array_equal(np.cumsum(tree.inverse(rounds), axis=0), decoder[:, in_order])


def nodes_of(rounds, *, only_left):
    """The nodes that count: all that are complete, or those that the vanilla decoder uses."""
    return tff_mf.Tree(rounds, variant="vanilla").encoder(rounds) if only_left else node_matrix(rounds)


@pytest.mark.parametrize("only_left", [False, True])
@pytest.mark.parametrize("rounds", range(1, 12))
def test_node_counts_against_every_pattern(rounds, only_left):
    nodes = nodes_of(rounds, only_left=only_left)
    for min_sep in range(1, rounds + 1):
        for most in range(1, (rounds - 1) // min_sep + 2):
            for kind, count in ((tff_mf.MinSep, tree_nodes.min_sep), (tff_mf.FixedEpoch, tree_nodes.fixed_epoch)):
                patterns = kind(min_sep=min_sep, max_participations=most).patterns(rounds)
                largest = max(np.sum(np.square(nodes[:, list(pattern)].sum(axis=1))) for pattern in patterns)
                assert count([*forest(rounds)], min_sep, most, only_left=only_left) == largest


@pytest.mark.parametrize("only_left", [False, True])
@pytest.mark.parametrize(("heights", "most"), [([4], 4), ([2, 4, 3], 7), ([3, 4], 5), ([3, 3], 4)])
def test_node_counts_where_many_entries_are_dropped(heights, most, only_left):
    """Trees side by side, against all patterns of rounds that are three apart."""
    blocks = [nodes_of(1 << height, only_left=only_left) for height in heights]
    nodes, largest = scipy.linalg.block_diag(*blocks), 0
    for size in range(1, most + 1):
        chosen = np.array(list(itertools.combinations(range(nodes.shape[1] - 2 * (size - 1)), size)))
        counts = nodes[:, chosen + 2 * np.arange(size)].sum(axis=2)
        largest = max(largest, np.max(np.sum(np.square(counts), axis=0)))
    assert tree_nodes.min_sep(heights, 3, most, only_left=only_left) == largest


@pytest.mark.parametrize("only_left", [False, True])
@pytest.mark.parametrize("min_sep", [1, 3, 20, 63])
def test_node_counts_at_sizes_where_the_program_branches(min_sep, only_left):
    """Never below a random pattern; and the largest of fixed epochs, which are all tried."""
    rounds, generator = 203, np.random.default_rng(min_sep)
    nodes, most = nodes_of(rounds, only_left=only_left), (rounds - 1) // min_sep + 1
    largest = tree_nodes.min_sep([*forest(rounds)], min_sep, most, only_left=only_left)
    assert largest <= tree_nodes.min_sep([*forest(rounds)], min_sep, most)
    tree = tff_mf.Tree(rounds, variant="vanilla" if only_left else "full")
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=most)
    assert tff_mf.sensitivity(tree, rounds, schema) == pytest.approx(math.sqrt(largest), rel=1e-14)
    for _ in range(200):
        gaps = min_sep + generator.geometric(0.3, size=most) - 1
        pattern = np.cumsum(np.concatenate([[generator.integers(min_sep)], gaps]))
        pattern = pattern[pattern < rounds][:most]
        assert largest >= np.sum(np.square(nodes[:, pattern].sum(axis=1)))
    epochs = [np.sum(np.square(nodes[:, first::min_sep].sum(axis=1))) for first in range(min_sep)]
    assert tree_nodes.fixed_epoch([*forest(rounds)], min_sep, most, only_left=only_left) == max(epochs) <= largest
