"""Gradients of the single examples of a batch, with their norms and weighted sums."""

import tensorflow as tf


class Gradients:
    """The gradients of one variable for each example of a batch, a tensor, float `[batch, ...]`."""

    def __init__(self, values: tf.Tensor) -> None:
        self._values = values
        self._flat = tf.reshape(values, [tf.shape(values)[0], values.shape[1:].num_elements()])

    def squared_norms(self) -> tf.Tensor:
        """Returns the squared L2 norm of each example's gradient, float64 `[batch]`."""
        return tf.reduce_sum(tf.square(tf.cast(self._flat, tf.float64)), axis=1)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the gradients times the weights, float32 `[batch]`.

        A gradient with the weight 0 contributes zero, even if it is not finite.
        """
        weights = tf.cast(weights[:, tf.newaxis], self._flat.dtype)
        # Each product is rounded once, and then all are added: no matrix product, which may compute in fewer bits.
        return tf.reshape(tf.reduce_sum(tf.math.multiply_no_nan(self._flat, weights), axis=0), self._values.shape[1:])
