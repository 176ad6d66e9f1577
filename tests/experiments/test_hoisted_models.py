"""The models that clients compute with are TFF's Keras models, up to the order of sums."""

import numpy as np
import pytest

pytest.importorskip("tensorflow_federated")

import tensorflow as tf

from tff_mf.experiments.training import models
from tff_mf.experiments.training.client_batches import pack
from tff_mf.experiments.training.models import LstmWeights, masked_lstm, mean_cross_entropy, packed_lstm

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
    return models.build_keras_model(SIZES[architecture], extended_vocab_size=WORDS)


def hoisted(architecture, **options):
    weights = [variable.numpy() for variable in keras(architecture).trainable_variables]
    return models.build_hoisted_model(architecture, weights, input_spec=SPEC, **options)


def gradients(model, weights, batch):
    with tf.GradientTape() as tape:
        weights = tuple(map(tf.convert_to_tensor, weights))
        tape.watch(weights)
        output = model.predict_on_batch((weights, ()), batch[0], True)
        loss = model.loss(output, batch[1])
    # TFF counts sentences by the first part.
    assert tf.nest.flatten(output)[0] is output.place
    return loss, [tf.convert_to_tensor(each) for each in tape.gradient(loss, weights)]


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("architecture", ["lstm", "conv"])
def test_after_50_steps_of_sgd_the_model_is_that_of_tff(architecture):
    reference = keras(architecture)
    ours = [hoisted(architecture, static_shapes=static) for static in (False, True)]
    weights = [tuple(map(tf.constant, each.initial_weights[0])) for each in ours]
    assert [each.shape for each in weights[0]] == [each.shape for each in reference.trainable_variables]
    loss_of = models.build_loss()

    @tf.function(input_signature=SPEC, autograph=False)
    def expected_step(words, targets):
        with tf.GradientTape() as tape:
            loss = loss_of(targets, tf.function(reference)(words, training=True))
        for variable, gradient in zip(
            reference.trainable_variables, tape.gradient(loss, reference.trainable_variables), strict=True
        ):
            variable.assign_sub(0.5 * tf.convert_to_tensor(gradient))
        return loss

    @tf.function(input_signature=SPEC, autograph=False)
    def steps(*batch):
        return [gradients(each, tuple(given), batch) for each, given in zip(ours, variables, strict=True)]

    variables = [[tf.Variable(each) for each in given] for given in weights]
    for batch in [*batches(25, anywhere=False), *batches(25, anywhere=True)]:
        expected = expected_step(*batch)
        for own, (loss, found) in zip(variables, steps(*batch), strict=True):
            np.testing.assert_allclose(loss, expected, rtol=1e-5)
            for variable, gradient in zip(own, found, strict=True):
                variable.assign_sub(0.5 * gradient)
    for own in variables:
        for one, other, before in zip(own, reference.trainable_variables, weights[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)
            assert np.max(np.abs(other - before)) > 1e-3


@pytest.mark.parametrize("mask", [[[1, 1, 0], [1, 1, 1]], [[0, 1, 0], [1, 0, 1]], [[0, 0, 0], [1, 1, 1]], [[1], [0]]])
def test_layer_and_gradient_are_those_of_keras_in_float64(mask):
    rng, units, width = np.random.default_rng(0), 3, 2
    mask = np.array(mask, bool)
    layer = tf.keras.layers.LSTM(units, return_sequences=True, dtype="float64")
    inputs = tf.constant(rng.normal(size=(*mask.shape, width)))
    layer.build(inputs.shape)
    layer.set_weights([rng.normal(size=each.shape) for each in layer.weights])
    factors = rng.normal(size=(*mask.shape, units))
    weights = LstmWeights(*(tf.constant(each.numpy()) for each in layer.weights))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([inputs, weights])
        packing = pack(tf.constant(mask.astype(np.int64)))
        order = np.argsort(packing.place.numpy()[mask])
        outputs = packed_lstm(tf.gather(inputs[mask], order), weights, packing.rows)
        packed = tf.gather(tf.pad(outputs, [[1, 0], [0, 0]]), packing.place)
        by_step = masked_lstm(tf.transpose(inputs, [1, 0, 2]), weights, tf.constant(mask.T))
        found = [packed, tf.transpose(by_step, [1, 0, 2])]
        expected = layer(inputs, mask=tf.constant(mask))
        sums = [tf.reduce_sum(each * factors) for each in (expected, *found)]
    of_expected = tape.gradient(sums[0], [inputs, *layer.weights])
    for outputs, total in zip(found, sums[1:], strict=True):
        np.testing.assert_allclose(outputs, expected, rtol=1e-12, atol=1e-14)
        for one, other in zip(tape.gradient(total, [inputs, *weights]), of_expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("fused", [False, True])
def test_cross_entropy_is_that_of_keras_far_from_zero_too(fused):
    rng = np.random.default_rng(0)
    shifted = np.add(rng.normal(size=(5, 7), scale=40.0), [[0], [0], [500], [-500], [0]])
    logits = tf.constant(shifted, tf.float32)
    targets, counted = tf.constant([0, 3, 6, 2, 0], tf.int64), [True, True, True, True, False]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        found = 3.0 * mean_cross_entropy(logits, targets, tf.constant(counted), fused=fused)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        expected = 3.0 * loss(targets[:4], logits[:4])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(found, logits), tape.gradient(expected, logits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("architecture", [pytest.param("lstm", marks=pytest.mark.long), "conv"])
def test_xla_compiles_a_step_with_static_shapes(architecture):
    # `long`: XLA takes seconds for the steps of an LSTM.
    ours = hoisted(architecture, static_shapes=True)
    weights = tuple(map(tf.constant, ours.initial_weights[0]))
    (batch,) = batches(1, anywhere=True)
    compiled = tf.function(lambda *given: gradients(ours, given[0], given[1:]), autograph=False, jit_compile=True)
    loss, found = compiled(weights, *batch)
    expected_loss, expected = gradients(ours, weights, batch)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
