"""Sensitivity where coefficients of C = LtToep(1 / d) are computed: a bound on what their rounding adds."""

import dataclasses

import numpy as np

from tff_mf.mechanisms import BandedInverse, ScaledInverse, series
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
    error = series.error_of_reciprocal(mechanism.inverse_column, column)
    if error <= _NEGLIGIBLE:
        return result
    rule = f"{result.rule}; upper bound: with what rounding of C may add"
    most = participation.max_participations
    return dataclasses.replace(result, value=result.value * (1 + most * error), exact=False, rule=rule)
