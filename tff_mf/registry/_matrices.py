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
# The rounds of a default stream of a mechanism without a last round.
_MOST_TOEPLITZ_ROUNDS = 2**14
# Relative to the sum of the absolute values that are added up.
_TOLERANCE = 1e-9

# The class, the parameters and the rounds of what has passed, so that one mechanism is checked once.
_passed: set[tuple[type[Mechanism], bytes, int]] = set()


def check_matrices(mechanism: Mechanism, rounds: int) -> None:
    """Raises unless C and C⁻¹ of a class registered from outside are consistent; does nothing for any other.

    Formal guarantee: for up to 32 rounds C is finite and lower-triangular, C⁻¹ is its inverse, and both are what
    `coefficients` or `diagonals` say. For `rounds` rounds C⁻¹ times C is the identity, by their coefficients or, up to
    2048 rounds, times a random vector, and `encoder` agrees with `coefficients` or `diagonals` for up to 2048 rounds.
    C for few rounds is the leading part of C for `rounds` and for `max_rounds` (16,384 without one, for a Toeplitz C).
    All are float64 arrays of the documented shapes. The cast to float32 is of the same class, and casting it again
    changes nothing. Code that returns other matrices at other calls is not found.

    Raises:
        InputTypeError: If a method returns anything but an array of float64.
        InputValueError: If anything does not fit; the message names the kind and the method.
    """
    record = find(mechanism)
    if record is None or not record.outside:
        return
    few = min(rounds, _FEW_ROUNDS)
    _check_few(mechanism, few)
    key = (type(mechanism), content_digest(mechanism), rounds)
    if key in _passed:
        return
    if rounds > few:
        _check_many(mechanism, few, rounds)
    _check_prefixes(mechanism, few, rounds)
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
        expected = _matrices.lower_toeplitz(_column(mechanism, "coefficients", rounds))
        _same(mechanism, "encoder", encoder, expected, "its coefficients")
        expected = _matrices.lower_toeplitz(_column(mechanism, "inverse_coefficients", rounds))
        _same(mechanism, "inverse", inverse, expected, "its inverse_coefficients")
    if isinstance(mechanism, BandedMechanism):
        _same(mechanism, "encoder", encoder, _of_diagonals(mechanism, rounds), "its diagonals")


def _check_many(mechanism: Mechanism, few: int, rounds: int) -> None:
    whole = min(rounds, _MOST_WHOLE_ROUNDS)
    if isinstance(mechanism, ToeplitzMechanism):
        column, inverse = (_column(mechanism, name, rounds) for name in ("coefficients", "inverse_coefficients"))
        length = 2 * rounds
        product = np.fft.irfft(np.fft.rfft(column, length) * np.fft.rfft(inverse, length), length)[:rounds]
        product[0] -= 1
        if not np.max(np.abs(product)) <= _TOLERANCE * np.linalg.norm(column) * np.linalg.norm(inverse):
            raise _not_the_inverse(mechanism, rounds)
        expected = _matrices.lower_toeplitz(column[:whole])
        _same(mechanism, "encoder", _triangle(mechanism, "encoder", whole), expected, "its coefficients")
    elif rounds <= _MOST_WHOLE_ROUNDS:
        encoder, inverse = _triangle(mechanism, "encoder", rounds), _triangle(mechanism, "inverse", rounds)
        _same(mechanism, "inverse", inverse[:few, :few], mechanism.inverse(few), "that of fewer rounds")
        vector = np.random.default_rng(0).standard_normal(rounds)
        size = np.abs(inverse) @ (np.abs(encoder) @ np.abs(vector))
        if not np.all(np.abs(inverse @ (encoder @ vector) - vector) <= _TOLERANCE * size):
            raise _not_the_inverse(mechanism, rounds)
    if isinstance(mechanism, BandedMechanism):
        _same(mechanism, "encoder", mechanism.encoder(whole), _of_diagonals(mechanism, whole), "its diagonals")


def _check_prefixes(mechanism: Mechanism, few: int, rounds: int) -> None:
    """Raises unless C is the same matrix for `few`, for `rounds` and for all the rounds that it has."""
    most = max(rounds, mechanism.max_rounds or _MOST_TOEPLITZ_ROUNDS)
    if isinstance(mechanism, ToeplitzMechanism):
        for name in ("coefficients", "inverse_coefficients"):
            column = _column(mechanism, name, most)
            for fewer in (few, rounds):
                _same(mechanism, name, _column(mechanism, name, fewer), column[:fewer], "that of more rounds")
    elif isinstance(mechanism, BandedMechanism):
        most = most if mechanism.max_rounds else rounds
        diagonals = _diagonals(mechanism, most)
        for fewer in (few, rounds):
            mask = np.arange(fewer) + np.arange(len(diagonals))[:, np.newaxis] < fewer
            found, expected = _diagonals(mechanism, fewer), diagonals[:, :fewer]
            _same(mechanism, "diagonals", np.where(mask, found, 0), np.where(mask, expected, 0), "that of more rounds")
    else:
        most = most if mechanism.max_rounds and mechanism.max_rounds <= _MOST_WHOLE_ROUNDS else rounds
        encoder = _triangle(mechanism, "encoder", most)
        for fewer in (few, rounds):
            found = _triangle(mechanism, "encoder", fewer)
            _same(mechanism, "encoder", found, encoder[:fewer, :fewer], "that of more rounds")


def _column(mechanism: ToeplitzMechanism, name: str, rounds: int) -> np.ndarray:
    return _checked(mechanism, name, getattr(mechanism, name)(rounds), (rounds,))


def _diagonals(mechanism: BandedMechanism, rounds: int) -> np.ndarray:
    return _checked(mechanism, "diagonals", mechanism.diagonals(rounds), (mechanism.bands, rounds))


def _checked(mechanism: Mechanism, name: str, found: object, shape: tuple[int, ...]) -> np.ndarray:
    array = _matrices.shaped(f"{name} of kind {mechanism.kind!r}", found, shape)
    if name != "diagonals" and not np.all(np.isfinite(array)):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} holds NaN or infinity for rounds={shape[-1]}.")
    return array


def _triangle(mechanism: Mechanism, name: str, rounds: int) -> np.ndarray:
    matrix = _checked(mechanism, name, getattr(mechanism, name)(rounds), (rounds, rounds))
    if np.any(np.triu(matrix, 1)):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} must be lower-triangular; rounds={rounds}.")
    return matrix


def _of_diagonals(mechanism: BandedMechanism, rounds: int) -> np.ndarray:
    matrix = np.zeros((rounds, rounds))
    for offset, diagonal in enumerate(_diagonals(mechanism, rounds)[:rounds]):
        np.fill_diagonal(matrix[offset:], diagonal)
    return matrix


def _same(mechanism: Mechanism, name: str, found: np.ndarray, expected: np.ndarray, what: str) -> None:
    # Not <= of the negation: NaN must not pass.
    if found.shape != expected.shape or not np.all(np.abs(found - expected) <= _TOLERANCE * np.max(np.abs(expected))):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} does not agree with {what}.")


def _not_the_inverse(mechanism: Mechanism, rounds: int) -> InputValueError:
    return InputValueError(f"inverse of kind {mechanism.kind!r} is not the inverse of its encoder, rounds={rounds}.")
