"""Bounds a client's contribution to a sum of integers: updates are rounded to a grid, and their norm stays bounded."""

import tensorflow as tf

from tff_mf.queries.clipping import Clipped, clip_record

# Squares of integers and their sums are compared with 4^bits, which float64 does exactly up to 2⁵³.
LARGEST_BITS = 26

# Rounded twice, a record has a norm of 2^bits·(1 − 2·2^-bits), give or take 0.3·2^-bits if its values round
# independently of each other.
_MARGIN = 2.0


def clip_to_grid(leaves: list[tf.Tensor], clip_norm: tf.Tensor, *, bits: int, dtype: tf.DType) -> list[tf.Tensor]:
    """Returns the leaves as integers q in units of g = ζ·2^-bits, with Σq² ≤ 4^bits: a norm of at most ζ = `clip_norm`.

    The record is clipped by `clip_record` and rounded to the nearest integers. Only if their norm exceeds 2^bits, by
    what rounding adds to it, is the record scaled down and rounded again, so that its norm is smaller than ζ by a
    relative 2^(1 − bits). If that exceeds the bound too, as only values do that are close to one another, it is rounded
    toward zero. A record that is not finite becomes zero.

    Formal guarantee: Σq² ≤ 4^bits in exact arithmetic, for every input of any length, for `bits` up to 26, and for any
    order of summation: whatever was computed before, the integers are returned only if they pass `within`, and are zero
    otherwise. In units of ζ, the norm is therefore at most 1 exactly, with no margin for rounding errors. Every |q| is
    at most 2^bits, which int32 can represent.

    Args:
        leaves: Tensors of the types in `clipping.LEAF_TYPES` and of any shape: one client's record.
        clip_norm: Bound ζ on the norm, float32 `[]`, from 1e-20 to 1e20.
        bits: Number of bits of 2^bits = ζ/g, from 1 to 26.
        dtype: Type of the integers: `tf.int32` or `tf.int64`.

    Returns:
        Tensors of the same shapes and of type `dtype`.

    Example:
        >>> clip_to_grid([tf.constant([3.0]), tf.constant([4.0])], tf.constant(1.0), bits=10, dtype=tf.int32)[1].numpy()
        array([819], dtype=int32)
    """
    unit = tf.cast(clip_norm, tf.float64) * 2.0**-bits
    values = [tf.cast(leaf, tf.float64) / unit for leaf in clip_record(leaves, clip_norm)]
    return [tf.cast(value, dtype) for value in _rounded(values, bits)]


def clip_integers_again(leaves: list[tf.Tensor], *, bits: int) -> Clipped:
    """Clips a record of integers that its client should have clipped, and says whether it had not.

    Formal guarantee: that of `clip_to_grid` for any integers, also for the smallest and the largest that their type can
    represent. A record that is within the bound is unchanged: neither scaled nor zeroed.

    Args:
        leaves: int32 or int64 tensors of any shape: the record that a client sent.
        bits: As for `clip_to_grid`.

    Returns:
        The record, in the types of the leaves.

    Example:
        >>> clipped = clip_integers_again([tf.constant([3000, -4000])], bits=10)
        >>> clipped.leaves[0].numpy(), bool(clipped.scaled), bool(clipped.zeroed)
        (array([ 613, -818], dtype=int32), True, False)
    """
    # The cast rounds values beyond 2⁵³, with which a record does not pass.
    values = [tf.cast(leaf, tf.float64) for leaf in leaves]
    passed = within(values, bits)

    def unchanged() -> tuple[list[tf.Tensor], tf.Tensor]:
        return [tf.identity(leaf) for leaf in leaves], tf.constant(False)

    def scaled() -> tuple[list[tf.Tensor], tf.Tensor]:
        smaller = [tf.cast(value, leaf.dtype) for value, leaf in zip(_rounded(values, bits), leaves, strict=True)]
        # A record that does not pass has a value other than zero.
        return smaller, ~tf.reduce_any(tf.stack([tf.reduce_any(leaf != 0) for leaf in smaller]))

    bounded, zeroed = tf.cond(passed, unchanged, scaled)
    return Clipped(list(bounded), ~(passed | zeroed), zeroed)


def within(values: list[tf.Tensor], bits: int) -> tf.Tensor:
    """Returns whether Σq² ≤ 4^bits for float64 values q that are whole numbers or not finite, bool `[]`.

    Formal guarantee: exact for every input, of any length and for any order of summation. By induction over the order
    in which squares are added, each computed subtotal is the true one if that is at most 2⁵³, and at least 2⁵³
    otherwise: the sum of two nonnegative whole numbers is exact up to 2⁵³, and rounding to nearest is monotone, so that
    a sum which exceeds 2⁵³, or has a term that does, is not rounded below it. The same holds for each square, and for a
    multiplication fused with an addition. Since 4^bits ≤ 2⁵², the comparison is that of the true sum. Nothing wraps
    around, as it could in int64: with 2³² values of 2^26 the sum is 2⁸⁴. A value that is not finite is not within.

    Example:
        >>> within([tf.constant([3.0, 4.0, 16384.0], tf.float64)], 14), within([tf.constant([16384.0], tf.float64)], 14)
        (<tf.Tensor: shape=(), dtype=bool, numpy=False>, <tf.Tensor: shape=(), dtype=bool, numpy=True>)
    """
    return _square(values) <= 4.0**bits


def _square(values: list[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.square(value)) for value in values])


def _rounded(values: list[tf.Tensor], bits: int) -> list[tf.Tensor]:
    """Returns finite values, in units of the grid, as whole numbers within the bound."""
    nearest = [tf.round(value) for value in values]
    square = _square(nearest)

    def smaller() -> list[tf.Tensor]:
        factor = (2.0**bits - _MARGIN) / tf.sqrt(square)
        scaled = [value * factor for value in values]
        again = [tf.round(value) for value in scaled]
        return tf.cond(within(again, bits), lambda: again, lambda: _toward_zero(scaled, bits))

    return list(tf.cond(square <= 4.0**bits, lambda: nearest, smaller))


def _toward_zero(values: list[tf.Tensor], bits: int) -> list[tf.Tensor]:
    smaller = [tf.sign(value) * tf.floor(tf.abs(value)) for value in values]
    passed = within(smaller, bits)
    return [tf.where(passed, value, tf.zeros_like(value)) for value in smaller]
