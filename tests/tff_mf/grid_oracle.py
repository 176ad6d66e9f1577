"""An oracle: the integer recursion in exact fractions."""

from fractions import Fraction

import numpy as np


def exact_scales(mechanism, rounds):
    return 1 / np.diagonal(mechanism.cast_to_float32().encoder(rounds))


def couplings(recursion, rounds):
    """K: C below its diagonal, each row divided by its diagonal entry; with the rounded coefficients of a recursion."""
    encoder = recursion.mechanism.encoder(rounds)
    below = np.tril(encoder, -1) / np.diagonal(encoder)[:, np.newaxis]
    if recursion.coefficient_bits is not None:
        below = np.rint(np.ldexp(below, recursion.coefficient_bits))
        below = np.ldexp(below, -recursion.coefficient_bits)
    return below


def assert_recursion(mechanism, recursion, rows, drawn, deviation):
    """Up to e: the distance of s_t·z_t − Σ K n from the boundaries of the cell that a stream chose."""
    rounds, dimension = rows.shape
    assert np.array_equal(rows, np.floor(rows))
    assert np.abs(rows).max() <= recursion.largest
    scales = exact_scales(mechanism, rounds) * deviation
    below = couplings(recursion, rounds)
    # What the oracle itself rounds: the product with z, and K in float64.
    allowed = recursion.error(rounds) + 1e-7
    for t in range(rounds):
        for j in range(dimension):
            past = sum((Fraction(below[t, i]) * int(rows[i, j]) for i in range(t)), Fraction(0))
            value = Fraction(drawn[t, j]) * Fraction(scales[t]) - past
            assert -0.5 - allowed <= float(value - int(rows[t, j])) <= 0.5 + allowed
