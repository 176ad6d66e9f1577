"""Weighted sums of many rows, read once and by all cores."""

from collections.abc import Sequence

import tensorflow as tf

# Numbers of one row in a part. Fewer cost more in calls than in numbers.
_LARGEST_PART = 2**17
# A slice that begins at a multiple of as many numbers is a view, and any other one a copy.
_ALIGNED = 64
# Numbers in a part of all rows together, which are copied for the product.
_PART = 2**23


def weighted_sums(weights: tf.Tensor, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns Σ_j weights[i, j]·rows[j] for each i.

    Products with each row in turn would read and write memory five times as often as this matrix product
    over one part of all the rows after another.

    Args:
        weights: float32 `[sums, len(rows)]`, of known shape.
        rows: At least one, each float32 `[dimension]`, of known shape.

    Returns:
        As many rows as `weights` has.
    """
    (dimension,), sums = rows[0].shape, weights.shape[0]
    size = max(_ALIGNED, min(_LARGEST_PART, _PART // len(rows) // _ALIGNED * _ALIGNED))
    if dimension <= size:
        return tf.unstack(tf.matmul(weights, tf.stack(rows)), num=sums)
    count = -(-dimension // size)

    def one_part(index: tf.Tensor, parts: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
        begin = index * size
        end = tf.minimum(begin + size, dimension)
        products = tf.unstack(tf.matmul(weights, tf.stack([row[begin:end] for row in rows])), num=sums)
        return index + 1, [part.write(index, product) for part, product in zip(parts, products, strict=True)]

    parts = [tf.TensorArray(tf.float32, count, infer_shape=False, element_shape=[None]) for _ in range(sums)]
    # Two: the rows of one part are put together while those of another are multiplied.
    _, parts = tf.while_loop(lambda index, _: index < count, one_part, [tf.constant(0), parts], parallel_iterations=2)
    return [tf.ensure_shape(part.concat(), [dimension]) for part in parts]
