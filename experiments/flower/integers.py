"""What a node sends with a grid: its update as integers, in the arithmetic of `tff_mf.queries.grid_clipping`.

Imports NumPy alone: apps have a copy of this file for their nodes.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from . import clipping

# Those of `tff_mf.queries.grid_clipping`.
_MARGIN = 2.0


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


def clip_to_grid(leaves: Sequence[np.ndarray], clip_norm: np.float32, *, bits: int) -> clipping.Clipped:
    """Clips a record and rounds it to integers q in units of g = ζ·2^-bits, with Σq² ≤ 4^bits.

    Formal guarantee: that of `tff_mf.queries.grid_clipping.clip_to_grid`, of which this is the arithmetic: the bound
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
    clipped = clipping.clip_record(leaves, clip_norm)
    unit = float(clip_norm) * 2.0**-bits
    values = _rounded([np.asarray(leaf, np.float64) / unit for leaf in clipped.leaves], bits)
    return clipped._replace(leaves=[value.astype(np.int64) for value in values])


def clip_integers_again(leaves: Sequence[np.ndarray], *, bits: int) -> clipping.Clipped:
    """Clips integers that a node should have clipped, and says whether it had not.

    Formal guarantee: that of `clip_to_grid`, for any integers that int32 or int64 can represent. A record that is
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
    if within(values, bits):
        return clipping.Clipped([leaf.astype(np.int64) for leaf in leaves], scaled=False, zeroed=False)
    bounded = [value.astype(np.int64) for value in _rounded(values, bits)]
    # A record that does not pass has a value other than zero.
    zeroed = not any(leaf.any() for leaf in bounded)
    return clipping.Clipped(bounded, scaled=not zeroed, zeroed=zeroed)


def within(values: Sequence[np.ndarray], bits: int) -> bool:
    """Returns whether Σq² ≤ 4^bits for float64 values q that are whole numbers or not finite.

    Formal guarantee: that of `tff_mf.queries.grid_clipping.within`: exact for every input, of any length and in any
    order of summation.

    Example:
        >>> within([np.array([3.0, 4.0, 16384.0])], 14), within([np.array([16384.0])], 14)
        (False, True)
    """
    return _square(values) <= 4.0**bits


def _square(values: Sequence[np.ndarray]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(sum(float(np.sum(np.square(value))) for value in values))


def _rounded(values: Sequence[np.ndarray], bits: int) -> list[np.ndarray]:
    """Returns finite values, in units of the grid, as whole numbers within the bound."""
    nearest = [np.rint(value) for value in values]
    square = _square(nearest)
    if square <= 4.0**bits:
        return nearest
    factor = (2.0**bits - _MARGIN) / math.sqrt(square)
    scaled = [value * factor for value in values]
    again = [np.rint(value) for value in scaled]
    if within(again, bits):
        return again
    smaller = [np.trunc(value) for value in scaled]
    return smaller if within(smaller, bits) else [np.zeros_like(value) for value in smaller]
