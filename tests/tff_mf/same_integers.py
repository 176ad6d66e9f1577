"""Integers of noise and what they are computed from, for comparison with other machines: imports no TensorFlow.

All parameters are written here or follow from whole numbers: an optimizer's floats, and NumPy's generators, may change.
"""

import hashlib
import math

import numpy as np

import tff_mf
from tff_mf.mechanisms import on_grid
from tff_mf.noise import numpy as streams

ROUNDS, DIMENSION, STDDEV = 200, 3, 7.379
# The rounds that are drawn: trees carry over 64, and bands end after 33.
DRAWN = 80
GRID = tff_mf.Grid(bits=16, max_clients=100)
# Whose C⁻¹ is computed by linear algebra.
_INVERSES = ("dense", "banded", "low rank")


def values(*shape, seed):
    """Returns multiples of 2^-12 between 0 and 1, by the generator of Park and Miller, float64."""
    found, state = [], seed
    for _ in range(math.prod(shape)):
        state = state * 48271 % (2**31 - 1)
        found.append(state >> 19)
    return np.array(found).reshape(shape) / 2**12


def mechanisms():
    offsets = np.subtract.outer(np.arange(ROUNDS), np.arange(ROUNDS))
    decaying = np.tril(1 / (1 + np.abs(offsets)))
    bands = np.array(tff_mf.BandedToeplitz.square_root(9).column)[:, np.newaxis]
    return {
        "identity": tff_mf.Identity(),
        # What optimize_blt(rounds=200, participation=SingleParticipation(), buffers=2) found.
        "blt optimized": tff_mf.BLT(
            theta=[0.9934643751738489, 0.8287055413487281], omega=[0.11506314464182003, 0.3327265953049838]
        ),
        **{f"blt {name}": tff_mf.BLT.production(name) for name in ("b100", "b400")},
        "banded": tff_mf.Banded(values=bands * (1 + values(9, ROUNDS, seed=1))),
        "banded toeplitz": tff_mf.BandedToeplitz.square_root(33),
        "dense": tff_mf.Dense(matrix=decaying * (1 + values(ROUNDS, ROUNDS, seed=2))),
        "low rank": tff_mf.BandedPlusLowRank(
            diagonals=np.array([[1.0], [0.5], [0.4]]) * (1 + values(3, ROUNDS, seed=3)),
            left=values(ROUNDS, 4, seed=4) / 4,
            right=values(ROUNDS, 4, seed=5) / 4,
        ),
        **{f"tree {variant}": tff_mf.Tree(ROUNDS, variant=variant) for variant in ("full", "online", "vanilla")},
    }


def recursion_of(mechanism):
    return on_grid(mechanism, deviation=STDDEV * 2**GRID.bits)


def stream_of(mechanism):
    return streams.build_stream(mechanism, dimension=DIMENSION, stddev=STDDEV, grid=GRID)


def keys(rounds):
    return np.arange(2 * rounds).reshape(rounds, 2)


def in_numpy():
    """Returns, for each mechanism, digests of the integers and of the numbers they are computed from."""
    found = {}
    for name, mechanism in mechanisms().items():
        stream = stream_of(mechanism)
        rounds = min(ROUNDS, stream.max_rounds)
        stream, state = stream.repeating(keys(rounds)), stream.init()
        rows = []
        for _ in range(min(DRAWN, rounds)):
            row, state = stream.next(state)
            rows.append(row)
        recursion = recursion_of(mechanism)
        found[name] = {
            "integers": _digest(rows),
            "numbers": recursion.recursion.digest,
            "inverse": _digest([mechanism.cast_to_float32().inverse(rounds)]) if name in _INVERSES else None,
            "fingerprint": stream.fingerprint.hex(),
            "rounds": recursion.rounds,
            "largest": recursion.largest.hex(),
        }
    return found


def in_tensorflow(names=None):
    """Returns, for each mechanism or those that are named, the digest of the integers and the fingerprint."""
    import tensorflow as tf

    from tff_mf.noise import tensorflow as noise

    found = {}
    for name, mechanism in mechanisms().items():
        if name not in (names or [name]):
            continue
        stream = noise.build_stream(mechanism, dimension=DIMENSION, stddev=STDDEV, grid=GRID)
        rounds = min(ROUNDS, mechanism.max_rounds or ROUNDS)
        step = tf.function(stream.repeating(keys(rounds)).next, autograph=False)
        rows, state = [], stream.init()
        for _ in range(min(DRAWN, rounds)):
            row, state = step(state)
            rows.append(row.numpy().astype(np.int64))
        found[name] = {"integers": _digest(rows), "fingerprint": stream.fingerprint.hex()}
    return found


def stored():
    """Returns what same_integers.json holds."""
    return {name: {key: found[key] for key in ("integers", "numbers")} for name, found in in_numpy().items()}


def _digest(arrays):
    return hashlib.sha256(np.ascontiguousarray(np.stack(arrays)).tobytes()).hexdigest()
