"""The real words of a batch of sentences, packed by time step, so that no padding is computed."""

from typing import NamedTuple

import tensorflow as tf

PADDING = 0


class Packing(NamedTuple):
    """Where the words of a batch are in its packed order: by step, and within a step by sentence, the longest first.

    The sentences that have a step are therefore the first rows of the step before it. A step of a sentence is one of
    its real words: a recurrent layer that masks padding passes over it, wherever it is.

    Attributes:
        rows: int32 `[length]`: how many sentences have each step; no more than have the step before it.
        words: `[n]`: the real words, packed.
        place: int32 `[sentences, length]`: the number of real words before a sentence's place or at it is c; its row in
            the packed order is the row of the last of them, plus 1; 0 if c is 0.
    """

    rows: tf.Tensor
    words: tf.Tensor
    place: tf.Tensor


def pack(words: tf.Tensor) -> Packing:
    """Returns the packed order of words, `[sentences, length]`."""
    # Operators of equality compare objects where TFF builds its graphs.
    real = tf.not_equal(words, PADDING)
    counts = tf.cumsum(tf.cast(real, tf.int32), axis=1)
    lengths = counts[:, -1]
    rank = tf.argsort(tf.argsort(lengths, direction="DESCENDING", stable=True))
    rows = tf.math.count_nonzero(lengths > tf.range(words.shape[1])[:, None], axis=1, dtype=tf.int32)
    of_step = tf.cumsum(rows, exclusive=True)
    place = tf.where(counts > 0, tf.gather(of_step, tf.maximum(counts - 1, 0)) + rank[:, None] + 1, 0)
    packed = tf.scatter_nd(place[real][:, None] - 1, words[real], [tf.reduce_sum(lengths)])
    return Packing(rows=rows, words=packed, place=place)
