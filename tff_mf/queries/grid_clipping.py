"""Bounds a client's contribution to a sum of integers: updates are rounded to a grid, and their norm stays bounded."""

import tensorflow as tf

from tff_mf.queries import clipping

# Squares of integers and their sums are compared with 4^bits, which float64 does exactly up to 2⁵³.
LARGEST_BITS = 26

# Rounding adds d/12 to the square of a norm, and 0.3 or so of either sign to a norm of 2^bits, if the values round
# independently of each other. A record that is too long is scaled so that this margin is left.
_MARGIN = 2.0

# The largest share of 4^bits, and of 2^bits, that is left for what rounding adds before it is known what it adds.
_LARGEST_SHARE = 2.0**-13


def clip_to_grid(leaves: list[tf.Tensor], clip_norm: tf.Tensor, *, bits: int, dtype: tf.DType) -> list[tf.Tensor]:
    """Returns the leaves as integers q in units of g = ζ·2^-bits, with Σq² ≤ 4^bits: a norm of at most ζ = `clip_norm`.

    The record is multiplied by 1/g in float32 and rounded to the nearest integers. A record that is longer than ζ is
    multiplied by a smaller factor, so that its rounded norm is expected to be ζ·(1 − 2^(1 − bits)). Only if the norm of
    the integers exceeds the bound is the record scaled down again, by that norm, and rounded again. If that exceeds the
    bound too, as only values do that are close to one another, it is rounded toward zero. A record that is not finite
    becomes zero, as does one whose norm is so large that float32 has no such factor.

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
    factor = _factor(leaves, clip_norm, bits)
    wide = [tf.cast(leaf, clipping.summed_type(leaf.dtype)) for leaf in leaves]
    values = [leaf * tf.cast(factor, leaf.dtype) for leaf in wide]
    nearest = [tf.round(value) for value in values]
    square = _square([tf.cast(value, tf.float64) for value in nearest])

    def smaller() -> list[tf.Tensor]:
        scaled = _scaled_down([tf.cast(value, tf.float64) for value in values], square, bits)
        return [tf.cast(value, dtype) for value in scaled]

    return list(tf.cond(square <= 4.0**bits, lambda: [tf.cast(value, dtype) for value in nearest], smaller))


def clip_integers_again(leaves: list[tf.Tensor], *, bits: int) -> clipping.Clipped:
    """Clips a record of integers that its client should have clipped, and says whether it had not.

    Formal guarantee: as for `clip_to_grid` for any integers, also for the smallest and the largest that their type can
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
    square = _square(values)
    passed = square <= 4.0**bits

    def unchanged() -> tuple[list[tf.Tensor], tf.Tensor]:
        return [tf.identity(leaf) for leaf in leaves], tf.constant(False)

    def scaled() -> tuple[list[tf.Tensor], tf.Tensor]:
        found = _scaled_down(values, square, bits)
        smaller = [tf.cast(value, leaf.dtype) for value, leaf in zip(found, leaves, strict=True)]
        # A record that does not pass has a value other than zero.
        return smaller, ~tf.reduce_any(tf.stack([tf.reduce_any(leaf != 0) for leaf in smaller]))

    bounded, zeroed = tf.cond(passed, unchanged, scaled)
    return clipping.Clipped(list(bounded), ~(passed | zeroed), zeroed)


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


def _factor(leaves: list[tf.Tensor], clip_norm: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns by what a record is multiplied before it is rounded, float32 `[]`: 0 if float32 has no such factor."""
    length, largest = clipping.norm(leaves), 2.0**bits
    size = tf.cast(tf.add_n([tf.size(leaf, tf.int64) for leaf in leaves]), tf.float64)
    expected = tf.sqrt(largest**2 - tf.minimum(size / 12, _LARGEST_SHARE * largest**2))
    longer = (expected - min(_MARGIN, _LARGEST_SHARE * largest)) / length
    factor = tf.where(clipping.norm_passes(length, clip_norm), largest / tf.cast(clip_norm, tf.float64), longer)
    # A factor that is NaN is not at least that.
    return tf.cast(tf.where(factor >= clipping.SMALLEST_NORMAL, factor, tf.zeros_like(factor)), tf.float32)


def _scaled_down(values: list[tf.Tensor], square: tf.Tensor, bits: int) -> list[tf.Tensor]:
    """Returns values, in units of the grid, as whole numbers within the bound; their squares, rounded, exceed it."""
    factor = (2.0**bits - _MARGIN) / tf.sqrt(square)
    scaled = [value * factor for value in values]
    nearest = [tf.round(value) for value in scaled]
    return list(tf.cond(within(nearest, bits), lambda: nearest, lambda: _toward_zero(scaled, bits)))


def _toward_zero(values: list[tf.Tensor], bits: int) -> list[tf.Tensor]:
    smaller = [tf.sign(value) * tf.floor(tf.abs(value)) for value in values]
    passed = within(smaller, bits)
    return [tf.where(passed, value, tf.zeros_like(value)) for value in smaller]
