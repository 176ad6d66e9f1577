"""The patterns of TensorFlow Privacy's own tests of queries, and what its `DPQuery` documents, for all of ours.

Source: `dp_query_test`, `gaussian_query_test`, `nested_query_test`, `normalized_query_test` and `restart_query_test` of
tensorflow_privacy 0.9.
"""

import collections

import numpy as np
import pytest

import tff_mf

tf = pytest.importorskip("tensorflow")
from tensorflow_privacy.privacy.dp_query import test_utils, tree_aggregation  # noqa: E402

from tff_mf import queries  # noqa: E402

ROUNDS = 4
# One of each kind of state: one class of query has the noise of every mechanism.
MECHANISMS = {
    "identity": tff_mf.Identity(),
    "BLT": tff_mf.BLT.production("b400"),
    "dense": tff_mf.Dense(matrix=np.tril(np.ones((ROUNDS, ROUNDS))) / 2 + np.eye(ROUNDS) / 2),
    "online tree": tff_mf.Tree(ROUNDS, variant="online"),
}
GRID = tff_mf.Grid(bits=20, max_clients=10)
ON_A_GRID = " on a grid"
KINDS = [
    *MECHANISMS,
    "RestartedQuery",
    "AdaptiveClippingQuery",
    "RestartedQuery of AdaptiveClippingQuery",
    f"identity{ON_A_GRID}",
]


def build(kind, template, *, clip_norm=10.0, noise_multiplier=0.0, insecure_seed=None):
    """Returns a query of that kind for records like the template."""
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(np.shape(leaf), tf.float32), template)
    arguments = {"record_specs": specs, "noise_multiplier": noise_multiplier, "insecure_seed": insecure_seed}
    if kind.endswith(ON_A_GRID):
        arguments["grid"], kind = GRID, kind.removesuffix(ON_A_GRID)
    if kind.endswith("AdaptiveClippingQuery"):
        clipping = queries.AdaptiveClipping(count_stddev=0.0)
        query = queries.AdaptiveClippingQuery(
            tff_mf.Tree(ROUNDS), clip_norm=clip_norm, clipping=clipping, clients_per_round=2, **arguments
        )
    elif kind == "RestartedQuery":
        query = queries.build_query(tff_mf.Tree(ROUNDS), clip_norm=clip_norm, **arguments)
    else:
        query = queries.build_query(MECHANISMS[kind], clip_norm=clip_norm, **arguments)
    return queries.RestartedQuery(query, restart_every=2) if kind.startswith("Restarted") else query


def of_record(kind, sample_state, clip_norm=10.0):
    """Returns the part of a sample state that is the sum of the records, in the units of records."""
    records = sample_state[0] if "Adaptive" in kind else sample_state
    if not kind.endswith(ON_A_GRID):
        return records
    unit = clip_norm / GRID.largest_norm
    return tf.nest.map_structure(lambda leaf: tf.cast(leaf, tf.float32) * unit, records[0])


def assert_close(found, expected):
    tf.nest.assert_same_structure(found, expected)
    for left, right in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_every_query_is_tried():
    names = {name for name in dir(queries) if name.endswith("Query")}
    assert names - {"MatrixFactorizationQuery"} <= set(KINDS)


class Layer(collections.namedtuple("Layer", ["kernel", "bias"])):
    """A record may hold named tuples as well."""


RECORDS = {
    "scalars": ([2.5, -1.0], 1.5),
    "tensors": ([tf.constant([2.0, 0.0]), tf.constant([-1.0, 1.0])], [1.0, 1.0]),
    "dict": ([{"a": 1.0, "b": [2.0]}, {"a": 0.5, "b": [1.0]}], {"a": 1.5, "b": [3.0]}),
    "named": ([Layer(1.0, {"x": 2.0}), Layer(0.0, {"x": 1.0})], Layer(1.0, {"x": 3.0})),
}


# Structures are the same to all queries but for how they wrap them.
WRAPPERS = ("identity", "RestartedQuery of AdaptiveClippingQuery")
STRUCTURES = [
    pytest.param(kind, case, id=f"{kind}-{case}")
    for kind in KINDS
    for case in RECORDS
    if kind in WRAPPERS or case in ("scalars", "dict")
]


# Leaves are summed one by one, in every structure alike. CI has each query and each structure; --long has all pairs.
@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "case"), STRUCTURES)
def test_sums_without_clipping_and_noise(kind, case):
    records, expected = RECORDS[case]
    query = build(kind, records[0])
    result, _ = test_utils.run_query(query, records)
    if case in ("tensors", "arrays"):
        np.testing.assert_allclose(result, expected)
    else:
        assert_close(result, expected)


def test_sums_of_clipped_records(kind):
    records = [tf.constant([-6.0, 8.0]), tf.constant([4.0, -3.0])]
    result, _ = test_utils.run_query(build(kind, records[0], clip_norm=5.0), records)
    np.testing.assert_allclose(result, [1.0, 1.0], atol=1e-4)
    together = {"c": (-6.0, 8.0), "d": [0.0]}
    result, _ = test_utils.run_query(build(kind, together, clip_norm=5.0), [together])
    assert_close(result, {"c": (-3.0, 4.0), "d": [0.0]})


def test_merged_samples_are_those_of_all_records(kind):
    records = [tf.constant(each) for each in ([2.0, 0.0], [-1.0, 1.0], [3.0, 5.0], [-1.0, 4.0])]
    query = build(kind, records[0])
    params = query.derive_sample_params(query.initial_global_state())

    def sample(records):
        state = query.initial_sample_state(records[0])
        for record in records:
            state = query.accumulate_record(params, state, record)
        return state

    merged = query.merge_sample_states(sample(records[:2]), sample(records[2:]))
    np.testing.assert_allclose(of_record(kind, merged), [3.0, 10.0], rtol=1e-5)
    assert_close(merged, tf.nest.map_structure(lambda leaf: leaf.numpy(), sample(records)))
    result, _, _ = query.get_noised_result(merged, query.initial_global_state())
    np.testing.assert_allclose(result, [3.0, 10.0], atol=1e-4)


def test_records_are_preprocessed_in_another_graph(kind):
    """`DPQuery.preprocess_record`: "can be executed in a separate TF session, or even on a different machine"."""
    query = build(kind, tf.zeros([2]), clip_norm=5.0)
    params = np.asarray(query.derive_sample_params(query.initial_global_state()))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.compat.v1.placeholder(tf.float32, params.shape)
        record = query.preprocess_record(fed, tf.constant([-6.0, 8.0]))
        clipped = session.run(of_record(kind, record, 5.0), {fed: params})
    np.testing.assert_allclose(clipped, [-3.0, 4.0], atol=1e-4)


def one_round(query, state, records):
    params = query.derive_sample_params(state)
    sample = query.initial_sample_state(records[0])
    for record in records:
        sample = query.accumulate_record(params, sample, record)
    result, state, _ = query.get_noised_result(sample, state)
    return result, state


def test_rounds_in_a_function_are_those_of_eager_mode(kind):
    records = [{"a": tf.constant([1.0, 2.0]), "b": tf.constant(3.0)}] * 2
    query = build(kind, records[0], noise_multiplier=1.0, insecure_seed=7)
    state = traced_state = query.initial_global_state()
    in_function = tf.function(lambda each: one_round(query, each, records))
    for _ in range(2):
        result, state = one_round(query, state, records)
        traced, traced_state = in_function(traced_state)
        tf.nest.assert_same_structure(traced, records[0])
        assert_close(traced, tf.nest.map_structure(lambda leaf: leaf.numpy(), result))
    tf.nest.assert_same_structure(traced_state, state)


class _Numbered(tree_aggregation.ValueGenerator):
    """Gives the unit vectors one after another, so that a sum says of which draws it consists."""

    def __init__(self, count):
        self.count = count

    def initialize(self):
        return tf.constant(0)

    def next(self, state):
        return tf.one_hot(state, self.count), state + 1


def test_the_vanilla_tree_is_that_of_tensorflow_privacy():
    """Row by row, TreeAggregator adds the same draws to a prefix sum as C⁻¹ does."""
    rounds = 13
    aggregator = tree_aggregation.TreeAggregator(_Numbered(rounds + 1))
    state, rows = aggregator.init_state(), []
    for _ in range(rounds):
        row, state = aggregator.get_cumsum_and_update(state)
        rows.append(row.numpy()[:rounds])
    inverse = tff_mf.Tree(rounds, variant="vanilla").inverse(rounds)
    np.testing.assert_array_equal(rows, np.cumsum(inverse, axis=0))
