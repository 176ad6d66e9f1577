"""Recursions of mechanisms from outside of this package: whether their noise is C⁻¹z."""

import numpy as np

from tff_mf import sensitivities
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import Recursion

_FEWEST_ROUNDS, _MOST_ROUNDS = 32, 2**9
# Relative to the largest entry of a row of C⁻¹.
_TOLERANCE = 1e-9


def check_recursion(mechanism: Mechanism) -> None:
    """Raises unless matrices and recursion of a mechanism are consistent.

    Formal guarantee: for the first rounds (32, or twice its rows of memory and eight, or as many as the mechanism has)
    the weights of z in what the recursion computes are C⁻¹, for C of the mechanism and as cast to float32. Noise that
    is not C⁻¹z voids every guarantee of this package. On a grid, what the recursion's own C differs from C in all
    rounds is added to the sensitivity.

    Raises:
        InputTypeError: If `recursion` returns anything but a `Recursion`.
        InputValueError: If anything does not hold.
    """
    for each in (mechanism, mechanism.cast_to_float32()):
        recursion = each.recursion()
        _check(each, recursion)
        if recursion.kept is not None:
            _check(each, recursion.kept)


def _check(mechanism: Mechanism, recursion: Recursion) -> None:
    # A subclass could compute anything.
    if type(recursion) is not Recursion:
        raise InputTypeError(
            f"the recursion of kind {mechanism.kind!r} is {recursion!r}: return a mechanisms.Recursion."
        )
    enough = min(max(_FEWEST_ROUNDS, 2 * recursion.rows + 8), _MOST_ROUNDS)
    rounds = min(mechanism.max_rounds or enough, recursion.rounds or enough, enough)
    sensitivities.check_outside(mechanism, rounds)
    inverse, found = mechanism.inverse(rounds), recursion.responses(rounds)
    error = np.abs(found - inverse).max(axis=1) / np.abs(inverse).max(axis=1)
    # NaN must not pass.
    wrong = ~(error <= _TOLERANCE)
    if np.any(wrong):
        first = int(np.argmax(wrong))
        raise InputValueError(
            f"the recursion of kind {mechanism.kind!r} is not C⁻¹z: row {first} has the weights "
            f"{found[first, : first + 1][-3:].tolist()} and must have {inverse[first, : first + 1][-3:].tolist()}. "
            "There is no privacy with other noise."
        )
