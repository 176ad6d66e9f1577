"""Queries on their own: sums, noise, guarantees, states and refusals, of every kind of query.

The contract of sums is that of TensorFlow Privacy's `DPQuery`, whose own tests try it as these do.
"""

import collections
import itertools

import numpy as np
import pytest

import tff_mf

tf = pytest.importorskip("tensorflow")
import dp_accounting  # noqa: E402

from tff_mf import queries  # noqa: E402
from tff_mf.noise.tensorflow import _normals  # noqa: E402

from ..conftest import ENDED, OTHER_NOISE  # noqa: E402

BLT = tff_mf.BLT.production("b400")
GRID = tff_mf.Grid(bits=20, max_clients=6)
SPEC = tf.TensorSpec([5])
COUNTS = queries.AdaptiveClipping(count_stddev=1.0)
FREE_COUNTS = queries.AdaptiveClipping(count_stddev=0.0, learning_rate=0.7)
TREE = tff_mf.Tree(4)
KINDS = {
    "blt": {"mechanism": BLT},
    "dense": {"mechanism": tff_mf.Dense(matrix=np.tri(4) / 2 + np.eye(4) / 2)},
    "online tree": {"mechanism": tff_mf.Tree(4, variant="online")},
    "grid": {"grid": GRID},
    "restarts": {"mechanism": TREE, "restart_every": 2},
    "adaptive": {"mechanism": TREE, "clipping": FREE_COUNTS},
    "adaptive, restarts": {"mechanism": TREE, "restart_every": 2, "clipping": FREE_COUNTS},
    "adaptive, restarts, grid": {"mechanism": TREE, "restart_every": 2, "clipping": FREE_COUNTS, "grid": GRID},
}


def build(*, restart_every=None, rounds=None, clipping=None, mechanism=BLT, clients_per_round=10, **arguments):
    arguments = {"record_specs": SPEC, "clip_norm": 1.0, "noise_multiplier": 8.0, **arguments}
    if clipping is None:
        query = queries.build_query(mechanism, **arguments)
    else:
        query = queries.AdaptiveClippingQuery(
            mechanism, clipping=clipping, clients_per_round=clients_per_round, **arguments
        )
    if restart_every is None:
        return query if rounds is None else query.limited_to(rounds)
    return queries.RestartedQuery(query, restart_every=restart_every, rounds=rounds)


def flat(structure):
    return np.concatenate([np.ravel(tf.cast(leaf, tf.float64)) for leaf in tf.nest.flatten(structure)])


def step(query, state, records=(), specs=SPEC):
    params, sample = query.derive_sample_params(state), query.initial_sample_state(specs)
    for record in records:
        sample = query.accumulate_record(params, sample, record)
    result, state, event = query.get_noised_result(sample, state)
    assert event == dp_accounting.UnsupportedDpEvent()
    return result, state


class Layer(collections.namedtuple("Layer", ["kernel", "bias"])):
    """A record may be a named tuple."""


SPECS = {
    "scalar": tf.TensorSpec([]),
    "model": collections.OrderedDict(
        kernel=tf.TensorSpec([3, 2]), bias=tf.TensorSpec([2]), wide=tf.TensorSpec([2], tf.float64)
    ),
    "half": (tf.TensorSpec([3], tf.float16), [tf.TensorSpec([1, 1], tf.bfloat16)]),
    "named": Layer(tf.TensorSpec([2]), {"x": tf.TensorSpec([1])}),
}


def test_no_bit_of_a_sum_is_released_without_noise():
    """Noise has the precision of float32: a release in float64 has no more."""
    spec = tf.TensorSpec([64], tf.float64)
    query = build(record_specs=spec)
    record = np.random.default_rng(3).normal(size=64) * 1e-3
    released, _ = step(query, query.initial_global_state(), [tf.constant(record)], spec)
    assert released.dtype == tf.float64
    assert np.array_equal(released, np.float32(released))


@pytest.mark.sampled
@pytest.mark.parametrize("specs", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_is_that_of_clipped_records_however_it_is_added_up(kind, specs):
    """At once, in two parts that are merged, and of records that are clipped in another graph; of three rounds."""
    query, generator = build(**KINDS[kind], record_specs=specs, noise_multiplier=0.0), np.random.default_rng(0)
    state, precision = query.initial_global_state(), 1e-2 if "float16" in str(specs) else 1e-5
    longer = []
    for _ in range(3):
        params = query.derive_sample_params(state)
        clip_norm = float(params)
        records = [
            tf.nest.map_structure(
                lambda spec, size=size: tf.cast(generator.normal(size=spec.shape) * size, spec.dtype), specs
            )
            for size in (0.1, 3.0, 30.0, 100.0)
        ]
        expected = sum(flat(one) * min(1.0, clip_norm / np.linalg.norm(flat(one))) for one in records)
        longer.append(sum(np.linalg.norm(flat(one)) > clip_norm for one in records))
        known = [tf.nest.map_structure(lambda leaf: leaf.numpy(), one) for one in records[:2]]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = tf.compat.v1.placeholder(tf.float32, [])
            sent = [query.preprocess_record(fed, tf.nest.map_structure(tf.constant, one)) for one in known]
            sent = session.run(sent, {fed: clip_norm})
        one, other = (query.initial_sample_state(specs) for _ in range(2))
        for record in sent:
            one = query.accumulate_preprocessed_record(one, tf.nest.map_structure(tf.constant, record))
        for record in records[2:]:
            other = query.accumulate_record(params, other, record)
        merged, _, _ = query.get_noised_result(query.merge_sample_states(one, other), state)
        result, state = step(query, state, records, specs)
        for found in (result, merged):
            tf.nest.assert_same_structure(found, specs)
            for leaf, spec in zip(tf.nest.flatten(found), tf.nest.flatten(specs), strict=True):
                assert (leaf.dtype, leaf.shape) == (spec.dtype, spec.shape)
            np.testing.assert_allclose(flat(found), expected, rtol=precision, atol=precision * clip_norm)
    # After two rounds, for ten clients each: a half more for each record that was longer, and a half less for others.
    adapted = np.exp(0.7 * (sum(longer[:2]) - 4) / (2 * 10))
    assert clip_norm == pytest.approx(adapted if kind.startswith("adaptive, restarts") else 1.0, rel=1e-6)


def test_a_sum_of_16_bits_does_not_overflow():
    query = build(mechanism=tff_mf.Identity(), record_specs=tf.TensorSpec([2], tf.float16), clip_norm=1e4)
    state, total = query.initial_global_state(), query.initial_sample_state()
    for _ in range(100):
        total = query.accumulate_record(query.derive_sample_params(state), total, tf.constant([3e4, 0], tf.float16))
    # Whatever is released has been noised before it is rounded to 16 bits.
    assert total.dtype == tf.float32
    assert np.isfinite(total.numpy()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_guarantee_is_of_all_that_is_released(kind):
    """With the charge of a grid, and with the counts of adaptive clipping, each of them one coordinate."""
    setting = {**KINDS[kind], **({"clipping": COUNTS} if "clipping" in KINDS[kind] else {})}
    schema, grid = tff_mf.MinSep(min_sep=2, max_participations=2), setting.get("grid")

    def of(mechanism, sigma, dimension, **more):
        on_grid = {} if grid is None else {"grid": grid, "dimension": dimension}
        return tff_mf.guarantee(mechanism, 4, schema, noise_multiplier=sigma, **on_grid, **more)

    expected = of(setting.get("mechanism", BLT), 8.0, 5, restart_every=setting.get("restart_every"))
    if "clipping" in setting:
        expected = tff_mf.compose_guarantees(expected, of(tff_mf.Identity(), 1.0, 1))
    query = build(**setting)
    event, metrics = query.dp_event(4, schema), query.derive_metrics(query.initial_global_state())
    assert float(metrics["noise_stddev"]) == pytest.approx(8.0, rel=1e-6)
    assert 1 / event.noise_multiplier == pytest.approx(expected.mu, rel=1e-9)
    if "restart_every" not in setting:
        found = build(**setting).guarantee(4, schema)
        assert (found.mu, found.tail) == (pytest.approx(expected.mu, rel=1e-9), pytest.approx(expected.tail, rel=1e-9))
        assert event == found.dp_event()
    with pytest.raises(tff_mf.InputError, match="TEST ONLY"):
        build(**setting, insecure_seed=1).dp_event(4, schema)


def test_noise_of_adaptive_clipping_is_in_proportion_to_the_clip_norm():
    query = build(
        mechanism=TREE, clip_norm=2.0, noise_multiplier=1.5, clipping=queries.AdaptiveClipping(count_stddev=2.0)
    )
    state, results = query.initial_global_state()._replace(clip_norm=tf.constant(8.0)), []
    for _ in range(4):
        result, state = step(query, state)
        results.append(result.numpy())
    z = np.stack([_normals.standard_normal(key, 5).numpy() for key in state.noise.past_keys])
    np.testing.assert_allclose(results, TREE.inverse(4) @ z * 1.5 * 8.0, rtol=1e-4, atol=1e-4)
    counts = [float(_normals.standard_normal(key, 1)[0]) for key in state.count_noise.past_keys]
    # The sum may be near 0 where its parts are not.
    assert float(state.count) == pytest.approx(2.0 * sum(counts), abs=1e-5)
    assert not set(map(bytes, state.noise.past_keys.numpy())) & set(map(bytes, state.count_noise.past_keys.numpy()))
    metrics = query.derive_metrics(state)
    assert (float(metrics["noise_stddev"]), float(metrics["clip_norm"])) == (12.0, 8.0)


def test_adaptive_clipping_counts_within_a_half_whatever_a_client_sends():
    query = build(mechanism=TREE, clipping=FREE_COUNTS)
    for value, half in ((0.0, 0.5), (0.9, 0.5), (1.1, -0.5), (float("nan"), -0.5), (float("inf"), -0.5), (3e38, -0.5)):
        clipped, below = query.preprocess_record(tf.constant(1.0), tf.fill([5], value / (5**0.5 if value < 3 else 1)))
        assert float(below) == half
        assert np.linalg.norm(clipped) <= 1.0


def test_no_client_moves_sums_and_counts_by_more_than_is_accounted_for():
    """Brute force on the graph: every client, below the clip norm or above it in each of its rounds, or zeroed out."""
    rounds, deviation, schema = 3, 3.0, tff_mf.MinSep(min_sep=2, max_participations=2)
    tree = tff_mf.Tree(rounds)
    query = build(mechanism=tree, clipping=FREE_COUNTS, noise_multiplier=0.0)
    counts = queries.AdaptiveClipping(count_stddev=deviation)
    noised = build(mechanism=tree, clipping=counts, noise_multiplier=deviation)

    @tf.function(autograph=False)
    def one_round(state, norm):
        return step(query, state, [tf.one_hot(2, 5) * each for each in (0.5, 2.5, norm)])

    def released(norms):
        """Returns C·sums and counts, of a client with these norms in these rounds, and zeroed out in the others."""
        state, sums, counted = query.initial_global_state(), [], []
        for t in range(rounds):
            result, after = one_round(state, tf.constant(norms.get(t, 0.0)))
            sums.append(result.numpy())
            counted.append(float(after.count - state.count))
            state = after
        return tree.encoder(rounds) @ sums, np.array(counted)

    zeroed, worst, worst_count = released({}), 0.0, 0.0
    for pattern in schema.patterns(rounds):
        for norms in itertools.product((0.5, 4.5), repeat=len(pattern)):
            sums, counted = released(dict(zip(pattern, norms, strict=True)))
            moved, count = np.linalg.norm(sums - zeroed[0]) / deviation, np.linalg.norm(counted - zeroed[1])
            worst, worst_count = max(worst, np.hypot(moved, count / deviation)), max(worst_count, count)
    claimed = tff_mf.adaptive_clipping_guarantee(rounds, schema, count_stddev=1.0).mu
    # A count moves by 1 in each of two rounds, and not by a half.
    assert worst_count == pytest.approx(2**0.5, rel=1e-6)
    assert worst_count <= claimed == pytest.approx(2**0.5, rel=1e-9)
    assert worst <= noised.guarantee(rounds, schema).mu == pytest.approx(worst, rel=1e-5)
    assert worst <= 1 / noised.dp_event(rounds, schema).noise_multiplier


def test_more_records_than_a_grid_has_room_for_are_refused_and_else_nan(monkeypatch):
    query = build(grid=GRID)
    state = query.initial_global_state()
    sample = query.initial_sample_state()
    for _ in range(7):
        sample = query.accumulate_record(query.derive_sample_params(state), sample, tf.ones([5]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_clients=6"):
        query.get_noised_result(sample, state)
    monkeypatch.setattr(tf.debugging, "assert_less_equal", lambda *_, **__: None)
    total, unit = query._summands.opened(sample, np.float32(0.3))
    assert np.all(np.isnan(query._summands.noised(total, tf.zeros([5], tf.float64), unit, tf.float32)))


def test_only_a_grid_lets_the_server_enforce_an_adaptive_clip_norm():
    with pytest.raises(tff_mf.InputError, match="only clients can enforce"):
        build(mechanism=TREE, clipping=COUNTS).clip_again((tf.zeros([5]), tf.constant(0.5)))


def test_a_client_counts_for_one_half_whatever_it_reports():
    query = build(mechanism=TREE, clipping=COUNTS, grid=GRID)
    record, report = query.preprocess_record(tf.constant(1.0), tf.zeros([5]))
    for reported in (report, -report, 7 * report, -7 * report, 0 * report):
        (_, counted), _ = query.clip_again((record, reported))
        assert abs(int(counted)) == 2 ** (GRID.bits - 1)


@pytest.mark.parametrize("setting", [{}, {"grid": GRID}, {"clipping": COUNTS}], ids=str)
def test_noise_is_in_proportion_to_the_clip_norm(setting):
    query = build(**setting, clip_norm=2.0)
    metrics = query.derive_metrics(query.initial_global_state())
    assert float(metrics["noise_stddev"]) == pytest.approx(16.0, rel=1e-6)


ADAPTIVE = {"restart_every": 4, "clipping": COUNTS}
OTHERS = [
    ({}, {"clip_norm": 2.0, "noise_multiplier": 4.0}),
    ({}, {"clip_norm": 1.0 - 1e-7}),
    ({}, {"insecure_seed": 1}),
    ({}, {"mechanism": tff_mf.BLT.production("b100")}),
    ({}, {"grid": GRID}),
    ({"restart_every": 4}, {"restart_every": 8}),
    (ADAPTIVE, {"restart_every": 8}),
    (ADAPTIVE, {"clipping": queries.AdaptiveClipping(count_stddev=0.5)}),
    (ADAPTIVE, {"clipping": queries.AdaptiveClipping(count_stddev=1.0, learning_rate=9.0)}),
    (ADAPTIVE, {"clip_norm": 0.5}),
]


@pytest.mark.parametrize(("first", "changes"), OTHERS, ids=str)
def test_a_state_of_other_noise_is_refused(first, changes):
    _, state = step(build(**first), build(**first).initial_global_state())
    other = build(**first | changes)
    assert other.fingerprint != build(**first).fingerprint
    with pytest.raises(tf.errors.InvalidArgumentError, match=OTHER_NOISE):
        step(other, state)
    if "clip_norm" in changes:
        with pytest.raises(tf.errors.InvalidArgumentError, match=OTHER_NOISE):
            tf.function(lambda state: step(other, state)[0], autograph=False)(state)
    step(build(**first), state)


@pytest.mark.parametrize(
    "made",
    [
        lambda rounds: build(mechanism=tff_mf.Tree(5), rounds=rounds),
        lambda rounds: build(mechanism=tff_mf.Tree(2), restart_every=2, rounds=rounds),
        lambda rounds: build(mechanism=tff_mf.Tree(2), restart_every=2, rounds=rounds, clipping=COUNTS),
        lambda rounds: queries.RestartedQuery(build(mechanism=TREE, rounds=rounds), restart_every=2),
        lambda rounds: queries.RestartedQuery(build(mechanism=TREE, rounds=rounds), restart_every=2, rounds=7),
        lambda rounds: queries.RestartedQuery(build(mechanism=TREE, rounds=4), restart_every=2, rounds=min(rounds, 4)),
    ],
    ids=["one stream", "restarts", "adaptive", "restarts of what is limited", "the smaller limit", "the other way"],
)
def test_a_run_ends_and_a_longer_one_goes_on_from_its_state(made):
    query = made(3)
    state = query.initial_global_state()
    for _ in range(3):
        _, state = step(query, state)
    with pytest.raises(tf.errors.InvalidArgumentError, match=ENDED(3)):
        step(query, state)
    assert made(4).fingerprint == query.fingerprint
    step(made(4), state)


def test_rounds_that_are_none_are_refused():
    for rounds, error in ((0, ValueError), (2.5, TypeError), (True, TypeError)):
        for every in (None, 2):
            with pytest.raises(error, match="rounds"):
                build(restart_every=every, rounds=rounds)
    with pytest.raises(ValueError, match="rounds"):
        build(mechanism=TREE, rounds=5)
    limited = build(rounds=1)
    with pytest.raises(tff_mf.InputError, match=r"2.*1"):
        limited.replay(tf.zeros([2, 2], tf.int64))


@pytest.mark.parametrize("restart_every", [None, 4])
def test_a_state_that_a_graph_would_keep_is_refused(restart_every):
    query = build(restart_every=restart_every)
    state = query.initial_global_state()
    with pytest.raises(Exception, match="must be an argument"):
        tf.function(lambda: step(query, state)[0])()
    begun = tf.function(lambda: step(query, query.initial_global_state())[0])
    assert not np.any(begun() == begun())


BROADCAST = [
    (tf.TensorSpec([]), tf.ones([5])),
    (tf.TensorSpec([8]), tf.ones([3, 8])),
    (tf.TensorSpec([100]), tf.ones([1])),
    ([tf.TensorSpec([2]), tf.TensorSpec([3])], [tf.ones([2])]),
    ({"a": tf.TensorSpec([2]), "b": tf.TensorSpec([1])}, {"a": tf.ones([2]), "b": tf.ones([4])}),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("specs", "record"), BROADCAST, ids=str)
@pytest.mark.parametrize("restart_every", [None, 4])
@pytest.mark.parametrize("clipping", [None, COUNTS])
def test_shapes_that_tensorflow_would_broadcast_are_refused(specs, record, restart_every, clipping):
    query = build(record_specs=specs, restart_every=restart_every, clipping=clipping)
    state = query.initial_global_state()
    params = query.derive_sample_params(state)
    total = (record, tf.zeros([])) if clipping else record
    for attempt in (
        lambda: query.initial_sample_state(record),
        lambda: query.preprocess_record(params, record),
        lambda: query.get_noised_result(total, state),
    ):
        with pytest.raises(Exception, match="record_specs"):
            attempt()


def test_shapes_that_are_unknown_until_a_graph_runs_are_checked_there():
    query = build(record_specs=tf.TensorSpec([1]))
    params = query.derive_sample_params(query.initial_global_state())
    clip = tf.function(lambda record: query.preprocess_record(params, record), [tf.TensorSpec(None)])
    assert clip(tf.ones([1])).shape == (1,)
    with pytest.raises(tf.errors.InvalidArgumentError):
        clip(tf.ones([5]))


NO_NORM = ([None, "1"], [0.0, -1.0, float("nan"), float("inf"), 1e-60, 1e-21, 1e-40, 1e21, 3e38])
NO_NOISE = ([None], [-1.0, float("inf"), float("nan")])


@pytest.mark.parametrize(
    ("given", "name", "types", "values"),
    [
        ({}, "clip_norm", *NO_NORM),
        ({}, "noise_multiplier", *NO_NOISE),
        ({}, "insecure_seed", [1.5], []),
        ({}, "record_specs", [tf.TensorSpec([2], tf.int32), [3.0]], [tf.TensorSpec([None]), (), tf.TensorSpec([0])]),
        ({}, "mechanism", ["b400"], []),
        ({"clipping": COUNTS}, "clip_norm", *NO_NORM),
        ({"clipping": COUNTS}, "noise_multiplier", *NO_NOISE),
        ({"clipping": COUNTS}, "clients_per_round", [], [0]),
    ],
)
def test_a_wrong_argument_is_named(given, name, types, values):
    for error, wrong in ((TypeError, types), (ValueError, values)):
        for value in wrong:
            with pytest.raises(error, match=f"{name}|record_specs") as caught:
                build(**given, **{name: value})
            assert isinstance(caught.value, tff_mf.InputError)
