"""The queries on their own: clipping, noise, events and what they refuse."""

import collections
import itertools

import numpy as np
import pytest

import tff_mf

tf = pytest.importorskip("tensorflow")
import dp_accounting  # noqa: E402
import tensorflow_privacy as tfp  # noqa: E402

from tff_mf import queries  # noqa: E402
from tff_mf.noise.tensorflow import _state  # noqa: E402

BLT = tff_mf.BLT.production("b400")
SPECS = {
    "scalar": tf.TensorSpec([]),
    "vector": tf.TensorSpec([7]),
    "model": collections.OrderedDict(
        kernel=tf.TensorSpec([3, 2]), bias=tf.TensorSpec([2]), wide=tf.TensorSpec([2], tf.float64)
    ),
    "half": (tf.TensorSpec([3], tf.float16), [tf.TensorSpec([1, 1], tf.bfloat16)]),
}


def build(mechanism=BLT, specs=SPECS["vector"], **changes):
    return queries.build_query(
        mechanism, **{"record_specs": specs, "clip_norm": 2.0, "noise_multiplier": 1.5, **changes}
    )


def flat(structure):
    return np.concatenate([np.ravel(tf.cast(leaf, tf.float64)) for leaf in tf.nest.flatten(structure)])


def run(query, rounds, records=()):
    state, results = query.initial_global_state(), []
    for _ in range(rounds):
        sample = query.initial_sample_state()
        for record in records:
            sample = query.accumulate_record(query.derive_sample_params(state), sample, record)
        result, state, event = query.get_noised_result(sample, state)
        assert event == dp_accounting.UnsupportedDpEvent()
        results.append(flat(result))
    return np.stack(results), state


@pytest.mark.parametrize("mechanism", [BLT, tff_mf.Tree(7)], ids=lambda each: each.kind)
@pytest.mark.parametrize("specs", SPECS.values(), ids=SPECS)
def test_noise_is_the_inverse_times_the_recorded_noise(mechanism, specs):
    """Of records of every structure: test_noise_laws.py has the same law for every mechanism."""
    query = build(mechanism, specs)
    result, _, _ = query.get_noised_result(query.initial_sample_state(), query.initial_global_state())
    tf.nest.assert_same_structure(result, specs)
    for leaf, spec in zip(tf.nest.flatten(result), tf.nest.flatten(specs), strict=True):
        assert (leaf.dtype, leaf.shape) == (spec.dtype, spec.shape)
    results, state = run(query, 7)
    z = np.stack([_state.standard_normal(key, results.shape[1]).numpy() for key in state.noise.past_keys])
    expected = mechanism.cast_to_float32().inverse(7) @ z * 3.0
    low_precision = any(leaf.dtype.size < 4 for leaf in tf.nest.flatten(specs))
    assert np.abs(results - expected).max() <= (3e-2 if low_precision else 1e-5) * np.abs(expected).max()


@pytest.mark.parametrize("mechanism", [BLT, tff_mf.Tree(4), tff_mf.Dense(matrix=np.tri(4) / 2 + np.eye(4))])
def test_events_are_those_of_the_guarantee(mechanism):
    participation = tff_mf.MinSep(min_sep=2, max_participations=2)
    run = mechanism, 4, participation
    expected = tff_mf.guarantee(*run, noise_multiplier=1.5).dp_event()
    assert build(mechanism).dp_event(4, participation) == expected
    for every in (2, 3):
        query = queries.RestartedQuery(build(mechanism), restart_every=every)
        expected = tff_mf.guarantee(*run, noise_multiplier=1.5, restart_every=every).dp_event()
        assert query.dp_event(4, participation) == expected


def test_restarts_of_something_else_are_refused():
    with pytest.raises(TypeError, match="query"):
        queries.RestartedQuery(tfp.GaussianSumQuery(1.0, 1.0), restart_every=3)
    with pytest.raises(tff_mf.InputError, match="TEST ONLY"):
        queries.RestartedQuery(build(insecure_seed=1), restart_every=3).dp_event(6, tff_mf.SingleParticipation())


def adaptive(**changes):
    arguments = {"clip_norm": 2.0, "noise_multiplier": 0.0, "clients_per_round": 4, **changes}
    clipping = queries.AdaptiveClipping(count_stddev=arguments.pop("count_stddev", 0.0), learning_rate=1.0)
    mechanism = arguments.pop("mechanism", tff_mf.Tree(4))
    return queries.AdaptiveClippingQuery(mechanism, record_specs=SPECS["vector"], clipping=clipping, **arguments)


def record(norm):
    return tf.one_hot(2, 7) * norm


def test_noise_of_adaptive_clipping_is_in_proportion_to_the_clip_norm():
    query = adaptive(noise_multiplier=1.5, count_stddev=2.0)
    state = query.initial_global_state()._replace(clip_norm=tf.constant(8.0))
    results = []
    for _ in range(4):
        result, state, _ = query.get_noised_result(query.initial_sample_state(), state)
        results.append(result.numpy())
    z = np.stack([_state.standard_normal(key, 7).numpy() for key in state.noise.past_keys])
    np.testing.assert_allclose(results, tff_mf.Tree(4).inverse(4) @ z * 1.5 * 8.0, rtol=1e-4, atol=1e-4)
    counts = [float(_state.standard_normal(key, 1)[0]) for key in state.count_noise.past_keys]
    assert float(state.count) == pytest.approx(2.0 * sum(counts), rel=1e-5)
    assert not set(map(bytes, state.noise.past_keys.numpy())) & set(map(bytes, state.count_noise.past_keys.numpy()))
    metrics = query.derive_metrics(state)
    assert (float(metrics["noise_stddev"]), float(metrics["clip_norm"])) == (12.0, 8.0)


def test_adaptive_clipping_counts_within_a_half_whatever_a_client_sends():
    query = adaptive()
    for value, half in ((0.0, 0.5), (1.9, 0.5), (2.1, -0.5), (float("nan"), -0.5), (float("inf"), -0.5), (3e38, -0.5)):
        clipped, below = query.preprocess_record(
            tf.constant(2.0), record(1.0) * value if np.isfinite(value) else tf.fill([7], value)
        )
        assert float(below) == half
        assert np.linalg.norm(clipped) <= 2.0


def test_adaptive_clipping_pays_for_its_counts():
    participation = tff_mf.MinSep(min_sep=4, max_participations=3)
    query = queries.RestartedQuery(adaptive(noise_multiplier=3.0, count_stddev=5.0), restart_every=4)
    sums = tff_mf.guarantee(tff_mf.Tree(4), 12, participation, noise_multiplier=3.0, restart_every=4).mu
    counts = 3**0.5 / 5.0
    assert 1 / query.dp_event(12, participation).noise_multiplier == pytest.approx(np.hypot(sums, counts), rel=1e-9)


def released(query, rounds, cohorts):
    """Returns sums, float `[rounds, 7]`, and counts, `[rounds]`, of a query without noise; a cohort is its records."""
    state, sums, counts = query.initial_global_state(), [], []
    for cohort in cohorts:
        params, sample = query.derive_sample_params(state), query.initial_sample_state()
        for one in cohort:
            sample = query.accumulate_record(params, sample, one)
        before = state.count
        result, state, _ = query.get_noised_result(sample, state)
        sums.append(result.numpy())
        counts.append(float(state.count - before))
    assert len(sums) == rounds
    return np.array(sums), np.array(counts)


def test_no_client_moves_sums_and_counts_by_more_than_is_accounted_for():
    """Brute force on the graph: every client, below the clip norm or above it in each of its rounds, or zeroed out."""
    rounds, deviation, schema = 3, 3.0, tff_mf.MinSep(min_sep=2, max_participations=2)
    query = adaptive(mechanism=tff_mf.Tree(rounds), noise_multiplier=0.0, count_stddev=0.0)
    noised = adaptive(mechanism=tff_mf.Tree(rounds), noise_multiplier=deviation, count_stddev=deviation)
    encoder, others, worst, worst_count = tff_mf.Tree(rounds).encoder(rounds), [record(1.0), record(5.0)], 0.0, 0.0
    for pattern in schema.patterns(rounds):
        zeroed = released(query, rounds, [[*others, record(0.0)] if t in pattern else others for t in range(rounds)])
        for norms in itertools.product((1.0, 9.0), repeat=len(pattern)):
            own = dict(zip(pattern, norms, strict=True))
            there = released(query, rounds, [[*others, record(own[t])] if t in own else others for t in range(rounds)])
            sums = np.linalg.norm(encoder @ (there[0] - zeroed[0])) / (2.0 * deviation)
            counts = np.linalg.norm(there[1] - zeroed[1])
            worst, worst_count = max(worst, np.hypot(sums, counts / deviation)), max(worst_count, counts)
    claimed = tff_mf.adaptive_clipping_guarantee(rounds, schema, count_stddev=1.0).mu
    # A count moves by 1 in each of two rounds, and not by a half.
    assert worst_count == pytest.approx(2**0.5, rel=1e-6)
    assert worst_count <= claimed == pytest.approx(2**0.5, rel=1e-9)
    assert worst <= noised.guarantee(rounds, schema).mu == pytest.approx(worst, rel=1e-5)
    assert worst <= 1 / noised.dp_event(rounds, schema).noise_multiplier


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": 1e30}, "clip_norm"),
        ({"clients_per_round": 0}, "clients_per_round"),
        ({"count_stddev": -1.0}, "count_stddev"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
    ],
)
def test_bad_arguments_of_adaptive_clipping(changes, field):
    with pytest.raises(tff_mf.InputError, match=field):
        adaptive(**changes)


@pytest.mark.parametrize(
    ("changes", "field", "error"),
    [
        ({"clip_norm": 0.0}, "clip_norm", ValueError),
        ({"clip_norm": -1.0}, "clip_norm", ValueError),
        ({"clip_norm": float("nan")}, "clip_norm", ValueError),
        ({"clip_norm": float("inf")}, "clip_norm", ValueError),
        ({"clip_norm": 1e-60}, "clip_norm", ValueError),
        ({"clip_norm": "1"}, "clip_norm", TypeError),
        ({"noise_multiplier": -1.0}, "noise_multiplier", ValueError),
        ({"noise_multiplier": float("inf")}, "noise_multiplier", ValueError),
        ({"noise_multiplier": None}, "noise_multiplier", TypeError),
        ({"insecure_seed": 1.5}, "insecure_seed", TypeError),
        ({"specs": tf.TensorSpec([2], tf.int32)}, "int32", TypeError),
        ({"specs": tf.TensorSpec([None])}, "shape", ValueError),
        ({"specs": ()}, "record_specs", ValueError),
        ({"specs": tf.TensorSpec([0])}, "record_specs", ValueError),
        ({"specs": [3.0]}, "record_specs", TypeError),
        ({"mechanism": "b400"}, "mechanism", TypeError),
    ],
)
def test_bad_arguments(changes, field, error):
    with pytest.raises(error, match=field) as caught:
        build(**changes)
    assert isinstance(caught.value, tff_mf.InputError)
