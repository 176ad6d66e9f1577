"""Whether the matrices that a class from outside gives are what noise and sensitivity take them for."""

import numpy as np

from tff_mf import _matrices, _validate
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism
from tff_mf.registry._kinds import find

_FEW_ROUNDS = 16
# Inverting a matrix of so many rounds takes a tenth of a second.
_MOST_ROUNDS = 2**10
# Relative to the sum of the absolute values that are added up.
_TOLERANCE = 1e-9


def check_matrices(mechanism: Mechanism, rounds: int) -> None:
    """Raises unless C and C⁻¹ of a class registered from outside are consistent; does nothing for any other.

    Formal guarantee: for few rounds, and for as many as `rounds` up to 1024, C is finite and lower-triangular, C⁻¹ is
    its inverse, both are what `coefficients` or `diagonals` say, and those for more rounds continue those for fewer.
    The cast to float32 is of the same class.

    Raises:
        InputTypeError: If a method returns anything but an array of float64.
        InputValueError: If anything does not fit; the message names the kind and the method.
    """
    record = find(mechanism)
    if record is None or not record.outside:
        return
    few, many = min(rounds, _FEW_ROUNDS), min(rounds, _MOST_ROUNDS)
    for count in sorted({few, many}):
        _check_pair(mechanism, count)
        _check_structure(mechanism, count)
    _same(mechanism, "encoder", mechanism.encoder(many)[:few, :few], mechanism.encoder(few), "that of fewer rounds")
    _same(mechanism, "inverse", mechanism.inverse(many)[:few, :few], mechanism.inverse(few), "that of fewer rounds")
    if isinstance(mechanism, ToeplitzMechanism):
        column = mechanism.coefficients(rounds)
        _same(mechanism, "coefficients", column[:many], mechanism.coefficients(many), "those of fewer rounds")
    cast = mechanism.as_run()
    if type(cast) is not type(mechanism):
        raise InputTypeError(
            f"as_run of kind {mechanism.kind!r} returns a {type(cast).__name__}: return the same class."
        )


def _check_pair(mechanism: Mechanism, rounds: int) -> None:
    encoder, inverse = _triangle(mechanism, "encoder", rounds), _triangle(mechanism, "inverse", rounds)
    product, size = inverse @ encoder, np.abs(inverse) @ np.abs(encoder)
    if not np.all(np.abs(product - np.eye(rounds)) <= _TOLERANCE * size):
        raise InputValueError(f"inverse of kind {mechanism.kind!r} is not the inverse of its encoder, rounds={rounds}.")


def _triangle(mechanism: Mechanism, name: str, rounds: int) -> np.ndarray:
    matrix = getattr(mechanism, name)(rounds)
    if not isinstance(matrix, np.ndarray) or matrix.dtype != np.float64:
        raise InputTypeError(f"{name} of kind {mechanism.kind!r} must return an array of float64.")
    if matrix.shape != (rounds, rounds):
        raise InputValueError(
            f"{name} of kind {mechanism.kind!r} has the shape {matrix.shape} for rounds={rounds}: return a square."
        )
    if not np.all(np.isfinite(matrix)):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} holds NaN or infinity for rounds={rounds}.")
    if np.any(np.triu(matrix, 1)):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} must be lower-triangular; rounds={rounds}.")
    return matrix


def _check_structure(mechanism: Mechanism, rounds: int) -> None:
    if isinstance(mechanism, ToeplitzMechanism):
        for name, column in (("encoder", mechanism.coefficients), ("inverse", mechanism.inverse_coefficients)):
            expected = _matrices.lower_toeplitz(column(rounds))
            _same(mechanism, name, getattr(mechanism, name)(rounds), expected, "its Toeplitz coefficients")
    elif isinstance(mechanism, BandedMechanism):
        diagonals = mechanism.diagonals(_validate.dense(rounds))
        expected = np.zeros((rounds, rounds))
        for offset, diagonal in enumerate(diagonals[:rounds]):
            np.fill_diagonal(expected[offset:], diagonal)
        _same(mechanism, "encoder", mechanism.encoder(rounds), expected, "its diagonals")
        if len(diagonals) != mechanism.bands:
            raise InputValueError(
                f"diagonals of kind {mechanism.kind!r} are {len(diagonals)}, and its bands are {mechanism.bands}."
            )


def _same(mechanism: Mechanism, name: str, found: np.ndarray, expected: np.ndarray, what: str) -> None:
    # Not <= of the negation: NaN must not pass.
    if found.shape != expected.shape or not np.all(np.abs(found - expected) <= _TOLERANCE * np.abs(expected)):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} does not agree with {what}.")
