"""The aggregator in TFF: types, noise, and requirements of existing pipelines."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.noise.tensorflow import _normals, _recursion

from ..conftest import ENDED
from .conftest import flat

BLT = tff_mf.BLT.production("b400")
VALUE_TYPES = {
    "scalar": tff.TensorType(np.float32),
    "vector": tff.TensorType(np.float32, [7]),
    "long": tff.TensorType(np.float32, [1000]),
    "model": tff.to_type(collections.OrderedDict(kernel=(np.float32, [3, 2]), bias=(np.float32, [2]))),
    "list": tff.to_type([(np.float32, [2]), (np.float64, [2])]),
}


def build(mechanism=BLT, **changes):
    arguments = {"clip_norm": 2.0, "noise_multiplier": 1.5, "clients_per_round": 4, **changes}
    return aggregators.build_mf_aggregator(mechanism, **arguments)


def zeros(value_type):
    specs = tff.types.type_to_tf_tensor_specs(value_type)
    return tf.nest.map_structure(lambda spec: np.zeros(spec.shape, spec.dtype.as_numpy_dtype), specs)


def stream(process, value, rounds, state=None):
    state = process.initialize() if state is None else state
    results = []
    for _ in range(rounds):
        output = process.next(state, [value, value])
        state = output.state
        results.append(flat(output.result))
    return np.stack(results), state


def keys_of(state):
    return state.query_state.numerator_state.noise.past_keys


# Large models are processed in parts, which the worker's TensorFlow writes in place.
@pytest.mark.parametrize(
    ("mechanism", "name", "part"),
    [(tff_mf.BandedToeplitz.square_root(8), "long", 128), (tff_mf.Tree(12, variant="full"), "list", None)],
    ids=["in parts", "tree"],
)
def test_noise_is_the_inverse_times_the_recorded_noise(mechanism, name, part, monkeypatch):
    """In the worker, with the graphs that TFF traces, in which operators of tensors may behave differently."""
    monkeypatch.setattr(_recursion, "_LARGEST_PART", part or _recursion._LARGEST_PART)
    results, state = stream(build(mechanism).create(VALUE_TYPES[name]), zeros(VALUE_TYPES[name]), 12)
    z = np.stack([_normals.standard_normal(key, results.shape[1]).numpy() for key in keys_of(state)])
    expected = mechanism.cast_to_float32().inverse(12) @ z * 1.5 * 2.0 / 4
    assert np.abs(results - expected).max() <= 1e-5 * np.abs(expected).max()


OPTIMIZED = tff_mf.optimize_blt(rounds=3, participation=tff_mf.SingleParticipation(), buffers=1)


@pytest.mark.parametrize(
    "build_of",
    [
        lambda rounds: build(rounds=rounds),
        lambda rounds: build(rounds=rounds, restart_every=2),
        lambda rounds: build(OPTIMIZED, rounds=None if rounds == 3 else rounds),
    ],
    ids=["one stream", "restarts", "optimized for three"],
)
def test_the_round_after_the_last_of_a_run_is_refused(build_of):
    process = build_of(3).create(VALUE_TYPES["vector"])
    value = zeros(VALUE_TYPES["vector"])
    _, state = stream(process, value, 3)
    with pytest.raises(Exception, match=ENDED(3)):
        process.next(state, [value])
    stream(build_of(4).create(VALUE_TYPES["vector"]), value, 4)


@pytest.fixture(scope="module")
def of_scalars():
    return build().create(VALUE_TYPES["scalar"])


def test_measurements_describe_only_the_noise(of_scalars):
    first = of_scalars.next(of_scalars.initialize(), [1.0])
    second = of_scalars.next(first.state, [0.0, float("nan"), 3.0])
    for output, step in ((first, 1), (second, 2)):
        metrics = collections.OrderedDict(round=step, noise_stddev=3.0, rows_in_use=4)
        assert output.measurements == collections.OrderedDict(dp_query_metrics=metrics, dp=())


def compiles(process):
    @tff.federated_computation(process.initialize.type_signature.result, process.next.type_signature.parameter[1])
    def one_round(state, value):
        output = process.next(state, value)
        return output.state, tff.federated_zip((output.result, output.measurements))

    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(one_round)
    return isinstance(form, tff.backends.mapreduce.MapReduceForm)


# BLTs and banded matrices are compiled in test_record_sums.py and test_export.py.
COMPILED = {
    "tree": (tff_mf.Tree(6, variant="online"), {}),
    "dense": (tff_mf.Dense(matrix=np.eye(6)), {}),
    "adaptive": (tff_mf.Tree(4), {"restart_every": 4, "adaptive_clipping": queries.AdaptiveClipping(count_stddev=1.0)}),
    "secure": (
        BLT,
        {
            "grid": tff_mf.Grid(bits=16, max_clients=4),
            "record_aggregation_factory": tff.aggregators.SecureSumFactory(2**16),
        },
    ),
}


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("name", COMPILED)
def test_every_kind_of_state_and_sum_compiles_to_both_forms(name):
    mechanism, changes = COMPILED[name]
    assert compiles(build(mechanism, **changes).create(VALUE_TYPES["model"]))


def test_noise_restarts_after_restart_every_rounds():
    mechanism = tff_mf.Tree(4)
    process = build(mechanism, restart_every=4).create(VALUE_TYPES["vector"])
    value, state, keys, results = zeros(VALUE_TYPES["vector"]), None, [], []
    for step in range(8):
        result, state = stream(process, value, 1, state)
        noise = state.query_state.numerator_state.inner_query_state.noise
        assert int(noise.round) == (step + 1) % 4
        results.append(result[0])
        if step in (2, 6):
            keys.append(noise.past_keys)
    assert not np.any(keys[0] == keys[1])
    for begin, known in ((0, keys[0]), (4, keys[1])):
        z = np.stack([_normals.standard_normal(key, 7).numpy() for key in known])
        expected = mechanism.inverse(3) @ z * 1.5 * 2.0 / 4
        np.testing.assert_allclose(results[begin : begin + 3], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "field", "error"),
    [
        ({"clients_per_round": 0}, "clients_per_round", ValueError),
        ({"clients_per_round": float("inf")}, "clients_per_round", ValueError),
        ({"clients_per_round": "4"}, "clients_per_round", TypeError),
        ({"insecure_seed": -4}, "insecure_seed", ValueError),
        ({"restart_every": 2.5}, "restart_every", TypeError),
        ({"mechanism": tff_mf.Tree(4), "restart_every": 5}, "rounds", ValueError),
        ({"adaptive_clipping": queries.AdaptiveClipping(count_stddev=1.0)}, "restart_every", ValueError),
        ({"adaptive_clipping": 3, "restart_every": 5}, "clipping", TypeError),
        ({"record_aggregation_factory": tff.aggregators.MeanFactory()}, "record_aggregation_factory", TypeError),
        (
            {"record_aggregation_factory": tff.aggregators.EncodedSumFactory.quantize_above_threshold(8, 20)},
            "enlarge a clipped value",
            TypeError,
        ),
        ({"mechanism": 3}, "mechanism", TypeError),
        ({"mechanism": "no/such/file"}, "no/such/file", ValueError),
    ],
)
def test_bad_arguments_are_refused_when_the_factory_is_built(changes, field, error):
    with pytest.raises(error, match=field) as caught:
        build(**changes)
    assert isinstance(caught.value, tff_mf.InputError)
