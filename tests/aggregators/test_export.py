"""Exported stages, run by TensorFlow, compared with TFF."""

import collections
import json
import re
import stat

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators, queries

from ..conftest import ENDED

ROUNDS, CLIENTS, EXAMPLES = 8, 2, 6
# With a matrix and rows of floats; tests/experiments/test_bundles.py has integers.
BANDED = tff_mf.Banded(values=np.vstack([np.full((1, 600), 1.2), np.full((5, 600), 0.1)]))


def model():
    layers = [tf.keras.layers.InputLayer(input_shape=(5,)), tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(1)]
    spec = collections.OrderedDict(x=tf.TensorSpec([None, 5]), y=tf.TensorSpec([None, 1]))
    return tff.learning.models.functional_model_from_keras(
        tf.keras.Sequential(layers), tf.keras.losses.MeanSquaredError(), input_spec=spec
    )


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(1)
    features = generator.normal(size=(CLIENTS, EXAMPLES, 5)).astype(np.float32)
    return features, features.sum(axis=2, keepdims=True)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with an export, its process, and the initial weights."""
    root = tmp_path_factory.mktemp("exported") / "banded"
    learned = model()
    weights = tff.learning.models.ModelWeights(*learned.initial_weights)
    trained = process(learned, aggregator(BANDED))
    description = aggregators.export_process(
        trained,
        root,
        initial_weights=weights,
        batch_size=4,
        client_epochs=2,
        max_examples=10,
    )
    (root / "stages.json").write_text(json.dumps(description))
    return root, trained, weights


def aggregator(mechanism, **changes):
    arguments = {"clip_norm": 0.5, "noise_multiplier": 0.5, "clients_per_round": CLIENTS, "insecure_seed": 3}
    return aggregators.build_mf_aggregator(mechanism, **{**arguments, "rounds": ROUNDS, **changes})


def process(learned, mean):
    return tff.learning.algorithms.build_unweighted_fed_avg(
        learned,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.05),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, 0.5),
        model_aggregator=mean,
    )


def secrets(state):
    """Bytes that reveal noise or state: every key, and the first bytes of rows and momentum."""
    for name, value in state.items():
        if name.endswith("__noise__keys"):
            yield from (key.tobytes() for key in value)
        elif "__rows__" in name or "__accumulator__" in name or "__coefficients__" in name:
            yield value.tobytes()[:12]


def test_files_of_an_export(exported):
    root, _, weights = exported
    description = json.loads((root / "stages.json").read_text())
    assert max(stage["graph_bytes"] for stage in description["stages"].values()) < 5e6
    initial = root / "server" / "initial.safetensors"
    assert stat.S_IMODE(initial.stat().st_mode) == 0o600
    fed = safetensors.numpy.load_file(initial)
    # Neither the matrix nor the model is in a graph.
    assert fed["constant__0"].size >= 6 * 600
    np.testing.assert_array_equal(fed["model__trainable__0"], weights.trainable[0])
    for name, stage in description["stages"].items():
        graph = (root / stage["path"] / "saved_model.pb").read_bytes()
        assert fed["constant__0"].tobytes()[:200] not in graph, name


@pytest.fixture(scope="module")
def stages(exported):
    """The stages of one export as functions in TensorFlow, and valid inputs for each stage."""
    root, _, _ = exported
    described = json.loads((root / "stages.json").read_text())["stages"]
    loaded = {name: tf.saved_model.load(str(root / stage["path"])) for name, stage in described.items()}
    fed = safetensors.numpy.load_file(root / "server" / "initial.safetensors")

    def running(name):
        return lambda given: loaded[name].signatures["serving_default"](
            **{each: tf.convert_to_tensor(given[each]) for each in described[name]["inputs"]}
        )

    run = {name: running(name) for name in described}
    state, total = run["initialize"](fed), run["zero"]({})
    examples = {"examples__x": np.ones((3, 5), np.float32), "examples__y": np.ones((3, 1), np.float32)}
    sent = run["prepare"](state)
    right = {
        **fed,
        **state,
        **sent,
        **examples,
        **total,
        **as_other(total),
        **run["report"](total),
        **run["work"]({**examples, **sent}),
    }
    return run, {name: {each: right[each] for each in described[name]["inputs"]} for name in described}


def as_other(total):
    return {name.replace("sum", "other", 1): value for name, value in total.items()}


@pytest.fixture(scope="module")
def ended(exported, stages, data):
    """The state after all rounds, computed by the graphs alone, which run no other."""
    run, _ = stages
    fed = safetensors.numpy.load_file(exported[0] / "server" / "initial.safetensors")
    state = run["initialize"](fed)
    for _ in range(ROUNDS):
        sent, sums = run["prepare"](state), [run["zero"]({}), run["zero"]({})]
        for client, (features, targets) in enumerate(zip(*data, strict=True)):
            update = run["work"]({"examples__x": features, "examples__y": targets, **sent})
            sums[client % 2] = run["accumulate"]({**sums[client % 2], **update})
        total = run["merge"]({**sums[0], **as_other(sums[1])})
        result = run["update"]({**state, **run["report"](total)})
        state = {name: value for name, value in result.items() if name.startswith("state__")}
    with pytest.raises(tf.errors.InvalidArgumentError, match=ENDED(ROUNDS)):
        run["update"]({**state, **run["report"](run["zero"]({}))})
    return {name: np.asarray(value) for name, value in state.items() if value.dtype != tf.string}


def test_exported_stages_give_the_model_of_tff(exported, ended, data):
    _, trained, weights = exported
    clients = []
    for features, targets in zip(*data, strict=True):
        examples = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=features, y=targets))
        clients.append(examples.repeat(2).take(10).batch(4))
    state = trained.set_model_weights(trained.initialize(), weights)
    with aggregators.resident_context():
        for _ in range(ROUNDS):
            state = trained.next(state, clients).state
        expected = [np.asarray(weight) for weight in trained.get_model_weights(state).trainable]
    found = [ended[f"state__global_model_weights__trainable__{index}"] for index in range(len(expected))]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert any(np.abs(one - np.asarray(start)).max() > 0.1 for one, start in zip(found, weights.trainable, strict=True))


def test_devices_receive_neither_keys_nor_state(exported, ended):
    folder = exported[0]
    on_device = b"".join(path.read_bytes() for path in sorted((folder / "device").rglob("*")) if path.is_file())
    searched = [secret for secret in secrets(ended) if secret.strip(b"\0")]
    assert len(searched) > ROUNDS
    assert not any(secret in on_device for secret in searched)
    assert b"urandom" not in on_device
    assert b"noise__" not in on_device
    description = json.loads((folder / "stages.json").read_text())
    assert not any("state" in given or "noise" in given for given in description["stages"]["work"]["inputs"])


def wrong(value):
    """Values of another type, of another number of dimensions, and of another shape."""
    value = np.asarray(value)
    if value.dtype == object:
        return [np.array([b"text"] * 2, object), np.float32(0)]
    kinds = [kind for kind in (np.float64, np.float32, np.int64) if kind != value.dtype]
    shapes = [(1, *value.shape), (*value.shape[:-1], value.shape[-1] + 1) if value.ndim else (7,)]
    return [*(value.astype(kind) for kind in kinds), *(np.zeros(shape, value.dtype) for shape in shapes)]


# Inputs that belong to a stage's structures but that it does not use.
UNREAD = {"prepare": "aggregator|finalizer", "report": "clipped|zeroed", "update": "dp_event|is_init_state"}


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("name", ["prepare", "work", "accumulate", "merge", "report", "update", "initialize"])
def test_a_graph_refuses_inputs_of_another_shape_or_type(name, stages):
    """The graph itself has to refuse: nothing else checks a call of a signature from other languages."""
    run, right = stages
    run[name](right[name])
    accepted, tried = [], 0
    for each, value in right[name].items():
        if name in UNREAD and re.search(UNREAD[name], each):
            continue
        for other in wrong(value):
            tried += 1
            try:
                run[name]({**right[name], each: other})
            except tf.errors.InvalidArgumentError:
                continue
            accepted.append((each, other.dtype, other.shape))
    assert accepted == []
    assert tried >= 10


def test_the_server_clips_updates_and_counts_those_that_it_changed(stages):
    run, right = stages
    honest = {name: value for name, value in right["accumulate"].items() if name.startswith("update__")}
    (clipped,) = (name for name in right["accumulate"] if name.endswith("__clipped"))
    (zeroed,) = (name for name in right["accumulate"] if name.endswith("__zeroed"))

    def filled(value):
        return {name: np.full(each.shape, value, np.float32) for name, each in honest.items()}

    first = next(iter(honest))
    updates = {
        "honest": honest,
        "long": filled(3e5),
        "one NaN": {**honest, first: np.full(honest[first].shape, np.nan, np.float32)},
        "infinite": filled(np.inf),
        "too long": filled(3e38),
    }
    norms, total = {}, run["zero"]({})
    for sender, update in updates.items():
        alone = {name: value.numpy() for name, value in run["accumulate"]({**run["zero"]({}), **update}).items()}
        counted = {name: int(alone.pop(name)) for name in (clipped, zeroed)}
        assert counted == {clipped: sender == "long", zeroed: sender not in ("honest", "long")}
        norms[sender] = np.sqrt(sum(np.sum(np.square(value, dtype=np.float64)) for value in alone.values()))
        total = run["accumulate"]({**total, **update})
    for name, value in honest.items():
        added = run["accumulate"]({**run["zero"]({}), **honest})[name.replace("update__1", "sum__1__total")]
        assert added.numpy().tobytes() == value.numpy().tobytes()
    assert 0.4999 < norms["long"] <= 0.5
    assert [norms[sender] for sender in ("one NaN", "infinite", "too long")] == [0, 0, 0]
    both = run["merge"]({**total, **as_other(total)})
    assert (int(both[clipped]), int(both[zeroed])) == (2, 6)
    assert all(np.all(np.isfinite(value)) for value in both.values())
    reported = run["report"](both)
    after = run["update"]({**right["update"], **reported})
    assert not any(name.endswith(("clipped", "zeroed")) for name in (*reported, *after))


def test_tensorflow_lite_trains_the_same_model(exported, data):
    root, _, _ = exported
    description = json.loads((root / "stages.json").read_text())
    runner = tf.lite.Interpreter(str(root / description["lite"]["path"])).get_signature_runner()
    work = tf.saved_model.load(str(root / "device" / "work"))
    fed = {
        name: np.random.default_rng(2).normal(size=spec["shape"]).astype(spec["dtype"])
        for name, spec in description["stages"]["work"]["inputs"].items()
        if name.startswith("sent__")
    }
    fed |= {"examples__x": data[0][0], "examples__y": data[1][0]}
    expected = work.signatures["serving_default"](**{name: tf.constant(value) for name, value in fed.items()})
    for name, value in runner(**fed).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)


def test_a_process_that_cannot_be_exported_is_refused(tmp_path, exported):
    _, trained, weights = exported
    with pytest.raises(tff_mf.InputError, match="process"):
        aggregators.export_process(trained.next, tmp_path / "a", initial_weights=weights, batch_size=4)
    with pytest.raises(tff_mf.InputError, match="batch_size"):
        aggregators.export_process(trained, tmp_path / "a", initial_weights=weights, batch_size=0)
    fewer = tff.learning.models.ModelWeights(weights.trainable[:1], [])
    with pytest.raises(tff_mf.InputError, match="initial_weights has 1 tensors"):
        aggregators.export_process(trained, tmp_path / "b", initial_weights=fewer, batch_size=4)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {
                "record_aggregation_factory": tff.aggregators.SecureSumFactory(2**16),
                "grid": tff_mf.Grid(bits=16, max_clients=10),
            },
            "secure sums",
        ),
        ({"record_aggregation_factory": tff.aggregators.SumFactory()}, "a sum that does not clip"),
        (
            {"restart_every": 4, "adaptive_clipping": queries.AdaptiveClipping(count_stddev=1.0)},
            "does not clip.*without adaptive_clipping",
        ),
    ],
    ids=["secure", "plain", "adaptive"],
)
def test_a_process_without_clipping_on_the_server_is_refused(changes, reason, tmp_path, exported):
    learned = process(model(), aggregator(tff_mf.Identity(), **changes))
    with pytest.raises(tff_mf.InputError, match=reason):
        aggregators.export_process(learned, tmp_path / "out", initial_weights=exported[2], batch_size=4)


def test_a_process_that_sends_rows_of_noise_to_clients_is_refused(tmp_path, exported):
    _, trained, weights = exported
    inner = trained
    state_type = inner.next.type_signature.parameter[0]

    @tff.tensorflow.computation(state_type.member)
    def with_a_row(state):
        weights = state.global_model_weights
        row = state.aggregator.query_state.numerator_state.noise.rows[0]
        first, *rest = weights.trainable
        leak = tff.learning.models.ModelWeights((first + row[0], *rest), ())
        return state._replace(global_model_weights=leak) if hasattr(state, "_replace") else state

    @tff.federated_computation(state_type, inner.next.type_signature.parameter[1])
    def leaking(state, data):
        return inner.next(tff.federated_map(with_a_row, state), data)

    other = tff.learning.templates.LearningProcess(
        inner.initialize, leaking, inner.get_model_weights, inner.set_model_weights
    )
    with pytest.raises(tff_mf.InputError, match="noise__rows__0, which is secret"):
        aggregators.export_process(other, tmp_path / "out", initial_weights=weights, batch_size=4)
