"""Closed forms of sensitivity from outside of this package: checked whenever they are used."""

import math
import numbers
from collections.abc import Iterator

from tff_mf._sensitivity._attained import attained, attained_by_any
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf._sensitivity._structure import by_structure
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.participation import FixedEpoch, MinSep, Participation
from tff_mf.registry import MechanismKind, check_matrices

_FEW_ROUNDS = (1, 3, 7)

# Rounding that a closed form is granted below what is attained.
_ROUNDING = 1e-10


def checked_claim(
    record: MechanismKind, mechanism: Mechanism, rounds: int, participation: Participation
) -> SensitivityResult:
    """Returns the sensitivity of a mechanism from outside by the structure of C, and checks its closed form.

    Formal guarantee: the result is the sensitivity, or a proven upper bound, whatever the closed form returns: between
    what clients are found to attain and the upper bound, no check can tell a right closed form from one that is too
    small. Matrices are checked first: `registry.check_matrices`.

    Raises:
        InputTypeError: If the closed form returns anything but a number or `None`.
        InputValueError: If it returns less than some client attains, now or at 1, 3 and 7 rounds; or if the matrices
            are not consistent.
    """
    check_matrices(mechanism, rounds)
    bound = by_structure(mechanism, rounds, participation)
    if record.sensitivity is None:
        return bound
    for few, schema in _small_settings(mechanism):
        claim = _claim(record, mechanism, few, schema)
        if claim is not None:
            _compare(record, claim, attained_by_any(mechanism.encoder(few), schema), few, schema)
    claim = _claim(record, mechanism, rounds, participation)
    if claim is None:
        return bound
    least = bound.value if bound.exact else attained(mechanism, rounds, participation)
    _compare(record, claim, least, rounds, participation)
    return bound


def _small_settings(mechanism: Mechanism) -> Iterator[tuple[int, Participation]]:
    most = mechanism.max_rounds or _FEW_ROUNDS[-1]
    for rounds in sorted({min(few, most) for few in _FEW_ROUNDS}):
        for min_sep in range(1, rounds + 1):
            for count in range(1, (rounds - 1) // min_sep + 2):
                yield rounds, MinSep(min_sep=min_sep, max_participations=count)
                yield rounds, FixedEpoch(min_sep=min_sep, max_participations=count)


def _claim(record: MechanismKind, mechanism: Mechanism, rounds: int, participation: Participation) -> float | None:
    claim = None if record.sensitivity is None else record.sensitivity(mechanism, rounds, participation)
    if claim is None:
        return None
    described = f"sensitivity of kind {record.kind!r}, rounds={rounds}, {participation!r}, is {claim!r}"
    if isinstance(claim, bool) or not isinstance(claim, numbers.Real):
        raise InputTypeError(f"{described}: its closed form must return a number, or None where it knows none.")
    if not math.isfinite(claim) or claim < 0:
        raise InputValueError(f"{described}: its closed form must return a finite number that is not negative.")
    return float(claim)


def _compare(record: MechanismKind, claim: float, least: float, rounds: int, participation: Participation) -> None:
    if claim < least * (1 - _ROUNDING):
        raise InputValueError(
            f"sensitivity of kind {record.kind!r}, rounds={rounds}, {participation!r}, is {claim!r} by its closed "
            f"form, but {least!r} is attained: correct the closed form, or register the mechanism without one."
        )
