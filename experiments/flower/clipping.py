"""A node's update, clipped, as floats or as integers: the arithmetic of `tff_mf.queries`, in NumPy, bit for bit."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

# As in `tff_mf.queries.clipping.clip_record`, whose docstring derives them from the rounding of norms and products.
_PASSING = 1 - 8e-7
_PASSING_AGAIN = 1 - 3e-7
_SCALED = 1 / (1 + 1.5e-6)
SMALLEST_NORMAL = 2.0**-126


class Clipped(NamedTuple):
    """A clipped record, and how it was clipped.

    Attributes:
        leaves: The record: float32, or whole numbers.
        scaled: Whether it was scaled down.
        zeroed: Whether it was set to zero, because a value is not finite or float32 cannot scale it.
    """

    leaves: list[np.ndarray]
    scaled: bool
    zeroed: bool


def clip_again(leaves: Sequence[np.ndarray], clip_norm: np.float32) -> Clipped:
    """Clips a record, whether or not its client has clipped it.

    Formal guarantee: as for `tff_mf.queries.clipping.clip_again`: the joint L2 norm of the result, in exact
    arithmetic, is at most ζ = `clip_norm` for every input of up to 2³² values. A record with a value that is not finite
    becomes zero, and so does one whose norm exceeds the clip norm times 2¹²⁶.

    Args:
        leaves: float32 arrays of any shape: one client's record.
        clip_norm: Bound on the norm, from 1e-20 to 1e20: what `strategy.checked_clip_norm` returns.

    Example:
        >>> clip_again([np.float32([3, 0]), np.float32([4])], np.float32(1)).leaves[1].round(3)
        array([0.8], dtype=float32)
    """
    length = norm(leaves)
    if length <= _PASSING_AGAIN * float(clip_norm):
        return Clipped(list(leaves), scaled=False, zeroed=False)
    factor = _SCALED * float(clip_norm) / length
    if not math.isfinite(length) or factor < SMALLEST_NORMAL:
        return Clipped([np.zeros_like(leaf) for leaf in leaves], scaled=False, zeroed=True)
    return Clipped([leaf * np.float32(factor) for leaf in leaves], scaled=True, zeroed=False)


def norm(leaves: Sequence[np.ndarray]) -> float:
    """Returns the joint norm: finite if and only if all values are, because no square overflows in float64."""
    with np.errstate(invalid="ignore"):
        return math.sqrt(math.fsum(float(np.sum(np.square(leaf, dtype=np.float64))) for leaf in leaves))


# As in `tff_mf.queries.clipping`.
_MARGIN = 2.0
_LARGEST_SHARE = 2.0**-13


def as_integers(
    update: Mapping[str, np.ndarray], clip_norm: np.float32, *, bits: int, dtype: np.dtype
) -> dict[str, np.ndarray]:
    """Returns an update by name in integers: for apps that send them without `mods.integers_mod`.

    Example:
        >>> as_integers({"b": np.float32([3, 4])}, np.float32(1), bits=10, dtype=np.dtype("int32"))["b"]
        array([614, 819], dtype=int32)
    """
    clipped = clip_to_grid(list(update.values()), clip_norm, bits=bits)
    return {name: leaf.astype(dtype) for name, leaf in zip(update, clipped.leaves, strict=True)}


def clip_to_grid(leaves: Sequence[np.ndarray], clip_norm: np.float32, *, bits: int) -> Clipped:
    """Clips a record and rounds it to integers q in units of g = ζ·2^-bits, with Σq² ≤ 4^bits.

    Formal guarantee: as for `tff_mf.queries.clipping.clip_to_grid`, of which this is the arithmetic: the bound
    holds in exact arithmetic, for every input of any length, for `bits` up to 26 and for any order of summation, since
    the integers are returned only if they pass `within`, and are zero otherwise.

    Args:
        leaves: float32 arrays of any shape: one client's record.
        clip_norm: Bound ζ on the norm, from 1e-20 to 1e20.
        bits: log₂ of ζ/g, from 1 to 26.

    Returns:
        int64 arrays, and whether the record was longer than ζ, or not finite.

    Example:
        >>> clip_to_grid([np.float32([3]), np.float32([4])], np.float32(1), bits=10).leaves[1]
        array([819])
    """
    length, largest = norm(leaves), 2.0**bits
    # As `clip_record` of the queries leaves it unchanged.
    passed = length <= _PASSING * float(clip_norm)
    factor = largest / float(clip_norm) if passed else _bound(leaves, bits) / length
    if not math.isfinite(length) or factor < SMALLEST_NORMAL:
        return Clipped([np.zeros(np.shape(leaf), np.int64) for leaf in leaves], scaled=False, zeroed=True)
    values = [leaf * np.float32(factor) for leaf in leaves]
    nearest = [np.rint(value).astype(np.float64) for value in values]
    square = _square(nearest)
    if square > largest**2:
        nearest = _scaled_down([value.astype(np.float64) for value in values], square, bits)
    return Clipped([value.astype(np.int64) for value in nearest], scaled=not passed, zeroed=False)


def clip_integers_again(leaves: Sequence[np.ndarray], *, bits: int) -> Clipped:
    """Clips integers that a node should have clipped, and says whether it had not.

    Formal guarantee: as for `clip_to_grid`, for any integers that int32 or int64 can represent. A record that is
    within the bound is unchanged.

    Args:
        leaves: int32 or int64 arrays of any shape.
        bits: As for `clip_to_grid`.

    Returns:
        int64 arrays.

    Example:
        >>> clip_integers_again([np.array([3000, -4000])], bits=10).leaves[0]
        array([ 613, -818])
    """
    # Rounded beyond 2⁵³, with which a record does not pass.
    values = [leaf.astype(np.float64) for leaf in leaves]
    square = _square(values)
    if square <= 4.0**bits:
        return Clipped([leaf.astype(np.int64) for leaf in leaves], scaled=False, zeroed=False)
    bounded = [value.astype(np.int64) for value in _scaled_down(values, square, bits)]
    # A record that does not pass has a value other than zero.
    zeroed = not any(leaf.any() for leaf in bounded)
    return Clipped(bounded, scaled=not zeroed, zeroed=zeroed)


def within(values: Sequence[np.ndarray], bits: int) -> bool:
    """Returns whether Σq² ≤ 4^bits for float64 values q that are whole numbers or not finite.

    Formal guarantee: as for `tff_mf.queries.clipping.within`: exact for every input, of any length and in any
    order of summation.

    Example:
        >>> within([np.array([3.0, 4.0, 16384.0])], 14), within([np.array([16384.0])], 14)
        (False, True)
    """
    return _square(values) <= 4.0**bits


def _square(values: Sequence[np.ndarray]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(sum(float(np.sum(np.square(value))) for value in values))


def _bound(leaves: Sequence[np.ndarray], bits: int) -> float:
    """Returns the norm to which a record that is too long is scaled, so that it probably is not when it is rounded."""
    largest = 2.0**bits
    size = sum(np.size(leaf) for leaf in leaves)
    expected = math.sqrt(largest**2 - min(size / 12, _LARGEST_SHARE * largest**2))
    return expected - min(_MARGIN, _LARGEST_SHARE * largest)


def _scaled_down(values: Sequence[np.ndarray], square: float, bits: int) -> list[np.ndarray]:
    """Returns values, in units of the grid, as whole numbers within the bound; their squares, rounded, exceed it."""
    factor = (2.0**bits - _MARGIN) / math.sqrt(square)
    scaled = [value * factor for value in values]
    nearest = [np.rint(value) for value in scaled]
    if within(nearest, bits):
        return nearest
    smaller = [np.trunc(value) for value in scaled]
    return smaller if within(smaller, bits) else [np.zeros_like(value) for value in smaller]
