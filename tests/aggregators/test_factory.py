"""The aggregator in TFF: types, noise, and requirements of existing pipelines."""

import collections

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.noise.tensorflow import _recursion, _state

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


# Few: test_noise_laws.py has the same law for every mechanism, in the graphs of this engine.
@pytest.mark.parametrize(
    ("mechanism", "name", "part"),
    [
        (BLT, "scalar", None),
        (tff_mf.BandedToeplitz.square_root(9), "model", None),
        # Large models are processed in parts, which the worker's TensorFlow writes in place.
        (tff_mf.BandedToeplitz.square_root(8), "long", 128),
        (tff_mf.Tree(12, variant="full"), "list", None),
        (tff_mf.Dense(matrix=np.tri(12) / 4 + np.eye(12)), "vector", None),
    ],
    ids=["blt", "banded", "in parts", "tree", "dense"],
)
def test_noise_is_the_inverse_times_the_recorded_noise_and_the_round_after_the_last_fails(
    mechanism, name, part, monkeypatch
):
    """In the worker, with the graphs that TFF traces, in which operators of tensors may behave differently."""
    monkeypatch.setattr(_recursion, "_LARGEST_PART", part or _recursion._LARGEST_PART)
    rounds = 12
    process, value = build(mechanism).create(VALUE_TYPES[name]), zeros(VALUE_TYPES[name])
    results, state = stream(process, value, rounds)
    z = np.stack([_state.standard_normal(key, results.shape[1]).numpy() for key in keys_of(state)])
    expected = mechanism.cast_to_float32().inverse(rounds) @ z * 1.5 * 2.0 / 4
    assert np.abs(results - expected).max() <= 1e-5 * np.abs(expected).max()
    if mechanism.max_rounds is None:
        assert np.all(np.isfinite(stream(process, value, 1, state)[0]))
    else:
        with pytest.raises(Exception, match=ENDED(rounds)):
            process.next(state, [value])


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
        z = np.stack([_state.standard_normal(key, 7).numpy() for key in known])
        expected = mechanism.inverse(3) @ z * 1.5 * 2.0 / 4
        np.testing.assert_allclose(results[begin : begin + 3], expected, rtol=1e-5, atol=1e-5)


def test_the_clip_norm_adapts_only_at_restarts():
    clipping = queries.AdaptiveClipping(count_stddev=0.0, target_quantile=0.5, learning_rate=1.0)
    factory = build(tff_mf.Tree(2), noise_multiplier=0.0, restart_every=2, adaptive_clipping=clipping)
    process = factory.create(VALUE_TYPES["scalar"])
    state, norms = process.initialize(), []
    for clients in ([3.0] * 4, [5.0] * 4, [0.1] * 4, [0.1] * 4, [0.1]):
        output = process.next(state, clients)
        state = output.state
        norms.append(output.measurements["dp_query_metrics"]["clip_norm"])
    up = 2.0 * np.exp(0.5)
    # Measured after the round, and after the restart at its end.
    np.testing.assert_allclose(norms, [2.0, up, up, 2.0, 2.0], rtol=1e-5)


def test_accountants_refuse_the_event_of_a_round_and_that_of_the_run_is_one_gaussian(of_scalars):
    state = of_scalars.next(of_scalars.initialize(), [1.0]).state
    event = tff.aggregators.differential_privacy.extract_dp_event_from_state(state)
    for accountant in (dp_accounting.rdp.RdpAccountant(), dp_accounting.pld.PLDAccountant()):
        with pytest.raises(dp_accounting.UnsupportedEventError):
            accountant.compose(dp_accounting.ComposedDpEvent([event] * 3))
    run = build(noise_multiplier=7.379).dp_event(2350, tff_mf.MinSep(min_sep=447, max_participations=5))
    assert 1 / (2 * run.noise_multiplier**2) == pytest.approx(0.195, rel=5e-3)


def test_insecure_seed_is_marked():
    factory = build(insecure_seed=3)
    assert factory.insecure
    with pytest.raises(tff_mf.InputError, match="TEST ONLY"):
        factory.dp_event(10, tff_mf.SingleParticipation())


@pytest.mark.parametrize(
    ("changes", "field", "error"),
    [
        ({"clip_norm": 0}, "clip_norm", ValueError),
        ({"noise_multiplier": -1.0}, "noise_multiplier", ValueError),
        ({"clients_per_round": 0}, "clients_per_round", ValueError),
        ({"clients_per_round": float("inf")}, "clients_per_round", ValueError),
        ({"clients_per_round": "4"}, "clients_per_round", TypeError),
        ({"insecure_seed": -4}, "insecure_seed", ValueError),
        ({"restart_every": 0}, "restart_every", ValueError),
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


def test_the_aggregator_composes_with_tffs_factories():
    inner = aggregators.build_mf_aggregator(tff_mf.Identity(), clip_norm=1.0, noise_multiplier=0.0, clients_per_round=2)
    zeroing = tff.aggregators.zeroing_factory(10.0, inner)
    process = zeroing.create(tff.TensorType(np.float32, [2]))
    output = process.next(process.initialize(), [[0.3, 0.4], [100.0, 0.0]])
    np.testing.assert_allclose(output.result, [0.15, 0.2], rtol=1e-5)
