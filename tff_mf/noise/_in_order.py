"""Weighted sums in float64, one operation after another: the same bits as NumPy's, on every machine."""

from collections.abc import Callable, Sequence

import tensorflow as tf


def sum_in_order(weights: Sequence[float | tf.Tensor], rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns weights[0]·rows[0] + weights[1]·rows[1] + …, each product and each sum rounded once, in this order.

    Products with −weights are subtracted, which gives the same bits. The graph optimizer would turn additions into one
    AddN, in an order of its own, and that into temporary variables, which fail where branches of a switch have several.

    Args:
        weights: At least one, each a number or float64 `[]`.
        rows: As many, each float64 `[dimension]`.
    """
    total = weights[0] * rows[0]
    for weight, row in zip(weights[1:], rows[1:], strict=True):
        total -= -weight * row
    return total


def parts_in_order(
    weights: Sequence[float | tf.Tensor], rows: Sequence[tf.Tensor]
) -> Callable[[tf.Tensor | int, tf.Tensor | int], tf.Tensor]:
    """Returns what gives `sum_in_order(weights, rows)` between two bounds, float64 `[end - begin]`."""
    return lambda begin, end: sum_in_order(weights, [row[begin:end] for row in rows])
