"""How much noise a mechanism puts into prefix sums: McMahan et al. (2024), section 3.2.

Errors are those of noise with standard deviation 1; losses multiply by the sensitivity, so that they compare
mechanisms at equal privacy. None of this is privacy-critical.
"""

import math
from typing import NamedTuple

import numpy as np

from tff_mf import _validate
from tff_mf._sensitivity import sensitivity
from tff_mf.mechanisms import Mechanism, ToeplitzMechanism
from tff_mf.participation import Participation


def rms_error(mechanism: Mechanism, rounds: int) -> float:
    """Returns RmsError(B): the root of the mean, over rounds, of the variance of a prefix sum.

    Infinite if C⁻¹ grows beyond float64 within `rounds`.

    Source: McMahan et al. (2024), section 3.2 and proposition 3.2.

    Example:
        >>> from tff_mf import Identity
        >>> rms_error(Identity(), 7)
        2.0

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If `rounds` is out of range, or C has fewer.
    """
    return math.sqrt(_variances(mechanism, rounds).mean)


def max_error(mechanism: Mechanism, rounds: int) -> float:
    """Returns MaxError(B): the largest standard deviation of a prefix sum.

    Infinite if C⁻¹ grows beyond float64 within `rounds`.

    Source: McMahan et al. (2024), section 3.2 and proposition 3.2.

    Example:
        >>> from tff_mf import Identity
        >>> max_error(Identity(), 9)
        3.0

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If `rounds` is out of range, or C has fewer.
    """
    return math.sqrt(_variances(mechanism, rounds).largest)


def rms_loss(mechanism: Mechanism, rounds: int, participation: Participation) -> float:
    """Returns RmsLoss(B, C) = RmsError(B)·sens_Π(C).

    Source: McMahan et al. (2024), equation 7.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> round(rms_loss(BLT.production("b400"), 4000, MinSep(min_sep=400, max_participations=5)), 2)
        9.74

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the participations do not fit in `rounds`, or C has fewer rounds.
    """
    return sensitivity(mechanism, rounds, participation) * rms_error(mechanism, rounds)


def max_loss(mechanism: Mechanism, rounds: int, participation: Participation) -> float:
    """Returns MaxLoss(B, C) = MaxError(B)·sens_Π(C).

    Source: McMahan et al. (2024), equation 6.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> round(max_loss(BLT.production("b400"), 4000, MinSep(min_sep=400, max_participations=5)), 2)
        10.67

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the participations do not fit in `rounds`, or C has fewer rounds.
    """
    return sensitivity(mechanism, rounds, participation) * max_error(mechanism, rounds)


class _Variances(NamedTuple):
    """Mean and maximum, over rounds, of the squared row norms of B = A·C⁻¹."""

    mean: float
    largest: float


def _variances(mechanism: Mechanism, rounds: int) -> _Variances:
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    rounds = mechanism.check(rounds)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(mechanism, ToeplitzMechanism):
            # Row i of a Toeplitz B holds its first i + 1 coefficients: the i-th is in n − i rows. Sums
            # over all of them, unlike running sums, are pairwise, and good to the last digits.
            squares = np.square(np.cumsum(mechanism.inverse_coefficients(_validate.listable(rounds))))
            mean = np.sum(squares * np.arange(rounds, 0, -1)) / rounds
            largest = np.sum(squares)
        else:
            rows = np.sum(np.square(np.cumsum(mechanism.inverse(rounds), axis=0)), axis=1)
            mean, largest = np.mean(rows), np.max(rows)
    # Two coefficients that overflow with opposite signs leave a NaN behind.
    return _Variances(*(math.inf if math.isnan(value) else float(value) for value in (mean, largest)))
