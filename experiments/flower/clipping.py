"""Bounds what one client adds to a sum, in NumPy: the arithmetic of `tff_mf.queries.clipping`, bit for bit the same.

Imports NumPy alone: apps have a copy of this file for their nodes.
"""

import math
from collections.abc import Sequence
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


def clip_record(leaves: Sequence[np.ndarray], clip_norm: np.float32) -> Clipped:
    """Clips a record where it is made; `clip_again` leaves it unchanged then.

    Formal guarantee: as for `tff_mf.queries.clipping.clip_record`: see `clip_again`.

    Args:
        leaves: float32 arrays of any shape: one client's record.
        clip_norm: Bound on the norm, from 1e-20 to 1e20.

    Example:
        >>> clip_record([np.float32([3, 4])], np.float32(1)).leaves[0].round(3)
        array([0.6, 0.8], dtype=float32)
    """
    return _clipped(leaves, clip_norm, _PASSING)


def clip_again(leaves: Sequence[np.ndarray], clip_norm: np.float32) -> Clipped:
    """Clips a record, whether or not its client has clipped it.

    Formal guarantee: as for `tff_mf.queries.clipping.clip_again`: the joint L2 norm of the result, in exact
    arithmetic, is at most ζ = `clip_norm` for every input of up to 2³² values. A record with a value that is not finite
    becomes zero, and so does one whose norm exceeds the clip norm times 2¹²⁶.

    Args:
        leaves: float32 arrays of any shape: one client's record.
        clip_norm: Bound on the norm, from 1e-20 to 1e20: what `settings.checked_clip_norm` returns.

    Example:
        >>> clip_again([np.float32([3, 0]), np.float32([4])], np.float32(1)).leaves[1].round(3)
        array([0.8], dtype=float32)
    """
    return _clipped(leaves, clip_norm, _PASSING_AGAIN)


def norm(leaves: Sequence[np.ndarray]) -> float:
    """Returns the joint norm: finite if and only if all values are, because no square overflows in float64."""
    with np.errstate(invalid="ignore"):
        return math.sqrt(math.fsum(float(np.sum(np.square(leaf, dtype=np.float64))) for leaf in leaves))


def norm_passes(length: float, clip_norm: np.float32) -> bool:
    """Returns whether `clip_record` leaves a record of this computed norm unchanged."""
    return length <= _PASSING * float(clip_norm)


def _clipped(leaves: Sequence[np.ndarray], clip_norm: np.float32, passing: float) -> Clipped:
    length = norm(leaves)
    if length <= passing * float(clip_norm):
        return Clipped(list(leaves), scaled=False, zeroed=False)
    factor = _SCALED * float(clip_norm) / length
    if not math.isfinite(length) or factor < SMALLEST_NORMAL:
        return Clipped([np.zeros_like(leaf) for leaf in leaves], scaled=False, zeroed=True)
    return Clipped([leaf * np.float32(factor) for leaf in leaves], scaled=True, zeroed=False)
