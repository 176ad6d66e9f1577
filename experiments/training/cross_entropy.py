"""The cross-entropy of words, with a gradient that takes one pass over the probabilities, and that XLA compiles."""

from collections.abc import Callable

import tensorflow as tf


def mean_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, counted: tf.Tensor | None = None, *, fused: bool = False
) -> tf.Tensor:
    """Returns the mean loss per word, equal to `tf.keras.losses.SparseCategoricalCrossentropy` to rounding.

    Args:
        logits: `[n, words]`.
        targets: `[n]`, whole numbers below `words`.
        counted: bool `[n]`: which of them the mean is over; all if `None`.
        fused: Whether XLA compiles the gradient, which makes one loop of it; otherwise each place is changed in memory.
    """

    @tf.custom_gradient
    def loss(logits: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        each = tf.reduce_logsumexp(logits, axis=1) - tf.gather(logits, targets, batch_dims=1)
        share = tf.ones_like(each) if counted is None else tf.cast(counted, each.dtype)
        share /= tf.reduce_sum(share)

        def gradient(of_loss: tf.Tensor) -> tf.Tensor:
            # From the logits alone: training needs no losses, and TensorFlow leaves them out.
            return _minus_one(tf.nn.softmax(logits), targets, fused=fused) * (of_loss * share)[:, None]

        return tf.reduce_sum(each * share), gradient

    return loss(logits)


def _minus_one(probabilities: tf.Tensor, targets: tf.Tensor, *, fused: bool) -> tf.Tensor:
    """Returns the probabilities, 1 less for the target of each row."""
    if fused:
        return probabilities - tf.one_hot(targets, probabilities.shape[-1], dtype=probabilities.dtype)
    places = tf.stack([tf.range(tf.size(targets, targets.dtype), dtype=targets.dtype), targets], axis=1)
    return tf.tensor_scatter_nd_sub(probabilities, places, tf.ones_like(probabilities[:, 0]))
