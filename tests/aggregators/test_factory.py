"""The aggregator in TFF: types, noise, and what existing pipelines need of it."""

import collections

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.noise import _keys

BLT = tff_mf.BLT.production("b400")
MECHANISMS = pytest.mark.parametrize("mechanism", [BLT, tff_mf.Identity()], ids=["blt", "identity"])
VALUE_TYPES = {
    "scalar": tff.TensorType(np.float32),
    "vector": tff.TensorType(np.float32, [7]),
    "model": tff.to_type(collections.OrderedDict(kernel=(np.float32, [3, 2]), bias=(np.float32, [2]))),
    "list": tff.to_type([(np.float32, [2]), (np.float64, [2])]),
}


def build(mechanism=BLT, **changes):
    arguments = {"clip_norm": 2.0, "noise_multiplier": 1.5, "clients_per_round": 4, **changes}
    return aggregators.build_mf_aggregator(mechanism, **arguments)


def zeros(value_type):
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    return tf.nest.map_structure(lambda spec: np.zeros(spec.shape, spec.dtype.as_numpy_dtype), specs)


def flat(structure):
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(structure)])


def stream(process, value, rounds, state=None):
    state = process.initialize() if state is None else state
    results = []
    for _ in range(rounds):
        output = process.next(state, [value, value])
        state = output.state
        results.append(flat(output.result))
    return np.stack(results), state


def keys_of(state):
    return state.query_state.numerator_state.noise.keys


@MECHANISMS
@pytest.mark.parametrize("name", VALUE_TYPES)
def test_type_signature_in_full(mechanism, name):
    value_type = VALUE_TYPES[name]
    process = build(mechanism).create(value_type)
    dimension = flat(zeros(value_type)).size
    rows = [(np.float32, [dimension])] * (BLT.buffers if mechanism is BLT else 0)
    noise = collections.OrderedDict(round=np.int64, keys=(np.int64, [None, 2]), rows=tff.StructType(rows))
    state_type = tff.FederatedType(
        collections.OrderedDict(
            query_state=collections.OrderedDict(
                numerator_state=collections.OrderedDict(noise=noise), denominator=np.float32
            ),
            agg_state=(),
            dp_event=collections.OrderedDict(module_name=np.str_, class_name=np.str_),
            is_init_state=np.bool_,
        ),
        tff.SERVER,
    )
    measurements_type = collections.OrderedDict(dp_query_metrics=collections.OrderedDict(round=np.int64), dp=())
    expected_next = tff.FunctionType(
        collections.OrderedDict(state=state_type, value=tff.FederatedType(value_type, tff.CLIENTS)),
        tff.templates.MeasuredProcessOutput(
            state=state_type,
            result=tff.FederatedType(value_type, tff.SERVER),
            measurements=tff.FederatedType(measurements_type, tff.SERVER),
        ),
    )
    assert process.initialize.type_signature.is_equivalent_to(tff.FunctionType(None, state_type))
    assert process.next.type_signature.is_equivalent_to(expected_next)


@MECHANISMS
@pytest.mark.parametrize("name", VALUE_TYPES)
def test_noise_is_the_inverse_times_the_recorded_noise(mechanism, name):
    value = zeros(VALUE_TYPES[name])
    results, state = stream(build(mechanism).create(VALUE_TYPES[name]), value, 8)
    z = np.stack([_keys.standard_normal(key, results.shape[1]).numpy() for key in keys_of(state)])
    np.testing.assert_allclose(results, mechanism.inverse(8) @ z * 1.5 * 2.0 / 4, rtol=1e-5, atol=1e-5)


@MECHANISMS
def test_covariance_through_tff(mechanism):
    """2,000 streams of six rounds at once: the coordinates of a model are independent."""
    dimension, rounds = 2000, 6
    value_type = tff.TensorType(np.float32, [dimension])
    results, _ = stream(build(mechanism).create(value_type), np.zeros(dimension, np.float32), rounds)
    white = mechanism.encoder(rounds) @ results * 4 / (1.5 * 2.0)
    covariance = white @ white.T / dimension

    def plausible(scale):
        total = dimension * np.trace(covariance) / scale**2
        degrees = dimension * rounds
        return 2 * min(scipy.stats.chi2.cdf(total, degrees), scipy.stats.chi2.sf(total, degrees)) > 1e-6

    correlations = dimension * covariance[np.triu_indices(rounds, 1)] ** 2
    assert scipy.stats.chi2.sf(correlations.sum(), correlations.size) > 1e-6
    assert plausible(1.0)
    assert not plausible(1.1)


def test_two_initial_states_and_two_steps_of_one_state_never_share_noise():
    process = build().create(VALUE_TYPES["vector"])
    value = zeros(VALUE_TYPES["vector"])
    first, state = stream(process, value, 1)
    second, _ = stream(process, value, 1)
    assert not np.any(first == second)
    again = [stream(process, value, 1, state)[0] for _ in range(2)]
    assert not np.any(again[0] == again[1])


def test_the_mean_is_over_the_constant_and_clients_are_clipped():
    process = build(noise_multiplier=0.0).create(VALUE_TYPES["scalar"])
    output = process.next(process.initialize(), [1.0, 1.0, 100.0, float("nan"), float("-inf")])
    np.testing.assert_allclose(output.result, (1 + 1 + 2) / 4, rtol=1e-4)


def test_measurements_are_the_round_alone():
    process = build().create(VALUE_TYPES["scalar"])
    output = process.next(process.initialize(), [1.0])
    assert output.measurements == collections.OrderedDict(dp_query_metrics=collections.OrderedDict(round=1), dp=())


@MECHANISMS
def test_compiles_to_map_reduce_form_and_distribute_aggregate_form(mechanism):
    process = build(mechanism).create(VALUE_TYPES["model"])

    @tff.federated_computation(process.initialize.type_signature.result, process.next.type_signature.parameter[1])
    def one_round(state, value):
        output = process.next(state, value)
        return output.state, tff.federated_zip((output.result, output.measurements))

    assert isinstance(
        tff.backends.mapreduce.get_map_reduce_form_for_computation(one_round), tff.backends.mapreduce.MapReduceForm
    )
    assert isinstance(
        tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(one_round),
        tff.backends.mapreduce.DistributeAggregateForm,
    )


def test_the_event_of_a_round_is_no_op_and_that_of_the_run_one_gaussian():
    factory = build(noise_multiplier=7.379)
    process = factory.create(VALUE_TYPES["scalar"])
    state = process.next(process.initialize(), [1.0]).state
    event = tff.aggregators.differential_privacy.extract_dp_event_from_state(state)
    assert event == dp_accounting.NoOpDpEvent()
    run = factory.dp_event(2350, tff_mf.MinSep(min_sep=447, max_participations=5))
    assert 1 / (2 * run.noise_multiplier**2) == pytest.approx(0.195, rel=5e-3)


def test_an_artifact_and_its_path_are_the_same(tmp_path):
    path = tmp_path / "b400.safetensors"
    tff_mf.save(BLT, path)
    value = zeros(VALUE_TYPES["vector"])
    runs = [stream(build(given, insecure_seed=3).create(VALUE_TYPES["vector"]), value, 3)[0] for given in (BLT, path)]
    np.testing.assert_array_equal(*runs)


def test_insecure_seed_is_marked():
    factory = build(insecure_seed=3)
    assert factory.insecure
    with pytest.raises(tff_mf.InputError, match="TEST ONLY"):
        factory.dp_event(10, tff_mf.SingleParticipation())


@pytest.mark.parametrize(
    ("changes", "field", "error"),
    [
        ({"clip_norm": 0}, "clip_norm", ValueError),
        ({"clip_norm": float("nan")}, "clip_norm", ValueError),
        ({"noise_multiplier": -1.0}, "noise_multiplier", ValueError),
        ({"clients_per_round": 0}, "clients_per_round", ValueError),
        ({"clients_per_round": float("inf")}, "clients_per_round", ValueError),
        ({"clients_per_round": "4"}, "clients_per_round", TypeError),
        ({"insecure_seed": -4}, "insecure_seed", ValueError),
        ({"mechanism": 3}, "mechanism", TypeError),
        ({"mechanism": "no/such/file"}, "no/such/file", ValueError),
    ],
)
def test_bad_arguments_are_refused_when_the_factory_is_built(changes, field, error):
    with pytest.raises(error, match=field) as caught:
        build(**changes)
    assert isinstance(caught.value, tff_mf.InputError)


def test_values_that_are_no_floats_are_refused():
    with pytest.raises(TypeError, match="int32"):
        build().create(tff.TensorType(np.int32, [2]))
