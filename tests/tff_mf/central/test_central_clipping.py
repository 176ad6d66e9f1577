"""Orders of examples, and sums of gradients that are clipped one by one, against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf

tf = pytest.importorskip("tensorflow")

from tff_mf.frameworks import keras  # noqa: E402
from tff_mf.frameworks.keras import _clipped_sum  # noqa: E402
from tff_mf.queries import clipping  # noqa: E402

layers = tf.keras.layers
CLIP = 0.7


POPULATION = {"population": 12, "clients_per_round": 3}
SECRET = [tff_mf.BallsInBins(groups=3), tff_mf.BMinSep(min_sep=2, probability=0.3)]
SCHEMAS = [tff_mf.FixedEpoch(min_sep=3, max_participations=2), tff_mf.MinSep(min_sep=2, max_participations=3)]
COINS = [tff_mf.Poisson(**POPULATION), tff_mf.CyclicPoisson(groups=2, **POPULATION)]


@pytest.mark.parametrize("sampling", [*SECRET, *SCHEMAS, *COINS], ids=repr)
def test_examples_take_part_as_is_accounted(sampling):
    order, secret = tff_mf.Order(sampling=sampling, examples=12, batch_size=3, rounds=6), tff_mf.CohortSecret.drawn()
    whole, fingerprint = order.batches(0, 6, secret=secret).copy(), order.fingerprint
    order.participation.check(6)
    for example in range(12):
        assert order.participation.allows(np.flatnonzero(np.any(whole == example, axis=1)).tolist())
    for row in whole:
        assert len(set(row[row >= 0])) == np.sum(row >= 0)
    if sampling in COINS:
        return
    for begin, count in ((0, 6), (2, 1), (3, 3)):
        if sampling in SECRET:
            with pytest.raises(tff_mf.InputError, match="secret=None"):
                order.batches(begin, count)
        rows = order.batches(begin, count, secret=secret)
        np.testing.assert_array_equal(rows, whole[begin : begin + count])
        # What is written into a batch, such as 0 in place of −1, changes no other batch.
        rows[rows < 0] = 0
        rows[:] = rows[::-1] + 1
    assert order.fingerprint == fingerprint


def convolutions():
    return tf.keras.Sequential(
        [
            layers.Conv2D(4, 3, strides=2, padding="same", input_shape=(8, 7, 2)),
            layers.MaxPooling2D(2, padding="same"),
            layers.Flatten(),
            layers.Dense(5, activation="relu", use_bias=False),
            layers.Dense(3, activation="softmax"),
        ]
    )


def shared_layer():
    inputs = tf.keras.Input((8, 7, 2))
    dense = layers.Dense(4, activation="tanh")
    hidden = layers.LayerNormalization()(layers.Flatten()(inputs))
    left, right = dense(hidden), dense(2 * hidden)
    return tf.keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.Add()([left, right])))


def centered():
    """Computes with all examples of a batch, unless the batch has one."""
    return tf.keras.Sequential(
        [
            layers.Flatten(input_shape=(8, 7, 2)),
            layers.Dense(4, activation=lambda value: value - 0.5 * tf.reduce_mean(value, axis=0)),
            layers.Dense(3, activation="softmax"),
        ]
    )


X = np.random.default_rng(0).normal(size=(5, 8, 7, 2)).astype(np.float32) * 3
Y = np.array([0, 1, 2, 0, 1])


def term(model, x, y):
    """The clipped gradient of one example, by a plain tape."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y[np.newaxis], model(x[np.newaxis])))
    gradients = tape.gradient(loss, model.trainable_variables)
    return [part.numpy().astype(np.float64) for part in clipping.clip_record(gradients, tf.constant(CLIP))]


def difference(found, expected):
    return max(float(np.abs(one - other).max()) for one, other in zip(found, expected, strict=True))


@pytest.mark.sampled
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("make", [convolutions, shared_layer, centered])
def test_the_sum_is_that_of_a_plain_loop(make, whole, monkeypatch):
    tf.random.set_seed(0)
    model = make()
    # No test after this one has a seed that it did not ask for.
    tf.random.set_seed(None)
    total = keras.ClippedSum(model, "sparse_categorical_crossentropy", clip_norm=CLIP)
    if not whole:
        # Two examples at a time, the last alone.
        monkeypatch.setattr(_clipped_sum, "_MOST_VALUES", 2 * _clipped_sum._values_of(model.trainable_variables))
    terms = [term(model, x, y) for x, y in zip(X, Y, strict=True)]
    norms = [np.sqrt(sum(np.sum(np.square(part)) for part in each)) for each in terms]
    assert max(norms) > 0.99 * CLIP
    expected = [np.sum(parts, axis=0) for parts in zip(*terms, strict=True)]
    assert difference(total(X, Y), expected) < 1e-6
    some = np.array([True, False, True, True, False])
    expected = [np.sum(parts, axis=0) for parts in zip(*(terms[index] for index in (0, 2, 3)), strict=True)]
    assert difference(total(X, Y, some), expected) < 1e-6
    worst = np.concatenate([X[:1] * np.nan, X[:1] * np.inf, X[:1] * 1e38, X])
    found = total(worst, np.concatenate([Y[:3], Y]), np.array([True, True, True, *some]))
    assert all(np.all(np.isfinite(part)) for part in found)


float32 = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from([3e38, 1e-40, 1e19, -1e25, 0.0])


@given(
    st.lists(float32, min_size=2, max_size=2),
    st.lists(float32, min_size=3, max_size=3),
    st.floats(2**-20, 1e6, width=32),
)
def test_no_example_contributes_more_than_the_clip_norm(left, right, clip_norm):
    left, right = (tf.constant([values], tf.float32) for values in (left, right))
    sums = _clipped_sum.clipped([left, right], tf.constant([True]), clip_norm)
    found = np.concatenate([np.ravel(part) for part in sums]).astype(np.float64)
    assert np.all(np.isfinite(found))
    assert np.linalg.norm(found) <= np.float32(clip_norm)
    plain = np.concatenate([np.ravel(left), np.ravel(right)]).astype(np.float64)
    if np.all(np.isfinite(plain)) and np.linalg.norm(plain) < 0.99 * clip_norm:
        np.testing.assert_allclose(found, plain, rtol=1e-6, atol=2.0**-80)


class Counting(layers.Layer):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.total = self.add_weight("total", (), trainable=False)

    def call(self, inputs):
        self.total.assign_add(tf.reduce_sum(inputs))
        return inputs


class AddedLoss(layers.Layer):
    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs))
        return inputs


def built(*inner):
    return tf.keras.Sequential([layers.Dense(2, input_shape=(2,)), *inner])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: built(layers.BatchNormalization()), "BatchNormalization, which computes with all examples"),
        (lambda: built(Counting()), "updates variables"),
        (lambda: built(AddedLoss()), "losses of its own"),
        (lambda: tf.keras.Sequential([layers.Dense(1)]), "not built"),
        (lambda: tf.keras.Sequential([layers.Flatten(input_shape=(2,))]), "no trainable variables"),
    ],
)
def test_models_without_terms_of_single_examples_are_refused(make, message):
    with pytest.raises(tff_mf.InputError, match=message):
        keras.ClippedSum(make(), "mean_squared_error", clip_norm=1.0)(np.ones([2, 2]), np.ones([2, 2]))


@pytest.mark.parametrize("lengths", [(3, 1, 3), (1, 3, 3), (3, 3, 1)])
def test_arrays_of_a_batch_have_one_length(lengths):
    """Else TensorFlow repeats an array of one: the targets, or the inputs, of one example would be those of all."""
    total = keras.ClippedSum(built(), "mean_squared_error", clip_norm=1.0)
    arrays = [tf.ones([length, 2]) for length in lengths[:2]] + [tf.ones(lengths[2:], tf.bool)]
    with pytest.raises(tff_mf.InputError, match="one entry for each example"):
        total(*arrays)
    signature = [tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in arrays]
    with pytest.raises(tf.errors.InvalidArgumentError, match="one entry for each example"):
        tf.function(total, input_signature=signature)(*arrays)
