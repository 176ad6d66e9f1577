"""Integers of noise and what they are computed from, for comparison with other machines: imports no TensorFlow.

All parameters are written here or follow from whole numbers: an optimizer's floats, and NumPy's generators, may change.
"""

import hashlib
import math
from fractions import Fraction

import numpy as np

import tff_mf
from tff_mf.mechanisms import on_grid
from tff_mf.noise import numpy as streams
from tff_mf.problem import grids

ROUNDS, DIMENSION, STDDEV = 200, 3, 7.379
# The rounds that are drawn: trees carry over 64, and bands end after 33.
DRAWN = 80
GRID = tff_mf.Grid(bits=16, max_clients=100)
# Of the matrices of near-ties: a coefficient has so many bits with so much noise.
TIE_BITS, TIE_STDDEV = 15, 1024.0
_SIZE = 16
# Decisions about the integers, each with the noise at which it changes.
DECIDED = ("coefficient_bits", "rounds", "stored")
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
        **near_ties(),
    }


def near_ties():
    """Returns a mechanism of which K·2^15 is a half-integer, in exact arithmetic, in hundreds of entries.

    C⁻¹ = [1, 0, 0; A, 1, 0; FA − H, F, 1]·S, so that K = [1, 0, 0; −A, 1, 0; H, −F, 1], for short fractions A and F,
    odd multiples H of 2^-16, and a diagonal S. Each number of C⁻¹ and its prefix sums is a float32. A computed K is
    not exact, because most of S are no powers of two.
    """
    inverse = _near_tie(11)
    decoder = np.add.accumulate(inverse)
    return {
        "low rank, near ties": tff_mf.BandedPlusLowRank(
            diagonals=np.diagonal(decoder)[np.newaxis], left=np.tril(decoder, -1), right=np.eye(len(decoder))
        ),
    }


def ties(recursion):
    """Returns how many coefficients are near a half-integer before they are rounded, by exact fractions."""
    inverse = [
        [Fraction(each) for each in row] for row in recursion.mechanism.inverse(3 * _SIZE).astype(np.float32).tolist()
    ]
    found = 0
    for row in _exact_inverse(inverse):
        diagonal = next(each for each in reversed(row) if each)
        scaled = [each / diagonal * 2**recursion.coefficient_bits for each in row]
        found += sum(abs(each - math.floor(each) - Fraction(1, 2)) < 1e-12 for each in scaled)
    return found


def _near_tie(seed):
    first, second, odd = (values(_SIZE, _SIZE, seed=seed * place) for place in (1, 2, 3))
    first, second = (np.floor(each * 16) / 16 - 0.5 for each in (first, second))
    halves = (2 * np.floor(odd * 2**13) + 1) / 2 ** (TIE_BITS + 1)
    matrix = np.eye(3 * _SIZE)
    one, two, three = (slice(begin, begin + _SIZE) for begin in range(0, 3 * _SIZE, _SIZE))
    matrix[two, one], matrix[three, two] = first, second
    # Short fractions: exact in every order.
    matrix[three, one] = np.einsum("ij,jk->ik", second, first) - halves
    scales = 1 + (1 + values(3 * _SIZE, seed=seed)) / 8
    scales[one] = 1.0
    return matrix * scales


def _exact_inverse(matrix):
    """Returns the inverse of a lower-triangular matrix, in fractions."""
    rows = []
    for place, line in enumerate(matrix):
        line = [Fraction(each) for each in line]
        row = [Fraction(int(place == column)) for column in range(len(matrix))]
        for weight, earlier in zip(line[:place], rows, strict=True):
            if weight:
                row = [own - weight * other if other else own for own, other in zip(row, earlier, strict=True)]
        rows.append([each / line[place] for each in row])
    return rows


def stddev_of(name):
    return TIE_STDDEV if "near ties" in name else STDDEV


def recursion_of(mechanism, stddev):
    return on_grid(mechanism, deviation=stddev * 2**GRID.bits, largest_normal=grids.LARGEST_NORMAL)


def stream_of(name, mechanism):
    return streams.build_stream(mechanism, dimension=DIMENSION, stddev=stddev_of(name), grid=GRID)


def keys(rounds):
    return np.arange(2 * rounds).reshape(rounds, 2)


def in_numpy():
    """Returns, for each mechanism, digests of the integers and of the numbers they are computed from."""
    found = {}
    for name, mechanism in mechanisms().items():
        stream = stream_of(name, mechanism)
        rounds = min(ROUNDS, stream.max_rounds)
        stream, state = stream.repeating(keys(rounds)), stream.init()
        rows = []
        for _ in range(min(DRAWN, rounds)):
            row, state = stream.next(state)
            rows.append(row)
        recursion = recursion_of(mechanism, stddev_of(name))
        found[name] = {
            "integers": _digest(rows),
            "numbers": recursion.digest,
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
        stream = noise.build_stream(mechanism, dimension=DIMENSION, stddev=stddev_of(name), grid=GRID)
        rounds = min(ROUNDS, mechanism.max_rounds or ROUNDS)
        step = tf.function(stream.repeating(keys(rounds)).next, autograph=False)
        rows, state = [], stream.init()
        for _ in range(min(DRAWN, rounds)):
            row, state = step(state)
            rows.append(row.numpy().astype(np.int64))
        found[name] = {"integers": _digest(rows), "fingerprint": stream.fingerprint.hex()}
    return found


def border(mechanism, attribute):
    """Returns the largest noise before a decision changes; `None` if none changes it."""
    low, first = 1.0, _decision(mechanism, attribute, 1.0)
    high = next(
        (low * 2.0**power for power in range(1, 40) if _decision(mechanism, attribute, low * 2.0**power) != first), None
    )
    if high is None:
        return None
    while math.nextafter(low, high) < high:
        middle = (low + high) / 2
        low, high = (middle, high) if _decision(mechanism, attribute, middle) == first else (low, middle)
    return low.hex()


def _decision(mechanism, attribute, stddev):
    try:
        return getattr(recursion_of(mechanism, stddev), attribute, None)
    except tff_mf.InputError:
        return "refused"


def decisions(borders):
    """Returns what is decided on both sides of each border; a machine that computes otherwise has it elsewhere."""
    found = {}
    for name, mechanism in mechanisms().items():
        for attribute in DECIDED:
            low = float.fromhex(borders[name][attribute] or "0x1p0")
            high = math.nextafter(low, math.inf) if borders[name][attribute] else 2.0**39
            found[name, attribute] = [_decision(mechanism, attribute, stddev) for stddev in (low, high)]
    return found


def stored():
    """Returns what same_integers.json holds."""
    return {
        name: {
            **{key: found[key] for key in ("integers", "numbers")},
            "borders": {attribute: border(mechanisms()[name], attribute) for attribute in DECIDED},
        }
        for name, found in in_numpy().items()
    }


def same_everywhere(borders):
    """Returns all that must be the same on every machine."""
    return {"numpy": in_numpy(), "decisions": decisions(borders)}


def _digest(arrays):
    return hashlib.sha256(np.ascontiguousarray(np.stack(arrays)).tobytes()).hexdigest()
