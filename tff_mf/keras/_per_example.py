"""Gradients of single examples, of a batch, in forms that their norms and weighted sums are computed from."""

import abc

import numpy as np
import tensorflow as tf

_SMALLEST_NORMAL = 2.0**-126
_LARGEST_LEFT = 2.0**40


class Gradients(abc.ABC):
    """The gradients of one variable for each example of a batch."""

    @abc.abstractmethod
    def squared_norms(self) -> tf.Tensor:
        """Returns the squared L2 norm of each example's gradient, float64 `[batch]`."""

    @abc.abstractmethod
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the gradients times the weights, float32 `[batch]`.

        A gradient with the weight 0 contributes zero, even if it is not finite.
        """


class Stacked(Gradients):
    """Gradients in a tensor, float `[batch, ...]`."""

    def __init__(self, values: tf.Tensor) -> None:
        self._values = values
        self._flat = tf.reshape(values, [tf.shape(values)[0], values.shape[1:].num_elements()])

    def squared_norms(self) -> tf.Tensor:
        return _squared_norms(self._flat)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        weights = tf.cast(weights[:, tf.newaxis], self._flat.dtype)
        # Each product is rounded once, and then all are added: no matrix product, which may compute in fewer bits.
        return tf.reshape(tf.reduce_sum(tf.math.multiply_no_nan(self._flat, weights), axis=0), self._values.shape[1:])


class Outer(Gradients):
    """Gradients that are outer products of two vectors, float32 `[batch, rows]` and `[batch, columns]`.

    Where the factors of a product are subnormal numbers, or a clipped one is, rounding may double it, or set it to
    zero. Subnormal factors are therefore zero here, and the norm is infinite, so that an example contributes nothing,
    if its left vector has a norm above 2⁴⁰: with 2³² coordinates, at most 2⁻¹⁵⁰⁺⁴⁰⁺¹⁶ can then be rounded away, a
    relative 2⁻²⁷ of the smallest clip norm.
    """

    def __init__(self, left: tf.Tensor, right: tf.Tensor) -> None:
        self._left, self._right = _normal(left), _normal(right)

    def squared_norms(self) -> tf.Tensor:
        left = _squared_norms(self._left)
        return tf.where(left <= _LARGEST_LEFT**2, left * _squared_norms(self._right), np.inf)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        weights = weights[:, tf.newaxis]
        left = tf.where(tf.equal(weights, 0.0), 0.0, self._left)
        return tf.matmul(left, tf.math.multiply_no_nan(self._right, weights), transpose_a=True)


def _normal(rows: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.abs(rows) < _SMALLEST_NORMAL, 0.0, rows)


def _squared_norms(rows: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(tf.cast(rows, tf.float64)), axis=1)
