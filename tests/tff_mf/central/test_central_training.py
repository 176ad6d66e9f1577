"""Central training of whole models: its noise, its sensitivity, its end, and what it writes."""

import dataclasses
import pickle
import stat
import zipfile
from unittest import mock

import numpy as np
import pytest

import tff_mf
from tff_mf.base import checkpoint_files

tf = pytest.importorskip("tensorflow")
import tensorflow_privacy as tfp  # noqa: E402

from tff_mf.frameworks import keras  # noqa: E402
from tff_mf.noise.tensorflow import _normals  # noqa: E402

N, D = 6, 3


class Recorder(tf.keras.optimizers.Optimizer):
    """Adds up what it is given, and keeps what it was given in each step."""

    def __init__(self, rounds, fails_at=-1):
        super().__init__(name="Recorder")
        self._learning_rate = self._build_learning_rate(1.0)
        self.log = tf.Variable(tf.zeros([rounds, D]))
        self.rate = tf.Variable(1.0)
        self.fails_at = tf.Variable(fails_at, dtype=tf.int64)

    def update_step(self, gradient, variable):
        with tf.control_dependencies([gradient]):
            check = tf.debugging.assert_none_equal(self.iterations, self.fails_at, message="the optimizer fails")
        with tf.control_dependencies([check]):
            self.log.scatter_nd_update([[self.iterations]], tf.reshape(gradient, [1, D]))
        variable.assign_add(self.rate * gradient)

    def get_config(self):
        return {"name": "Recorder"}


def linear(optimizer="sgd"):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=(D,))])
    model.set_weights([np.full([D, 1], 0.25)])
    model.compile(optimizer, "mean_squared_error")
    return model


def compiled(*, outputs=1, **more):
    inputs = tf.keras.Input((D,))
    dense = [tf.keras.layers.Dense(1)(inputs) for _ in range(outputs)]
    model = tf.keras.Model(inputs, dense[0] if outputs == 1 else dense)
    model.compile("sgd", "mean_squared_error", **more)
    return model


X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
Y = np.full([N, 1], 9.0, np.float32)
ZEROS = np.zeros([N, D], np.float32)
ORDER = tff_mf.Order(sampling=tff_mf.FixedEpoch(min_sep=3, max_participations=3), examples=N, batch_size=2, rounds=9)


def training(mechanism=None, *, model=None, x=X, y=Y, order=ORDER, noise_multiplier=2.0, **arguments):
    plan = tff_mf.Plan(
        mechanism=tff_mf.Identity() if mechanism is None else mechanism,
        rounds=order.rounds,
        sampling=order.sampling,
        noise_multiplier=noise_multiplier,
        clip_norm=0.5,
        clients_per_round=order.batch_size,
        cohort=order.batch_size,
        secret_cohorts=order.is_sampled,
        **{"delta": 1e-3, **arguments},
    )
    return keras.Training(linear() if model is None else model, x, y, plan, seed=order.seed)


def recorded(mechanism=None, *, rounds=ORDER.rounds, fails_at=-1, **arguments):
    model = linear(Recorder(rounds, fails_at))
    return training(mechanism, model=model, **arguments), model.optimizer


def expected_noise(trained, mechanism, divisor=2.0):
    keys = trained._state.noise.past_keys
    z = np.stack([_normals.standard_normal(key, D).numpy() for key in keys])
    return mechanism.cast_to_float32().inverse(ORDER.rounds)[: len(z), : len(z)] @ z * (2.0 * 0.5 / divisor)


MECHANISMS = {
    "identity": tff_mf.Identity(),
    "blt": tff_mf.BLT.production("b400"),
    "banded": tff_mf.BandedToeplitz.square_root(3),
    "tree": tff_mf.Tree(ORDER.rounds),
}


@pytest.mark.parametrize("name", ["banded", "tree"])
def test_noise_of_fit_is_the_inverse_times_z(name):
    """On examples whose gradient is zero, over several calls of fit, in which no key is drawn twice."""
    mechanism = MECHANISMS[name]
    trained, optimizer = recorded(mechanism, x=ZEROS)
    trained.fit(epochs=1)
    trained.fit(epochs=2)
    np.testing.assert_allclose(optimizer.log, expected_noise(trained, mechanism), atol=1e-5)
    np.testing.assert_allclose(trained.model.get_weights()[0][:, 0], 0.25 + np.sum(optimizer.log, axis=0), atol=1e-5)
    keys = trained._state.noise.past_keys.numpy()
    assert len(np.unique(keys)) == keys.size == 2 * ORDER.rounds


def test_no_example_moves_the_releases_by_more_than_the_sensitivity():
    """Brute force over the whole pipeline, without noise and with weights that stay: zero out one example."""
    examples = X * 1e-2
    # Clipped, and in all rounds of the schema's first pattern.
    examples[ORDER.batches(0, 1)[0]] = [[5, 0, 0], [1e6, 3e6, 0]]

    def releases(x):
        trained, optimizer = recorded(x=x, noise_multiplier=0.0)
        optimizer.rate.assign(0.0)
        trained.fit()
        return optimizer.log.numpy().astype(np.float64) * ORDER.batch_size

    whole, worst = releases(examples), dict.fromkeys(MECHANISMS, 0.0)
    for index in range(N):
        zeroed = examples.copy()
        zeroed[index] = 0
        change = whole - releases(zeroed)
        taken = np.flatnonzero(np.any(change != 0, axis=1))
        assert ORDER.participation.allows(taken.tolist())
        for name, mechanism in MECHANISMS.items():
            moved = np.linalg.norm(mechanism.encoder(ORDER.rounds) @ change)
            bound = 0.5 * tff_mf.sensitivity(mechanism, ORDER.rounds, ORDER.participation)
            # float32 sums with and without the example differ by their rounding.
            assert moved <= bound * (1 + 1e-6)
            worst[name] = max(worst[name], moved / bound)
    assert min(worst.values()) > 0.99


class Remembering(tff_mf.Order):
    """An order that remembers the batches that it drew."""

    def batches(self, begin, count, *, secret=None):
        drawn = super().batches(begin, count, secret=secret)
        vars(self).setdefault("drawn", {}).update(enumerate(drawn, begin))
        return drawn


def test_a_sampled_training_sums_the_batches_that_were_drawn():
    sampling = tff_mf.CyclicPoisson(groups=2, population=N, clients_per_round=1)
    order = Remembering(sampling=sampling, examples=N, batch_size=1, rounds=40)
    x = np.eye(N, D, dtype=np.float32)
    trained, optimizer = recorded(rounds=40, order=order, noise_multiplier=0.0, x=x)
    trained._order = order
    trained.fit()
    rows = [order.drawn[step][order.drawn[step] >= 0].tolist() for step in range(40)]
    # Of 40 rounds with one example on average; that none is empty, or none has two, has probability 1e-5.
    assert min(map(len, rows)) == 0 < 1 < max(map(len, rows))
    for step, row in enumerate(rows):
        # Example i has x = e_i, or 0, and its clipped gradient is far from the target: −0.5 in coordinate i.
        expected = np.sum([-0.5 * np.eye(N, D)[index] for index in row], axis=0) if row else np.zeros(D)
        np.testing.assert_allclose(optimizer.log[step], expected, atol=1e-5)


def secret_order(sampling, rounds=12):
    return tff_mf.Order(sampling=sampling, examples=N, batch_size=2, rounds=rounds)


SECRET = {
    "balls in bins": tff_mf.BallsInBins(groups=3),
    "b-min-sep": tff_mf.BMinSep.of_population(min_sep=2, population=N, clients_per_round=2),
}


@pytest.mark.parametrize("name", SECRET)
def test_secret_batches_outlast_a_training_and_two_trainings_share_none(tmp_path, name):
    """An example that changed its group on resumption would take part in rounds of both."""
    order, path = secret_order(SECRET[name]), tmp_path / "training"

    def made():
        model = linear(Recorder(12))
        return training(
            model=model, order=order, noise_multiplier=0.0, x=np.eye(N, D, dtype=np.float32)
        ), model.optimizer

    first, begun = made()
    first.fit(epochs=2)
    first.save(path)
    second, resumed = made()
    drawn = first._batches(0, 12)
    assert not np.array_equal(second._batches(0, 12), drawn)
    second.restore(path)
    second.fit()
    np.testing.assert_array_equal(second._batches(0, 12), drawn)
    sums = np.concatenate([begun.log[:6], resumed.log[6:]])
    for step, row in enumerate(drawn):
        expected = sum([-0.25 * np.eye(N, D)[index] for index in row[row >= 0]], np.zeros(D))
        np.testing.assert_allclose(sums[step], expected, atol=1e-5)
    for example in range(N):
        assert order.participation.allows(np.flatnonzero(np.any(drawn == example, axis=1)).tolist())


def test_no_more_rounds_than_the_order_has():
    trained = training(noise_multiplier=1.0)
    with pytest.raises(tff_mf.InputError, match="epochs=4 is more than the 3 that are left"):
        trained.fit(epochs=4)
    trained.fit()
    with pytest.raises(tff_mf.InputError, match="9 of the 9 rounds"):
        trained.fit()
    before = trained.model.get_weights()[0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="9 rounds, and all of them have run"):
        trained._run(tf.zeros([1, 2], tf.int32), tf.constant(9, tf.int64))
    np.testing.assert_array_equal(trained.model.get_weights()[0], before)
    with pytest.raises(tff_mf.InputError, match="rounds"):
        training(tff_mf.Tree(8))


def test_a_round_that_fails_is_not_run_again_with_its_noise():
    mechanism = MECHANISMS["blt"]
    trained, optimizer = recorded(mechanism, x=ZEROS, fails_at=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the optimizer fails"):
        trained.fit()
    assert trained.rounds == 5
    optimizer.fails_at.assign(-1)
    trained.fit()
    assert trained.rounds == ORDER.rounds
    # The optimizer never got row 4, and later rows came one step earlier.
    rows = expected_noise(trained, mechanism)
    np.testing.assert_allclose(optimizer.log[:8], np.delete(rows, 4, axis=0), atol=1e-5)


def test_an_error_between_two_variables_of_the_noise_is_mended():
    """TensorFlow stops anywhere at an error: here, rows lack what their keys say."""
    mechanism = MECHANISMS["banded"]
    trained, optimizer = recorded(mechanism, x=ZEROS)
    trained.fit(epochs=1)
    state = trained._state.noise
    state.keys.scatter_nd_update([[3]], [[5, 6]])
    state.round.assign_add(1)
    state.rows[0].assign(tf.ones([D]))
    stopped = mock.Mock(side_effect=tf.errors.ResourceExhaustedError(None, None, "no memory"))
    with mock.patch.object(trained, "_run", stopped), pytest.raises(tf.errors.ResourceExhaustedError):
        trained.fit()
    trained.fit()
    expected = np.delete(expected_noise(trained, mechanism), 3, axis=0)
    np.testing.assert_allclose(optimizer.log[: len(expected)], expected, atol=1e-5)


def test_seeds_of_layers_are_refused_with_sampled_batches():
    """One example fewer moves the masks of all others; see `tff_mf.frameworks.keras._checks.check_unseeded`."""

    def trained(seed):
        model = tf.keras.Sequential(
            [tf.keras.layers.Dropout(0.5, seed=seed, input_shape=(D,)), tf.keras.layers.Dense(1)]
        )
        model.compile("sgd", "mean_squared_error")
        order = tff_mf.Order(
            sampling=tff_mf.Poisson(population=N, clients_per_round=2), examples=N, batch_size=2, rounds=3
        )
        return training(model=model, order=order)._run

    with pytest.raises(tff_mf.InputError, match="random numbers with a seed"):
        trained(1)
    tf.random.set_seed(None)
    trained(None)


def has_a_key(content, keys):
    words = {word.tobytes() for word in keys.numpy().ravel()}
    texts = {str(word).encode() for word in keys.numpy().ravel()}
    return any(each in content for each in words | texts)


def test_no_key_in_what_keras_saves(tmp_path):
    trained = training(MECHANISMS["blt"])
    trained.fit(epochs=2)
    model, keys = trained.model, trained._state.noise.past_keys
    model.save(tmp_path / "model.keras")
    model.save(tmp_path / "model.h5")
    model.save(tmp_path / "saved_model")
    model.save_weights(tmp_path / "weights")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "checkpoint"))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    contents = [path.read_bytes() for path in written]
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        contents += [archive.read(name) for name in archive.namelist()]
    contents.append(repr((model.get_config(), model.optimizer.get_config(), model.get_compile_config())).encode())
    assert len(contents) > 12
    assert not any(has_a_key(content, keys) for content in contents)
    trained.save(tmp_path / "training")
    assert has_a_key((tmp_path / "training").read_bytes(), keys)
    assert stat.S_IMODE((tmp_path / "training").stat().st_mode) == 0o600
    with pytest.raises(tff_mf.InputError, match="cannot be pickled"):
        pickle.dumps(trained)


def test_a_resumed_training_continues_the_noise(tmp_path):
    path, mechanism = tmp_path / "training", MECHANISMS["banded"]
    first, begun = recorded(mechanism, x=ZEROS)
    first.fit(epochs=1)
    first.save(path)
    second, optimizer = recorded(mechanism, x=ZEROS)
    second.restore(path)
    second.fit(epochs=1)
    second.fit()
    keys = second._state.noise.past_keys.numpy()
    np.testing.assert_array_equal(keys[:3], first._state.noise.past_keys)
    assert len(np.unique(keys)) == 18
    expected = expected_noise(second, mechanism)
    np.testing.assert_allclose(begun.log[:3], expected[:3], atol=1e-5)
    np.testing.assert_allclose(optimizer.log[3:], expected[3:], atol=1e-5)
    np.testing.assert_allclose(second.model.get_weights()[0][:, 0], 0.25 + np.sum(expected, axis=0), atol=1e-5)
    with pytest.raises(tff_mf.InputError, match="9 rounds have run"):
        second.restore(path)


def test_checkpoints_of_other_trainings_are_refused(tmp_path):
    path = tmp_path / "training"
    mechanism = MECHANISMS["blt"]
    trained = training(mechanism)
    trained.fit(epochs=1)
    trained.save(path)
    other_order = dataclasses.replace(ORDER, seed=1)
    for arguments in (
        {"x": X[::-1]},
        {"order": other_order},
        {"noise_multiplier": 1.0},
        {"mechanism": tff_mf.Identity()},
        {"model": linear(tf.keras.optimizers.Adam())},
    ):
        fresh = training(**{"mechanism": mechanism, **arguments})
        before = fresh.model.get_weights()[0]
        with pytest.raises(tff_mf.InputError, match="of another training"):
            fresh.restore(path)
        assert fresh.rounds == 0
        np.testing.assert_array_equal(fresh.model.get_weights()[0], before)
    content = path.read_bytes()
    place = content.index(trained.model.get_weights()[0].tobytes())
    damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    for wrong in (damaged, content[:-100], b"", b"text"):
        path.write_bytes(wrong)
        with pytest.raises(tff_mf.InputError, match="damaged"):
            training(mechanism).restore(path)
    checkpoint_files.write(path, {"noise/1": np.int64(3)}, {"leaves": []}, replaces=True)
    with pytest.raises(tff_mf.InputError, match="of another training"):
        training(mechanism).restore(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: training(model=tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(D,))])), "compile"),
        (lambda: training(delta=0.2), r"delta=0.2 of the plan is not below 1/examples=1/6"),
        (lambda: training(grid=tff_mf.Grid(bits=14, max_clients=9), dimension=9), "not supported with Keras"),
        (lambda: training(x=X[0, 0]), "one entry for each example"),
        (lambda: training(y=Y[1:]), "one entry for each example"),
        (lambda: training(noise_multiplier=-1.0), "noise_multiplier"),
        (lambda: training(model=linear(tfp.DPKerasSGDOptimizer(1.0, 1.0, learning_rate=0.1))), "TensorFlow Privacy"),
        (lambda: training().fit(class_weight={0: 2.0}), "class_weight: .*loss of your own"),
        (lambda: training(model=compiled(loss_weights=[0.5])), r"loss_weights=\[0.5\]"),
        (lambda: training(model=linear(tf.keras.optimizers.SGD(use_ema=True))), "use_ema=True"),
        (lambda: training(model=compiled(outputs=2)).fit(), "2 outputs"),
    ],
)
def test_what_cannot_be_trained_is_refused(make, message):
    """Also whatever Keras's own fit would train in another way."""
    with pytest.raises(tff_mf.InputError, match=message):
        make()


def test_options_that_shorten_numbers_are_refused_in_every_call():
    """TensorFlow reads them whenever it runs a graph, also one that was made before they were set."""
    trained, total = training(), keras.ClippedSum(linear(), "mean_squared_error", clip_norm=1.0)
    trained.fit(epochs=1)
    total(X, Y)
    for name in ("auto_mixed_precision", "auto_mixed_precision_onednn_bfloat16"):
        tf.config.optimizer.set_experimental_options({name: True})
        try:
            for call in (lambda: trained.fit(epochs=1), lambda: total(X, Y)):
                with pytest.raises(tff_mf.InputError, match=f"option '{name}'"):
                    call()
        finally:
            tf.config.optimizer.set_experimental_options({name: False})
    assert trained.rounds == 3
    trained.fit(epochs=1)
