"""`check_mechanism`: whether what a mechanism says of itself fits together."""

import dataclasses
import itertools
import math
import numbers
from typing import Any

import numpy as np

from tff_mf.base import matrices
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism, registry
from tff_mf.problem.participation import FixedEpoch, MinSep, Participation
from tff_mf.sensitivities.general import SensitivityResult, by_structure

# Whole matrices of this many rounds take about a second.
_MOST_WHOLE_ROUNDS = 2**11
_USUAL_ROUNDS = 64
# The rounds of a default stream of a mechanism without a last round.
_MOST_TOEPLITZ_ROUNDS = 2**14
# All patterns and signs are tried for so many rounds.
_FEW_ROUNDS = (1, 3, 7)
# Columns of random numbers that C⁻¹C must give back.
_PROBES = 8
# Relative to the sum of the absolute values that are added up.
_TOLERANCE = 1e-9
# Rounding that a closed form is granted below what is attained.
_ROUNDING = 1e-10

# Class, parameters and rounds of what has passed, so that one mechanism is checked once.
_passed: set[tuple[type[Mechanism], bytes, int]] = set()


def check_mechanism(
    mechanism: Mechanism, rounds: int | None = None, participation: Participation | None = None
) -> None:
    """Raises unless what a registered mechanism says of itself fits together: for the tests of its author.

    It also runs before a sensitivity or an ε of a mechanism from outside of this package is stated, and when such a
    mechanism is saved or loaded. The noise is compared with C⁻¹z when its stream is built.

    Formal guarantee: up to 2048 rounds, `encoder` and `inverse` are finite, lower-triangular and each other's inverse,
    and what `coefficients` or `diagonals` say; a Toeplitz C also for all of `rounds`. C for fewer rounds is the leading
    part of C for more. The cast to float32 is of the same class, and casting it again changes nothing. The codec gives
    back every field, none of which can be changed, and the C of what it gives back is the same. A closed form of the
    sensitivity is not below what brute force finds for 1, 3 and 7 rounds, nor, with `participation`, below an exact
    rule or what a client with equal contributions attains. Code that returns other matrices in other calls is not
    found.

    Args:
        mechanism: The mechanism, of a registered class.
        rounds: Number of rounds; `None` for up to 64.
        participation: A schema at which the closed form is compared, if there is one.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> check_mechanism(BLT.production("b400"), 100, MinSep(min_sep=10, max_participations=3))

    Raises:
        InputTypeError: If a method returns anything of a wrong type, or the class is not registered.
        InputValueError: If anything does not fit; the message names the kind and the method.
    """
    record = registry.registered(mechanism)
    if rounds is None:
        rounds = min(_USUAL_ROUNDS, mechanism.max_rounds or _USUAL_ROUNDS)
    rounds = mechanism.check(rounds)
    few = min(rounds, _USUAL_ROUNDS // 2)
    _check_matrices(mechanism, min(rounds, _MOST_WHOLE_ROUNDS))
    _check_leading_parts(mechanism, (few, rounds))
    if isinstance(mechanism, ToeplitzMechanism) and rounds > _MOST_WHOLE_ROUNDS:
        _check_coefficients(mechanism, rounds)
    encoder, cast = mechanism.encoder(few), as_released(mechanism)
    _same(cast, "cast_to_float32", cast.cast_to_float32().encoder(few), cast.encoder(few), "itself when cast again")
    _same(mechanism, "codec", _through_codec(record, mechanism).encoder(few), encoder, "C of what was written")
    if record.sensitivity is not None:
        for fewer, schema in _small_settings(mechanism):
            _compare(mechanism, fewer, schema, attained_by_any(mechanism.encoder(fewer), schema))
        if participation is not None:
            bound = by_structure(mechanism, participation.check(rounds), participation)
            check_closed_form(mechanism, rounds, participation, bound)


def as_released(mechanism: Mechanism) -> Mechanism:
    """Returns `mechanism.cast_to_float32()`, the mechanism that noise runs with, and every ε is computed for.

    Raises:
        InputTypeError: If it is of another class, for which nothing would be checked.
    """
    cast = mechanism.cast_to_float32()
    if type(cast) is not type(mechanism):
        raise InputTypeError(
            f"cast_to_float32 of kind {mechanism.kind!r} must return its own class, not {type(cast).__name__}."
        )
    return cast


def check_outside(mechanism: Mechanism, rounds: int | None = None) -> None:
    """Does `check_mechanism` for a mechanism from outside of this package, once for its parameters and `rounds`."""
    record = registry.find(mechanism)
    if record is None or not record.outside:
        return
    # Always, because the digest knows only what the codec writes.
    _through_codec(record, mechanism)
    key = (type(mechanism), registry.content_digest(mechanism), rounds or 0)
    if key not in _passed:
        check_mechanism(mechanism, rounds)
        _passed.add(key)


def check_closed_form(
    mechanism: Mechanism, rounds: int, participation: Participation, bound: SensitivityResult
) -> None:
    """Raises if the closed form of a mechanism is below `bound`, if that is exact, or below what clients attain."""
    if bound.exact or rounds > _MOST_WHOLE_ROUNDS:
        least = bound.value if bound.exact else 0.0
    else:
        encoder, min_sep = mechanism.encoder(rounds), participation.min_sep
        patterns = [range(start, rounds, min_sep)[: participation.max_participations] for start in range(min_sep)]
        allowed = [pattern for pattern in patterns if pattern and participation.allows(pattern)]
        least = max(float(np.linalg.norm(np.sum(encoder[:, pattern], axis=1))) for pattern in allowed)
    _compare(mechanism, rounds, participation, least)


def attained_by_any(matrix: np.ndarray, participation: Participation) -> float:
    """Returns the largest ‖Cu‖ over all patterns and all contributions ±1: exponential, for few rounds.

    Example:
        >>> attained_by_any(2 * np.eye(3), MinSep(min_sep=3, max_participations=1))
        2.0
    """
    largest = 0.0
    for pattern in filter(None, participation.patterns(len(matrix))):
        signs = np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=len(pattern) - 1)])
        largest = max(largest, float(np.max(np.linalg.norm(signs @ matrix[:, list(pattern)].T, axis=1))))
    return largest


def _compare(mechanism: Mechanism, rounds: int, participation: Participation, least: float) -> None:
    closed_form = registry.registered(mechanism).sensitivity
    claim = None if closed_form is None else closed_form(mechanism, rounds, participation)
    if claim is None:
        return
    # This package's closed forms give a rule as well.
    claim = claim.value if isinstance(claim, SensitivityResult) else claim
    described = f"sensitivity of kind {mechanism.kind!r}, rounds={rounds}, {participation!r}, is {claim!r}"
    if isinstance(claim, bool) or not isinstance(claim, numbers.Real):
        raise InputTypeError(f"{described}: its closed form must return a number, or None where it knows none.")
    if not math.isfinite(claim) or claim < 0:
        raise InputValueError(f"{described}: its closed form must return a finite number that is not negative.")
    if claim < least * (1 - _ROUNDING):
        raise InputValueError(
            f"{described} by its closed form, but {least!r} is attained: correct the closed form, or register the "
            "mechanism without one."
        )


def _small_settings(mechanism: Mechanism) -> list[tuple[int, Participation]]:
    most = mechanism.max_rounds or _FEW_ROUNDS[-1]
    return [
        (rounds, schema(min_sep=min_sep, max_participations=count))
        for rounds in sorted({min(few, most) for few in _FEW_ROUNDS})
        for min_sep in range(1, rounds + 1)
        for count in range(1, (rounds - 1) // min_sep + 2)
        for schema in (MinSep, FixedEpoch)
    ]


def _check_matrices(mechanism: Mechanism, rounds: int) -> None:
    """Raises unless C and C⁻¹ are triangles, each other's inverse, and what coefficients or diagonals say."""
    encoder, inverse = (_numbers(mechanism, name, (rounds, rounds)) for name in ("encoder", "inverse"))
    probes = np.random.default_rng(0).standard_normal((rounds, _PROBES))
    size = np.abs(inverse) @ (np.abs(encoder) @ np.abs(probes))
    # Not > of the difference: NaN must not pass.
    if not np.all(np.abs(inverse @ (encoder @ probes) - probes) <= _TOLERANCE * size):
        raise _not_the_inverse(mechanism, rounds)
    if isinstance(mechanism, ToeplitzMechanism):
        for name, matrix in (("coefficients", encoder), ("inverse_coefficients", inverse)):
            column = _numbers(mechanism, name, (rounds,))
            _same(mechanism, name, matrices.lower_toeplitz(column), matrix, "the matrix")
    if isinstance(mechanism, BandedMechanism):
        matrix = np.zeros((rounds, rounds))
        for offset, diagonal in enumerate(_leading_part(mechanism, "diagonals", rounds)[:rounds]):
            np.fill_diagonal(matrix[offset:], diagonal)
        _same(mechanism, "diagonals", matrix, encoder, "the encoder")


def _check_coefficients(mechanism: Mechanism, rounds: int) -> None:
    """Raises unless the coefficients of C and of C⁻¹ belong to inverse matrices of `rounds` rounds."""
    column, inverse = (_numbers(mechanism, name, (rounds,)) for name in ("coefficients", "inverse_coefficients"))
    product = np.fft.irfft(np.fft.rfft(column, 2 * rounds) * np.fft.rfft(inverse, 2 * rounds), 2 * rounds)[:rounds]
    product[0] -= 1
    if not np.max(np.abs(product)) <= _TOLERANCE * np.linalg.norm(column) * np.linalg.norm(inverse):
        raise _not_the_inverse(mechanism, rounds)


def _check_leading_parts(mechanism: Mechanism, several: tuple[int, ...]) -> None:
    """Raises unless C is the same matrix for each number of rounds, and for all the rounds that it has."""
    names, most = ("encoder",), max(several)
    if isinstance(mechanism, ToeplitzMechanism):
        names, most = ("coefficients", "inverse_coefficients"), max(most, mechanism.max_rounds or _MOST_TOEPLITZ_ROUNDS)
    elif isinstance(mechanism, BandedMechanism):
        names, most = ("diagonals",), mechanism.max_rounds or max(most, _USUAL_ROUNDS)
    elif (mechanism.max_rounds or 0) <= _MOST_WHOLE_ROUNDS:
        most = mechanism.max_rounds or max(most, _USUAL_ROUNDS)
    else:
        most = max(most, _USUAL_ROUNDS)
    for name in names:
        whole = _leading_part(mechanism, name, most)
        for rounds in {*several} - {most}:
            expected = _within(whole[:, :rounds]) if name == "diagonals" else whole[(slice(rounds),) * whole.ndim]
            _same(mechanism, name, _leading_part(mechanism, name, rounds), expected, "its result for more rounds")


def _leading_part(mechanism: Mechanism, name: str, rounds: int) -> np.ndarray:
    if name == "diagonals" and isinstance(mechanism, BandedMechanism):
        return _within(_numbers(mechanism, name, (mechanism.bands, rounds)))
    return _numbers(mechanism, name, (rounds, rounds) if name == "encoder" else (rounds,))


def _within(diagonals: np.ndarray) -> np.ndarray:
    """Returns diagonals with zeros for what belongs to no row."""
    bands, rounds = diagonals.shape
    return np.where(np.arange(rounds) + np.arange(bands)[:, np.newaxis] < rounds, diagonals, 0)


def _numbers(mechanism: Mechanism, name: str, shape: tuple[int, ...]) -> np.ndarray:
    array = matrices.shaped(f"{name} of kind {mechanism.kind!r}", getattr(mechanism, name)(shape[-1]), shape)
    if name != "diagonals" and not np.all(np.isfinite(array)):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} holds NaN or infinity for rounds={shape[-1]}.")
    if name in ("encoder", "inverse") and np.any(np.triu(array, 1)):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} must be lower-triangular; rounds={shape[-1]}.")
    return array


def _through_codec(record: registry.MechanismKind, mechanism: Mechanism) -> Mechanism:
    """Returns the mechanism that the codec makes of what it writes, if no field is lost."""
    tensors = {name: tensor for name, tensor in registry.tensors_of(mechanism).items() if name in record.codec.axes}
    again = record.codec.decode(tensors, mechanism.optimized_for)
    for field in dataclasses.fields(mechanism):
        ours, theirs = getattr(mechanism, field.name), getattr(again, field.name, None)
        if isinstance(ours, np.ndarray) and ours.flags.writeable:
            raise InputValueError(
                f"{field.name} of kind {mechanism.kind!r} is an array that can be written to: set its flags.writeable "
                "to False in __post_init__, on a copy."
            )
        if isinstance(ours, list | dict | set | bytearray):
            raise InputValueError(
                f"{field.name} of kind {mechanism.kind!r} is a {type(ours).__name__}, which can be changed: make it a "
                "tuple, or another type that cannot, in __post_init__."
            )
        if not _equal(ours, theirs):
            raise InputValueError(
                f"the codec of kind {mechanism.kind!r} loses {field.name}: {ours!r} comes back as {theirs!r}."
            )
    return again


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, np.ndarray):
        return isinstance(theirs, np.ndarray) and np.array_equal(ours, theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def _same(mechanism: Mechanism, name: str, found: np.ndarray, expected: np.ndarray, what: str) -> None:
    # Not > of the difference: NaN must not pass.
    if found.shape != expected.shape or not np.all(np.abs(found - expected) <= _TOLERANCE * np.max(np.abs(expected))):
        raise InputValueError(f"{name} of kind {mechanism.kind!r} does not agree with {what}.")


def _not_the_inverse(mechanism: Mechanism, rounds: int) -> InputValueError:
    return InputValueError(f"inverse of kind {mechanism.kind!r} is not the inverse of its encoder, rounds={rounds}.")
