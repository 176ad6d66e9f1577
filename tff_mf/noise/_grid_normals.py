"""Standard normals in float64 for noise on a grid."""

import math

import tensorflow as tf


def standard_normal(key: tf.Tensor, dimension: int) -> tf.Tensor:
    """Returns the standard Gaussian row of a key, float64 `[dimension]`."""
    half = -(-dimension // 2)
    uniforms = tf.random.stateless_uniform([2, half], seed=key, dtype=tf.float64, alg="philox")
    radius = tf.sqrt(-2 * tf.math.log(1 - uniforms[0]))
    angle = 2 * math.pi * uniforms[1]
    return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], 0)[:dimension]
