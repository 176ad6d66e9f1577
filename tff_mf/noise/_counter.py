"""Rows of a tree as digits of a binary counter: row h is in use while bit h of the number of rounds is set."""

from collections.abc import Callable

import tensorflow as tf

Rows = tuple[tf.Tensor, ...]


def row_count(rounds: int) -> int:
    """Returns the number of rows: one per level except for the root, which no later round needs."""
    return rounds.bit_length() - 1


def in_use(step: tf.Tensor, rows: int) -> tf.Tensor:
    """Returns how many of the rows are in use after `step` rounds, int64 `[]`."""
    return tf.cast(tf.raw_ops.PopulationCount(x=tf.bitwise.bitwise_and(step, 2**rows - 1)), tf.int64)


def height(step: tf.Tensor) -> tf.Tensor:
    """Returns the height of the largest block of 2^height rounds that round `step` completes, int32 `[]`."""
    return tf.cast(tf.raw_ops.PopulationCount(x=tf.bitwise.bitwise_xor(step, step + 1)), tf.int32) - 1


def carry(step: tf.Tensor, rows: int, completed: Callable[[int], tuple[tf.Tensor, ...]]) -> tuple[tf.Tensor, ...]:
    """Returns `completed(height)`, with the height of larger blocks replaced by `rows`."""
    # An index beyond the branches takes the last one.
    branches = [lambda height=height: completed(height) for height in range(rows + 1)]
    return tuple(tf.switch_case(height(step), branches))


def put(rows: Rows, height: int, row: tf.Tensor) -> Rows:
    """Returns the rows with `row` at `height`, if there is a row of that height."""
    return tuple(row if place == height else old for place, old in enumerate(rows))
