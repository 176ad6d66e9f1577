"""Whether the matrices that a class from outside gives are what noise and sensitivity take them for."""

import numpy as np

from tff_mf import _matrices
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism
from tff_mf.registry._digest import content_digest
from tff_mf.registry._kinds import find

_FEW_ROUNDS = 32
# A whole inverse of so many rounds takes about a second.
_MOST_WHOLE_ROUNDS = 2**11
# Relative to the sum of the absolute values that are added up.
_TOLERANCE = 1e-9

# The class, the parameters and the rounds of what has passed, so that one mechanism is checked once.
_passed: set[tuple[type[Mechanism], bytes, int]] = set()


def check_matrices(mechanism: Mechanism, rounds: int) -> None:
    """Raises unless C and C⁻¹ of a class registered from outside are consistent; does nothing for any other.

    Formal guarantee: for up to 32 rounds C is finite and lower-triangular, C⁻¹ is its inverse, and both are what
    `coefficients` or `diagonals` say. For `rounds` rounds the first rows and columns are the same, and C⁻¹ times C is
    the identity, by their coefficients or, up to 2048 rounds, times a random vector. The cast to float32 is of
    the same class, and casting it again changes nothing.

    Raises:
        InputTypeError: If a method returns anything but an array of float64.
        InputValueError: If anything does not fit; the message names the kind and the method.
    """
    record = find(mechanism)
    if record is None or not record.outside:
        return
    key = (type(mechanism), content_digest(mechanism), rounds)
    if key in _passed:
        return
    few = min(rounds, _FEW_ROUNDS)
    _check_few(mechanism, few)
    if rounds > few:
        _check_many(mechanism, few, rounds)
    cast = mechanism.cast_to_float32()
    if type(cast) is not type(mechanism):
        raise InputTypeError(
            f"cast_to_float32 of kind {mechanism.kind!r} must return its own class, not {type(cast).__name__}."
        )
    again = cast.cast_to_float32()
    _same(cast, "cast_to_float32", again.encoder(few), cast.encoder(few), "itself when it is cast again")
    _passed.add(key)


def _check_few(mechanism: Mechanism, rounds: int) -> None:
    encoder, inverse = _triangle(mechanism, "encoder", rounds), _triangle(mechanism, "inverse", rounds)
    product, size = inverse @ encoder, np.abs(inverse) @ np.abs(encoder)
    if not np.all(np.abs(product - np.eye(rounds)) <= _TOLERANCE * size):
        raise _not_the_inverse(mechanism, rounds)
    if isinstance(mechanism, ToeplitzMechanism):
        expected = _matrices.lower_toeplitz(mechanism.coefficients(rounds))
        _same(mechanism, "encoder", encoder, expected, "its coefficients")
        expected = _matrices.lower_toeplitz(mechanism.inverse_coefficients(rounds))
        _same(mechanism, "inverse", inverse, expected, "its inverse_coefficients")
    elif isinstance(mechanism, BandedMechanism):
        _same(mechanism, "encoder", encoder, _of_diagonals(mechanism, rounds), "its diagonals")


def _check_many(mechanism: Mechanism, few: int, rounds: int) -> None:
    if isinstance(mechanism, ToeplitzMechanism):
        column, inverse = mechanism.coefficients(rounds), mechanism.inverse_coefficients(rounds)
        _same(mechanism, "coefficients", column[:few], mechanism.coefficients(few), "those of fewer rounds")
        _same(mechanism, "inverse_coefficients", inverse[:few], mechanism.inverse_coefficients(few), "those of fewer")
        length = 2 * rounds
        product = np.fft.irfft(np.fft.rfft(column, length) * np.fft.rfft(inverse, length), length)[:rounds]
        product[0] -= 1
        if not np.max(np.abs(product)) <= _TOLERANCE * np.linalg.norm(column) * np.linalg.norm(inverse):
            raise _not_the_inverse(mechanism, rounds)
    elif rounds <= _MOST_WHOLE_ROUNDS:
        encoder, inverse = _triangle(mechanism, "encoder", rounds), _triangle(mechanism, "inverse", rounds)
        _same(mechanism, "encoder", encoder[:few, :few], mechanism.encoder(few), "that of fewer rounds")
        _same(mechanism, "inverse", inverse[:few, :few], mechanism.inverse(few), "that of fewer rounds")
        vector = np.random.default_rng(0).standard_normal(rounds)
        size = np.abs(inverse) @ (np.abs(encoder) @ np.abs(vector))
        if not np.all(np.abs(inverse @ (encoder @ vector) - vector) <= _TOLERANCE * size):
            raise _not_the_inverse(mechanism, rounds)
    if isinstance(mechanism, BandedMechanism) and rounds <= _MOST_WHOLE_ROUNDS:
        _same(mechanism, "encoder", mechanism.encoder(rounds), _of_diagonals(mechanism, rounds), "its diagonals")


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


def _of_diagonals(mechanism: BandedMechanism, rounds: int) -> np.ndarray:
    diagonals = mechanism.diagonals(rounds)
    if len(diagonals) != mechanism.bands:
        raise InputValueError(
            f"diagonals of kind {mechanism.kind!r} are {len(diagonals)}, and its bands are {mechanism.bands}."
        )
    matrix = np.zeros((rounds, rounds))
    for offset, diagonal in enumerate(diagonals[:rounds]):
        np.fill_diagonal(matrix[offset:], diagonal)
    return matrix


def _same(mechanism: Mechanism, name: str, found: np.ndarray, expected: np.ndarray, what: str) -> None:
    # Not <= of the negation: NaN must not pass.
    if found.shape != expected.shape or not np.all(np.abs(found - expected) <= _TOLERANCE * np.max(np.abs(expected))):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} does not agree with {what}.")


def _not_the_inverse(mechanism: Mechanism, rounds: int) -> InputValueError:
    return InputValueError(f"inverse of kind {mechanism.kind!r} is not the inverse of its encoder, rounds={rounds}.")
