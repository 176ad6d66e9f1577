"""The queries on their own: clipping, noise, events and what they refuse."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf

tf = pytest.importorskip("tensorflow")
import dp_accounting  # noqa: E402

from tff_mf import queries  # noqa: E402
from tff_mf.noise import _clipping, _keys  # noqa: E402

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
        assert event == dp_accounting.NoOpDpEvent()
        results.append(flat(result))
    return np.stack(results), state


@pytest.mark.parametrize("mechanism", [BLT, tff_mf.Identity()], ids=["blt", "identity"])
@pytest.mark.parametrize("specs", SPECS.values(), ids=SPECS)
def test_noise_is_the_inverse_times_the_recorded_noise(mechanism, specs):
    results, state = run(build(mechanism, specs), 12)
    z = np.stack([_keys.standard_normal(key, results.shape[1]).numpy() for key in state.noise.keys])
    low_precision = any(leaf.dtype.size < 4 for leaf in tf.nest.flatten(specs))
    tolerance = 3e-2 if low_precision else 1e-5
    np.testing.assert_allclose(results, mechanism.inverse(12) @ z * 3.0, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("specs", SPECS.values(), ids=SPECS)
def test_results_keep_structure_types_and_shapes(specs):
    query = build(specs=specs)
    result, _, _ = query.get_noised_result(query.initial_sample_state(), query.initial_global_state())
    tf.nest.assert_same_structure(result, specs)
    for leaf, spec in zip(tf.nest.flatten(result), tf.nest.flatten(specs), strict=True):
        assert (leaf.dtype, leaf.shape) == (spec.dtype, spec.shape)


def test_sum_of_clipped_records_plus_nothing_without_noise():
    results, _ = run(build(noise_multiplier=0.0), 1, [tf.ones([7]) * 0.1, tf.constant([30.0, 40, 0, 0, 0, 0, 0])])
    np.testing.assert_allclose(results[0], [0.1 + 1.2, 0.1 + 1.6, 0.1, 0.1, 0.1, 0.1, 0.1], rtol=2e-5)


float_leaves = st.lists(
    st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from([3e38, -3e38, 1e-40, 1e19, 0.0]),
    min_size=1,
    max_size=6,
)


@given(
    record=st.lists(float_leaves, min_size=1, max_size=3),
    clip_norm=st.floats(2**-20, 1e6, width=32),
    dtype=st.sampled_from(_clipping.LEAF_TYPES),
)
def test_no_record_exceeds_the_clip_norm(record, clip_norm, dtype):
    leaves = [tf.cast(tf.constant(leaf, tf.float32), dtype) for leaf in record]
    clipped = _clipping.clip_record(leaves, tf.constant(clip_norm, tf.float32))
    values = flat(clipped)
    assert np.all(np.isfinite(values))
    assert np.linalg.norm(values) <= np.float32(clip_norm)
    given_values = flat(leaves).astype(np.float32).astype(np.float64)
    if not np.all(np.isfinite(given_values)):
        assert not values.any()
    elif np.linalg.norm(given_values) < 0.98 * np.float32(clip_norm):
        np.testing.assert_array_equal(values, flat(leaves))


@pytest.mark.parametrize("size", [1, 1000, 200_000])
def test_clipping_holds_for_many_coordinates(size):
    record = tf.random.stateless_normal([size], [1, 2]) * 100
    clipped = _clipping.clip_record([record], tf.constant(1.0))[0].numpy().astype(np.float64)
    assert 0.9999 < np.linalg.norm(clipped) <= 1.0


def test_two_initial_states_and_two_steps_never_share_noise():
    query = build()
    assert not np.any(run(query, 1)[0] == run(query, 1)[0])
    _, state = run(query, 2)
    first, second = (flat(query.get_noised_result(query.initial_sample_state(), state)[0]) for _ in range(2))
    assert not np.any(first == second)


def test_event_of_a_run_is_one_gaussian_with_the_effective_noise_multiplier():
    participation = tff_mf.MinSep(min_sep=447, max_participations=5)
    event = build(noise_multiplier=7.379).dp_event(2350, participation)
    assert isinstance(event, dp_accounting.GaussianDpEvent)
    assert 1 / (2 * event.noise_multiplier**2) == pytest.approx(0.195, rel=5e-3)


def test_insecure_query_has_no_event_and_repeats_itself():
    query = build(insecure_seed=5)
    assert query.insecure
    np.testing.assert_array_equal(run(query, 3)[0], run(build(insecure_seed=5), 3)[0])
    with pytest.raises(tff_mf.InputError, match="TEST ONLY"):
        query.dp_event(10, tff_mf.SingleParticipation())


def test_metrics_are_the_round_alone():
    _, state = run(build(), 3)
    assert {name: int(value) for name, value in build().derive_metrics(state).items()} == {"round": 3}


def test_a_query_takes_its_own_mechanism_only():
    with pytest.raises(TypeError, match="build_query"):
        queries.BLTQuery(tff_mf.Identity(), record_specs=SPECS["vector"], clip_norm=1.0, noise_multiplier=1.0)


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
