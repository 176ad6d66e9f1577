"""The attack on float32 normals: a pair that no key can produce proves that a client took part.

TensorFlow's float32 normals are drawn in pairs by Box and Muller's method from two uniforms of 23 bits each. All other
pairs of values prove that something was added to the noise.
"""

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

_STEPS = 2**23
# TensorFlow replaces smaller uniforms.
_LEAST = np.float32(1e-7)
# In steps of both uniforms, around the uniforms that give the middle of a box.
_REACH = 4
# Of the estimates by which candidates are chosen, relative.
_TOLERANCE = 2.0**-21


def producible_pairs(low: np.ndarray, high: np.ndarray, *, stddev: float) -> np.ndarray:
    """Returns which boxes contain stddev times a pair of normals that TensorFlow's float32 generator can produce.

    An adversary who knows all other updates learns from a release, for coordinates 2i and 2i + 1 of the noise, a box in
    which they lie if the victim did not take part. A box without any producible pair proves that it did.

    Args:
        low: Lower ends of the boxes, float64 `[pairs, 2]`, for coordinates 2i and 2i + 1.
        high: Upper ends, which belong to the boxes; a box is at most 10⁻⁶ standard deviations wide.
        stddev: Standard deviation, with which TensorFlow multiplies its normals in float32.

    Returns:
        bool `[pairs]`. A pair that TensorFlow's normals gave is always found if TensorFlow has the C library of this
        process.

    Raises:
        InputValueError: If `stddev` is not positive, or the boxes are too wide.

    Example:
        >>> pair = np.array([[2.5, 1.5]])
        >>> bool(producible_pairs(pair - 1e-6, pair + 1e-6, stddev=7.0)[0])
        True
    """
    scale = np.float32(validation.positive("stddev", stddev))
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    if np.any(high - low > 1e-6 * float(scale)):
        raise InputValueError("high - low must be at most 1e-6 standard deviations: all wider boxes can be produced.")
    sine, cosine = ((low + high) / 2 / float(scale)).T
    radius = np.rint(_STEPS * np.exp(-(sine**2 + cosine**2) / 2)).astype(np.int64)
    angle = np.rint(_STEPS * (np.arctan2(sine, cosine) / (2 * np.pi) % 1)).astype(np.int64)
    found = np.zeros(len(low), bool)
    slack = _TOLERANCE * np.maximum(np.abs(low), np.abs(high))
    for first in range(-_REACH, _REACH + 1):
        for second in range(-_REACH, _REACH + 1):
            uniforms = np.clip(radius + first, 0, _STEPS - 1), (angle + second) % _STEPS
            scaled = _estimated(*uniforms) * float(scale)
            near = np.flatnonzero(np.all((low - slack <= scaled) & (scaled <= high + slack), axis=1) & ~found)
            exact = (box_muller(*(uniform[near] for uniform in uniforms)) * scale).astype(np.float64)
            found[near] = np.all((low[near] <= exact) & (exact <= high[near]), axis=1)
    return found


def box_muller(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Returns the pairs that TensorFlow computes from two integers of 23 bits, float32 `[pairs, 2]`.

    Source: `BoxMullerFloat` of TensorFlow's random_distributions.h, with the C library's float32 functions.

    Example:
        >>> np.abs(box_muller(np.array([2**22]), np.array([2**21]))).astype(np.float64).round(3).tolist()
        [[1.177, 0.0]]
    """
    length = np.sqrt(np.float32(-2) * _by_library("logf")(np.maximum((radius / _STEPS).astype(np.float32), _LEAST)))
    turned = _turned(angle)
    return np.stack([_by_library("sinf")(turned), _by_library("cosf")(turned)], axis=1) * length[:, np.newaxis]


def _estimated(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    length = np.sqrt(-2 * np.log(np.maximum(radius / _STEPS, float(_LEAST))))
    turned = _turned(angle).astype(np.float64)
    return np.stack([np.sin(turned), np.cos(turned)], axis=1) * length[:, np.newaxis]


def _turned(angle: np.ndarray) -> np.ndarray:
    return (2 * np.pi * (angle / _STEPS)).astype(np.float32)


@functools.cache
def _by_library(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a float32 function of the C library: NumPy's own differ in the last bit."""
    function = getattr(ctypes.CDLL("libm.so.6"), name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return lambda values: np.array([function(float(value)) for value in values], np.float32)
