"""How much noise a mechanism puts into what counts, prefix sums by default: McMahan et al. (2024), section 3.2.

Errors are those of noise with standard deviation 1; losses multiply by the sensitivity, so that they compare
mechanisms at equal privacy. None of this is privacy-critical.
"""

import math
from typing import NamedTuple

import numpy as np

from tff_mf import _validate
from tff_mf._sensitivity import sensitivity
from tff_mf.mechanisms import BLT, Mechanism, ToeplitzMechanism, _blt_sums
from tff_mf.participation import Participation
from tff_mf.workloads import PrefixSum, ToeplitzWorkload, Workload


def rms_error(mechanism: Mechanism, rounds: int, workload: Workload | None = None) -> float:
    """Returns RmsError(B): the root of the mean, over rounds, of the variance of a row of the workload.

    Infinite if C⁻¹ grows beyond float64 within `rounds`.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        workload: The workload A; `None` is the prefix sum.

    Source: McMahan et al. (2024), section 3.2 and proposition 3.2.

    Example:
        >>> from tff_mf import Identity
        >>> rms_error(Identity(), 7)
        2.0

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If `rounds` is out of range, or C or the workload has fewer.
    """
    return math.sqrt(_variances(mechanism, rounds, workload).mean)


def max_error(mechanism: Mechanism, rounds: int, workload: Workload | None = None) -> float:
    """Returns MaxError(B): the largest standard deviation of a row of the workload.

    Infinite if C⁻¹ grows beyond float64 within `rounds`.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        workload: The workload A; `None` is the prefix sum.

    Source: McMahan et al. (2024), section 3.2 and proposition 3.2.

    Example:
        >>> from tff_mf import Identity
        >>> max_error(Identity(), 9)
        3.0

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If `rounds` is out of range, or C or the workload has fewer.
    """
    return math.sqrt(_variances(mechanism, rounds, workload).largest)


def rms_loss(
    mechanism: Mechanism, rounds: int, participation: Participation, workload: Workload | None = None
) -> float:
    """Returns RmsLoss(B, C) = RmsError(B)·sens_Π(C).

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        workload: The workload A; `None` is the prefix sum.

    Source: McMahan et al. (2024), equation 7.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> round(rms_loss(BLT.production("b400"), 4000, MinSep(min_sep=400, max_participations=5)), 2)
        9.74

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the participations do not fit in `rounds`, or C or the workload has fewer rounds.
    """
    return sensitivity(mechanism, rounds, participation) * rms_error(mechanism, rounds, workload)


def max_loss(
    mechanism: Mechanism, rounds: int, participation: Participation, workload: Workload | None = None
) -> float:
    """Returns MaxLoss(B, C) = MaxError(B)·sens_Π(C).

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        workload: The workload A; `None` is the prefix sum.

    Source: McMahan et al. (2024), equation 6.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> round(max_loss(BLT.production("b400"), 4000, MinSep(min_sep=400, max_participations=5)), 2)
        10.67

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the participations do not fit in `rounds`, or C or the workload has fewer rounds.
    """
    return sensitivity(mechanism, rounds, participation) * max_error(mechanism, rounds, workload)


class Errors(NamedTuple):
    """RmsError and MaxError."""

    rms: float
    max: float


def errors(mechanism: Mechanism, rounds: int, workload: Workload | None = None) -> Errors:
    """Returns `rms_error` and `max_error`, in the time of one of them.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        workload: The workload A; `None` is the prefix sum.

    Example:
        >>> from tff_mf import Identity
        >>> errors(Identity(), 1)
        Errors(rms=1.0, max=1.0)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If `rounds` is out of range, or C or the workload has fewer.
    """
    return Errors(*map(math.sqrt, _variances(mechanism, rounds, workload)))


def takes_matrices(mechanism: Mechanism, workload: Workload) -> bool:
    """Returns whether errors need whole matrices, rather than first columns."""
    return not (isinstance(mechanism, ToeplitzMechanism) and isinstance(workload, ToeplitzWorkload))


class _Variances(NamedTuple):
    """Mean and maximum, over rounds, of the squared row norms of B = A·C⁻¹."""

    mean: float
    largest: float


def _variances(mechanism: Mechanism, rounds: int, workload: Workload | None) -> _Variances:
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    workload = PrefixSum() if workload is None else workload
    _validate.instance("workload", workload, Workload, "pass a workload such as tff_mf.Momentum, or None")
    rounds = workload.check(mechanism.check(rounds))
    if isinstance(mechanism, BLT) and workload == PrefixSum() and _blt_sums.fits(mechanism, rounds):
        errors = _blt_sums.prefix_sum_errors(mechanism, rounds)
        if errors is not None:
            return _Variances(*errors)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(mechanism, ToeplitzMechanism) and isinstance(workload, ToeplitzWorkload):
            # Row i of a Toeplitz B holds its first i + 1 coefficients: the i-th is in n − i rows. Sums
            # over all of them, unlike running sums, are pairwise, and good to the last digits.
            squares = np.square(workload.applied_to(mechanism.inverse_coefficients(_validate.listable(rounds))))
            mean = np.sum(squares * np.arange(rounds, 0, -1)) / rounds
            largest = np.sum(squares)
        else:
            rows = np.sum(np.square(workload.applied_to(mechanism.inverse(_validate.dense(rounds)))), axis=1)
            mean, largest = np.mean(rows), np.max(rows)
    # Two coefficients that overflow with opposite signs leave a NaN behind.
    return _Variances(*(math.inf if math.isnan(value) else float(value) for value in (mean, largest)))
