"""Sensitivity where coefficients of C = LtToep(1 / d) are computed: a bound on what their rounding adds."""

import dataclasses

import numpy as np

from tff_mf.mechanisms import BandedInverse, Mechanism, ScaledInverse, series
from tff_mf.problem.participation import Participation
from tff_mf.sensitivities.general import SensitivityResult
from tff_mf.sensitivities.scaled_columns import scaled_columns_sensitivity
from tff_mf.sensitivities.toeplitz import of_coefficients

# What is within the rounding that a sensitivity is stated up to.
_NEGLIGIBLE = 2.0**-41


def banded_inverse_sensitivity(
    mechanism: BandedInverse, rounds: int, participation: Participation
) -> SensitivityResult:
    """Returns the sensitivity by the rule for Toeplitz matrices, for the exact C."""
    result = of_coefficients(mechanism, rounds, participation)
    return _of_exact(mechanism, mechanism.coefficients(rounds), participation, result)


def scaled_inverse_sensitivity(
    mechanism: ScaledInverse, rounds: int, participation: Participation
) -> SensitivityResult:
    """Returns the sensitivity by the rule for scaled columns, for the exact C."""
    result = scaled_columns_sensitivity(mechanism, rounds, participation)
    return _of_exact(mechanism, mechanism.unscaled_column(rounds), participation, result)


def error_of_columns(mechanism: Mechanism, rounds: int) -> float:
    """Returns by what part of the largest one columns of the exact C may differ from the computed ones; 0 for nothing.

    Example:
        >>> error_of_columns(BandedInverse(inverse_column=[1.0, -0.5]), 100)
        0.0
    """
    if isinstance(mechanism, BandedInverse):
        return _error(mechanism, mechanism.coefficients(rounds))
    if isinstance(mechanism, ScaledInverse):
        # With the scales of both.
        return _error(mechanism, mechanism.unscaled_column(rounds))
    return 0.0


def _error(mechanism: BandedInverse | ScaledInverse, column: np.ndarray) -> float:
    error = series.error_of_reciprocal(mechanism.inverse_column, column)
    return error if error > _NEGLIGIBLE else 0.0


def _of_exact(
    mechanism: BandedInverse | ScaledInverse,
    column: np.ndarray,
    participation: Participation,
    result: SensitivityResult,
) -> SensitivityResult:
    """Returns an upper bound from the sensitivity of the computed C.

    Proof: column s of the exact C is off by at most η times its norm, which is at most the sensitivity, with its scale.
    So the k columns of a client are off by at most kη times the sensitivity.
    """
    error = _error(mechanism, column)
    if not error:
        return result
    rule = f"{result.rule}; upper bound: with what rounding of C may add"
    most = participation.max_participations
    return dataclasses.replace(result, value=result.value * (1 + most * error), exact=False, rule=rule)
