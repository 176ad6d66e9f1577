"""TFF's models of next words, with the same weights, and without what TensorFlow computes in vain.

Only real words are computed, and logits only where a word is to be predicted; products are hoisted out of recurrences.
Numbers agree with the Keras models up to the order of float32 sums.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from ..configuration.settings import ModelConfig
from .cross_entropy import mean_cross_entropy
from .hoisted_lstm import LstmWeights, masked_lstm, packed_lstm
from .packing import PADDING, pack

Weights = Sequence[Any]


class Hidden(NamedTuple):
    """What a model knows of each place of a batch before the logits, which are computed where the loss needs them.

    Attributes:
        place: int32 `[sentences, length]`: row of `rows` of each place. It is first because TFF counts its sentences.
        rows: `[n, width]`: what the last layer takes.
        head: Weights of the last layer, and of the projection before it if there is one.
    """

    place: tf.Tensor
    rows: tf.Tensor
    head: tuple[tf.Tensor, ...]

    def logits(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the logits, `[n, words]`, of rows of `self.rows`."""
        for kernel, bias in zip(self.head[::2], self.head[1::2], strict=True):
            rows = tf.matmul(rows, kernel) + bias
        return rows


def build_hoisted_model(
    config: ModelConfig,
    initial_weights: Weights,
    *,
    input_spec: tuple[tf.TensorSpec, tf.TensorSpec],
    static_shapes: bool = False,
) -> tff.learning.models.FunctionalModel:
    """Returns a model for TFF with the weights, shapes and order of weights of the Keras model.

    Args:
        config: Size of the model.
        initial_weights: Trainable weights of the Keras model.
        input_spec: Type of a batch; words have a fixed length.
        static_shapes: Whether padding is computed too, so that all shapes follow from a batch's, and XLA can
            compile the model and its gradient.
    """
    forward = {
        ("lstm", False): _packed_lstm,
        ("lstm", True): _masked_lstm,
        ("conv", False): functools.partial(_conv, look_up=tf.gather),
        ("conv", True): functools.partial(_conv, look_up=_looked_up),
    }[config.architecture, static_shapes]

    # Nothing here is for AutoGraph, which takes longer to look than TensorFlow to trace.
    @tf.function(autograph=False)
    def predict(weights: tuple[Weights, Weights], words: tf.Tensor, training: bool) -> Hidden:
        del training
        return forward(weights[0], words)

    return tff.learning.models.FunctionalModel(
        initial_weights=(tuple(initial_weights), ()),
        predict_on_batch_fn=predict,
        loss_fn=tf.autograph.experimental.do_not_convert(_masked_loss if static_shapes else _packed_loss),
        input_spec=input_spec,
    )


def _packed_lstm(weights: Weights, words: tf.Tensor) -> Hidden:
    embedding, kernel, recurrent, bias, *head = weights
    packing = pack(words)
    inputs = tf.gather(embedding, packing.words)
    outputs = packed_lstm(inputs, LstmWeights(kernel, recurrent, bias), packing.rows)
    # Row 0 is the state before the first word.
    return Hidden(place=packing.place, rows=tf.pad(outputs, [[1, 0], [0, 0]]), head=tuple(head))


def _masked_lstm(weights: Weights, words: tf.Tensor) -> Hidden:
    embedding, kernel, recurrent, bias, *head = weights
    by_step = tf.transpose(words)
    inputs = _looked_up(embedding, by_step)
    outputs = masked_lstm(inputs, LstmWeights(kernel, recurrent, bias), tf.not_equal(by_step, PADDING))
    by_sentence = tf.transpose(outputs, [1, 0, 2])
    return Hidden(place=_in_order(words), rows=tf.reshape(by_sentence, [-1, recurrent.shape[0]]), head=tuple(head))


def _conv(weights: Weights, words: tf.Tensor, *, look_up: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Hidden:
    embedding, kernel, bias, *head = weights
    reach, width, filters = kernel.shape
    # Before the first word there is nothing, which is not the word with number 0.
    inputs = tf.pad(look_up(embedding, words), [[0, 0], [reach - 1, 0], [0, 0]])
    windows = tf.concat([inputs[:, step : step + words.shape[1]] for step in range(reach)], axis=2)
    rows = tf.matmul(tf.reshape(windows, [-1, reach * width]), tf.reshape(kernel, [reach * width, filters]))
    return Hidden(place=_in_order(words), rows=tf.nn.relu(rows + bias), head=tuple(head))


def _in_order(words: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.range(tf.size(words)), tf.shape(words))


def _looked_up(embedding: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Returns rows of an embedding, with a product as the gradient: XLA would copy the whole of it for each word."""

    @tf.custom_gradient
    def look_up(embedding: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(of_rows: tf.Tensor) -> tf.Tensor:
            chosen = tf.one_hot(tf.reshape(words, [-1]), embedding.shape[0], dtype=embedding.dtype)
            return tf.matmul(chosen, tf.reshape(of_rows, [-1, embedding.shape[1]]), transpose_a=True)

        return tf.gather(embedding, words), gradient

    return look_up(embedding)


def _packed_loss(hidden: Hidden, targets: tf.Tensor, sample_weight: object = None) -> tf.Tensor:
    del sample_weight
    counted = tf.not_equal(targets, PADDING)
    logits = hidden.logits(tf.gather(hidden.rows, hidden.place[counted]))
    return mean_cross_entropy(logits, targets[counted])


def _masked_loss(hidden: Hidden, targets: tf.Tensor, sample_weight: object = None) -> tf.Tensor:
    del sample_weight
    flat = tf.reshape(targets, [-1])
    # The rows are in order, and all of them are needed.
    logits = hidden.logits(hidden.rows)
    return mean_cross_entropy(logits, flat, tf.not_equal(flat, PADDING), fused=True)
