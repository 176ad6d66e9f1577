"""Weighted sums of many rows that read each row once."""

from collections.abc import Sequence

import tensorflow as tf

# Entries of one row in a part. With fewer, the calls dominate the cost.
_LARGEST_PART = 2**17
# A slice that starts at a multiple of this many entries is a view; any other slice is a copy.
_ALIGNED = 64
# Entries of all rows in a part, which are copied for the product.
_PART = 2**23


def weighted_sums(weights: tf.Tensor, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns Σ_j weights[i, j]·rows[j] for each i.

    Adding one row after another would take five times as many memory accesses as this matrix product, which processes
    one part of all rows after another.

    Args:
        weights: `[sums, len(rows)]`, of known shape.
        rows: At least one, each `[dimension]`, of known shape. They are cast to the type of the weights, part by part.

    Returns:
        As many rows as `weights` has, in its type.
    """
    (dimension,), sums = rows[0].shape, weights.shape[0]
    size = max(_ALIGNED, min(_LARGEST_PART, _PART // len(rows) // _ALIGNED * _ALIGNED))
    if dimension <= size:
        return tf.unstack(tf.matmul(weights, _stacked(rows, weights.dtype)), num=sums)
    count = -(-dimension // size)

    def one_part(index: tf.Tensor, parts: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
        begin = index * size
        end = tf.minimum(begin + size, dimension)
        products = tf.unstack(tf.matmul(weights, _stacked([row[begin:end] for row in rows], weights.dtype)), num=sums)
        return index + 1, [part.write(index, product) for part, product in zip(parts, products, strict=True)]

    parts = [tf.TensorArray(weights.dtype, count, infer_shape=False, element_shape=[None]) for _ in range(sums)]
    # Two: the rows of one part are stacked while those of another are multiplied.
    _, parts = tf.while_loop(lambda index, _: index < count, one_part, [tf.constant(0), parts], parallel_iterations=2)
    return [tf.ensure_shape(part.concat(), [dimension]) for part in parts]


def _stacked(rows: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    return tf.stack([tf.cast(row, dtype) for row in rows])
