"""The models that clients compute with are TFF's Keras models, up to the order of sums."""

import numpy as np
import pytest
import tensorflow as tf

from tff_mf.experiments import next_word
from tff_mf.experiments.next_word import mean_cross_entropy, pack, packed_lstm

from .shared import small_settings

WORDS, LENGTH = 31, 3
SPEC = (tf.TensorSpec([None, LENGTH], tf.int64),) * 2
SIZES = {
    kind: small_settings(model=kind, vocab_size=27, embedding_size=5, units=7, seed=3) for kind in ("lstm", "conv")
}


def batches(number, *, anywhere, seed=0):
    """Batches of different sizes; padding at the end of sentences, as in TFF's preprocessing, or anywhere."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        sentences = rng.integers(1, 9)
        words = rng.integers(1, WORDS, (sentences, LENGTH + 1))
        if anywhere:
            words[:, :-1] *= rng.random((sentences, LENGTH)) < 0.6
        else:
            words *= np.arange(LENGTH + 1) <= rng.integers(1, LENGTH + 1, (sentences, 1))
        yield tf.constant(words[:, :-1]), tf.constant(words[:, 1:])


def keras(architecture):
    return next_word.build_keras_model(SIZES[architecture], vocabulary=["word"] * (WORDS - 4))


def hoisted(architecture):
    weights = [variable.numpy() for variable in keras(architecture).trainable_variables]
    return next_word.build_hoisted_model(architecture, weights, input_spec=SPEC)


def gradients(model, weights, batch):
    with tf.GradientTape() as tape:
        weights = tuple(map(tf.convert_to_tensor, weights))
        tape.watch(weights)
        output = model.predict_on_batch((weights, ()), batch[0], True)
        loss = model.loss(output, batch[1])
    # TFF counts sentences by the first part.
    assert tf.nest.flatten(output)[0] is output.place
    return loss, [tf.convert_to_tensor(each) for each in tape.gradient(loss, weights)]


@pytest.mark.parametrize("architecture", ["lstm", "conv"])
def test_after_20_steps_of_sgd_the_model_is_that_of_tff(architecture):
    reference, ours = keras(architecture), hoisted(architecture)
    before = tuple(map(tf.constant, ours.initial_weights[0]))
    assert [each.shape for each in before] == [each.shape for each in reference.trainable_variables]
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=next_word.PADDING)

    @tf.function(input_signature=SPEC, autograph=False)
    def expected_step(words, targets):
        with tf.GradientTape() as tape:
            loss = loss_of(targets, tf.function(reference)(words, training=True))
        for variable, gradient in zip(
            reference.trainable_variables, tape.gradient(loss, reference.trainable_variables), strict=True
        ):
            variable.assign_sub(0.5 * tf.convert_to_tensor(gradient))
        return loss

    variables = [tf.Variable(each) for each in before]

    @tf.function(input_signature=SPEC, autograph=False)
    def step(*batch):
        return gradients(ours, tuple(variables), batch)

    for batch in [*batches(10, anywhere=False), *batches(10, anywhere=True)]:
        expected = expected_step(*batch)
        loss, found = step(*batch)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        for variable, gradient in zip(variables, found, strict=True):
            variable.assign_sub(0.5 * gradient)
    for one, other, first in zip(variables, reference.trainable_variables, before, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)
        assert np.max(np.abs(other - first)) > 1e-3


@pytest.mark.parametrize("mask", [[[1, 1, 0], [1, 1, 1]], [[0, 1, 0], [1, 0, 1]], [[0, 0, 0], [1, 1, 1]], [[1], [0]]])
def test_layer_and_gradient_are_those_of_keras_in_float64(mask):
    rng, units, width = np.random.default_rng(0), 3, 2
    mask = np.array(mask, bool)
    layer = tf.keras.layers.LSTM(units, return_sequences=True, dtype="float64")
    inputs = tf.constant(rng.normal(size=(*mask.shape, width)))
    layer.build(inputs.shape)
    layer.set_weights([rng.normal(size=each.shape) for each in layer.weights])
    factors = rng.normal(size=(*mask.shape, units))
    weights = [tf.constant(each.numpy()) for each in layer.weights]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([inputs, weights])
        packing = pack(tf.constant(mask.astype(np.int64)))
        order = np.argsort(packing.place.numpy()[mask])
        outputs = packed_lstm(tf.gather(inputs[mask], order), weights, packing.rows)
        packed = tf.gather(tf.pad(outputs, [[1, 0], [0, 0]]), packing.place)
        expected = layer(inputs, mask=tf.constant(mask))
        sums = [tf.reduce_sum(each * factors) for each in (expected, packed)]
    of_expected = tape.gradient(sums[0], [inputs, *layer.weights])
    np.testing.assert_allclose(packed, expected, rtol=1e-12, atol=1e-14)
    for one, other in zip(tape.gradient(sums[1], [inputs, *weights]), of_expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


def test_cross_entropy_is_that_of_keras_far_from_zero_too():
    rng = np.random.default_rng(0)
    shifted = np.add(rng.normal(size=(4, 7), scale=40.0), [[0], [0], [500], [-500]])
    logits, targets = tf.constant(shifted, tf.float32), tf.constant([0, 3, 6, 2], tf.int64)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        found = 3.0 * mean_cross_entropy(logits, targets)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        expected = 3.0 * loss(targets, logits)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(found, logits), tape.gradient(expected, logits), rtol=1e-5, atol=1e-6)
