"""Error and loss of a mechanism on a workload (prefix sums by default): McMahan et al. (2024), section 3.2.

Errors are for noise with standard deviation 1. Losses are errors times the sensitivity, so that they compare mechanisms
at equal privacy. Nothing here is privacy-critical.
"""

import math
from typing import NamedTuple

import numpy as np

from tff_mf.base import validation
from tff_mf.mechanisms import BLT, Mechanism, ToeplitzMechanism
from tff_mf.mechanisms.blt import fits, prefix_sum_errors
from tff_mf.problem.participation import Participation
from tff_mf.problem.workloads import PrefixSum, ToeplitzWorkload, Workload
from tff_mf.sensitivities._api import sensitivity


def rms_error(mechanism: Mechanism, rounds: int, workload: Workload | None = None) -> float:
    """Returns RmsError(B): the root of the mean variance of the noise in the rows of A·x, over all rounds.

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
        InputValueError: If `rounds` is out of range, or exceeds the rounds that C or the workload is defined for.
    """
    return errors(mechanism, rounds, workload).rms


def max_error(mechanism: Mechanism, rounds: int, workload: Workload | None = None) -> float:
    """Returns MaxError(B): the largest standard deviation of the noise in a row of A·x.

    Takes the arguments of `rms_error` and raises the same errors.

    Example:
        >>> from tff_mf import Identity
        >>> max_error(Identity(), 9)
        3.0
    """
    return errors(mechanism, rounds, workload).max


def rms_loss(
    mechanism: Mechanism, rounds: int, participation: Participation, workload: Workload | None = None
) -> float:
    """Returns RmsLoss(B, C) = RmsError(B)·sens_Π(C).

    The arguments are as of `rms_error` and `tff_mf.sensitivity`.

    Source: McMahan et al. (2024), equation 7.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> round(rms_loss(BLT.production("b400"), 4000, MinSep(min_sep=400, max_participations=5)), 2)
        9.74

    Raises:
        InputValueError: If the participations do not fit in `rounds`, or `rounds` exceeds the rounds that C or the
            workload is defined for.
    """
    return sensitivity(mechanism, rounds, participation) * rms_error(mechanism, rounds, workload)


def max_loss(
    mechanism: Mechanism, rounds: int, participation: Participation, workload: Workload | None = None
) -> float:
    """Returns MaxLoss(B, C) = MaxError(B)·sens_Π(C).

    Takes the arguments of `rms_loss` and raises the same errors.

    Source: McMahan et al. (2024), equation 6.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> round(max_loss(BLT.production("b400"), 4000, MinSep(min_sep=400, max_participations=5)), 2)
        10.67
    """
    return sensitivity(mechanism, rounds, participation) * max_error(mechanism, rounds, workload)


class Errors(NamedTuple):
    """RmsError and MaxError."""

    rms: float
    max: float


def errors(mechanism: Mechanism, rounds: int, workload: Workload | None = None) -> Errors:
    """Returns `rms_error` and `max_error`, in the time of one of them.

    Takes the arguments of `rms_error` and raises the same errors.

    Example:
        >>> from tff_mf import Identity
        >>> errors(Identity(), 1)
        Errors(rms=1.0, max=1.0)
    """
    workload = _checked(mechanism, workload)
    rounds = workload.check(mechanism.check(rounds))
    if type(mechanism) is BLT and workload == PrefixSum() and fits(mechanism, rounds):
        in_closed_form = prefix_sum_errors(mechanism, rounds)
        if in_closed_form is not None:
            return _roots(*in_closed_form)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(mechanism, ToeplitzMechanism) and isinstance(workload, ToeplitzWorkload):
            # Row i of a Toeplitz B holds its first i + 1 coefficients, so that the i-th is in n − i rows. These sums,
            # unlike running sums, are pairwise, and accurate to the last digits.
            squares = np.square(workload.applied_to(mechanism.inverse_coefficients(validation.listable(rounds))))
            return _roots(float(np.sum(squares * np.arange(rounds, 0, -1)) / rounds), float(np.sum(squares)))
        variances = np.sum(np.square(workload.applied_to(mechanism.inverse(validation.dense(rounds)))), axis=1)
        return _roots(float(np.mean(variances)), float(np.max(variances)))


def restart_errors(
    mechanism: Mechanism, rounds: int, *, restart_every: int, workload: Workload | None = None
) -> Errors:
    """Returns `errors` of a run whose noise restarts after every r rounds, so that C is block-diagonal.

    A prefix sum contains the noise of each restart that has ended, and of the current one so far.

    Args:
        mechanism: The mechanism of one restart.
        rounds: Number of rounds n of the whole run; the last restart may be shorter.
        restart_every: Rounds r of a restart, at least 1; for r ≥ n the noise never restarts.
        workload: The workload A of the whole run; `None` is the prefix sum.

    Example:
        >>> from tff_mf import Identity
        >>> restart_errors(Identity(), 9, restart_every=4) == errors(Identity(), 9)
        True

    Raises:
        InputValueError: If C has fewer rounds than a restart.
    """
    workload = _checked(mechanism, workload)
    rounds, every = workload.check(rounds), validation.whole("restart_every", restart_every)
    if every >= rounds:
        return errors(mechanism, rounds, workload)
    with np.errstate(over="ignore", invalid="ignore"):
        variances = _variances(mechanism, rounds, every, workload)
        return _roots(float(np.mean(variances)), float(np.max(variances)))


def round_errors(
    mechanism: Mechanism, rounds: int, *, restart_every: int | None = None, workload: Workload | None = None
) -> np.ndarray:
    """Returns the error of each round: the norm of each row of B = A·C⁻¹, float64 `[rounds]`.

    It is the standard deviation of the noise in that row of A times the updates, for σ = ζ = 1. RmsError is its root
    mean square, and MaxError its maximum.

    Takes the arguments of `restart_errors` and raises its errors; without `restart_every`, the noise never restarts.

    Example:
        >>> from tff_mf import Identity
        >>> round_errors(Identity(), 4).round(3).tolist()
        [1.0, 1.414, 1.732, 2.0]
    """
    workload = _checked(mechanism, workload)
    rounds = workload.check(rounds)
    every = rounds if restart_every is None else min(rounds, validation.whole("restart_every", restart_every))
    with np.errstate(over="ignore", invalid="ignore"):
        # As in `_roots`, what overflowed is infinite.
        return np.sqrt(np.nan_to_num(_variances(mechanism, rounds, every, workload), nan=np.inf, posinf=np.inf))


def _variances(mechanism: Mechanism, rounds: int, every: int, workload: Workload) -> np.ndarray:
    """Returns the squared norm of each row of B = A·C⁻¹, float64 `[rounds]`; C is one restart's, of r rounds."""
    mechanism.check(every)
    if isinstance(workload, PrefixSum):
        own = _prefix_sum_variances(mechanism, every)
        index = np.arange(validation.listable(rounds))
        return index // every * own[-1] + own[index % every]
    matrix, inverse = workload.matrix(validation.dense(rounds)), mechanism.inverse(every)
    variances = np.zeros(rounds)
    for begin in range(0, rounds, every):
        width = min(every, rounds - begin)
        block = matrix[begin:, begin : begin + width] @ inverse[:width, :width]
        variances[begin:] += np.sum(np.square(block), axis=1)
    return variances


def _prefix_sum_variances(mechanism: Mechanism, rounds: int) -> np.ndarray:
    """Returns the squared norm of each row of B = A·C⁻¹ for prefix sums A, float64 `[rounds]`."""
    if isinstance(mechanism, ToeplitzMechanism):
        return np.cumsum(np.square(np.cumsum(mechanism.inverse_coefficients(validation.listable(rounds)))))
    return np.sum(np.square(np.cumsum(mechanism.inverse(validation.dense(rounds)), axis=0)), axis=1)


def _checked(mechanism: Mechanism, workload: Workload | None) -> Workload:
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    workload = PrefixSum() if workload is None else workload
    validation.instance("workload", workload, Workload, "pass a workload such as tff_mf.Momentum, or None")
    return workload


def _roots(mean: float, largest: float) -> Errors:
    # Two coefficients that overflow with opposite signs leave a NaN behind.
    return Errors(*(math.inf if math.isnan(value) else math.sqrt(value) for value in (mean, largest)))
