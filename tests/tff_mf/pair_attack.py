"""The attack on float32 normals: a pair that no key can produce proves that a client took part.

TensorFlow draws its float32 normals in pairs by Box and Muller's method, from two uniforms of 23 bits.
"""

import ctypes
import itertools

import numpy as np

STEPS = 2**23


def by_library(name, values):
    """A float32 function of the C library, as TensorFlow calls it: NumPy's own differ in the last bit."""
    function = getattr(ctypes.CDLL("libm.so.6"), name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return np.array([function(float(value)) for value in values], np.float32)


def box_muller(radius, angle):
    """`BoxMullerFloat` of TensorFlow's random_distributions.h, for two integers of 23 bits; it bounds the first."""
    uniform = np.maximum((radius / STEPS).astype(np.float32), np.float32(1e-7))
    length, turned = np.sqrt(np.float32(-2) * by_library("logf", uniform)), (2 * np.pi * angle / STEPS).astype("f4")
    return np.stack([by_library("sinf", turned), by_library("cosf", turned)], axis=1) * length[:, np.newaxis]


def producible_pairs(low, high, *, stddev):
    """Which boxes, at most 1e-6 deviations wide, hold `stddev` times a pair of normals that a key can give."""
    sine, cosine = ((low + high) / 2 / stddev).T
    radius = np.rint(STEPS * np.exp(-(sine**2 + cosine**2) / 2)).astype(np.int64)
    angle = np.rint(STEPS * (np.arctan2(sine, cosine) / (2 * np.pi) % 1)).astype(np.int64)
    slack, possible = 2.0**-21 * np.maximum(np.abs(low), np.abs(high)), np.zeros(len(low), bool)
    for more in itertools.product(range(-4, 5), repeat=2):
        first, second = np.clip(radius + more[0], 0, STEPS - 1), (angle + more[1]) % STEPS
        length = stddev * np.sqrt(-2 * np.log(np.maximum(first / STEPS, 1e-7)))
        turned = (2 * np.pi * second / STEPS).astype(np.float32).astype(np.float64)
        about = np.stack([np.sin(turned), np.cos(turned)], axis=1) * length[:, np.newaxis]
        near = np.flatnonzero(np.all((low - slack <= about) & (about <= high + slack), axis=1) & ~possible)
        exact = (box_muller(first[near], second[near]) * np.float32(stddev)).astype(np.float64)
        possible[near] = np.all((low[near] <= exact) & (exact <= high[near]), axis=1)
    return possible
