"""How much noise a mechanism puts into what counts, prefix sums by default: McMahan et al. (2024), section 3.2.

Errors are those of noise with standard deviation 1; losses multiply by the sensitivity, so that they compare
mechanisms at equal privacy. None of this is privacy-critical.
"""

import math
from typing import NamedTuple

import numpy as np

from tff_mf import _validate
from tff_mf._sensitivity import sensitivity
from tff_mf.mechanisms import BLT, Mechanism, ToeplitzMechanism, blt_sums
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


def restart_errors(
    mechanism: Mechanism, rounds: int, *, restart_every: int, workload: Workload | None = None
) -> Errors:
    """Returns `errors` of a run whose noise starts anew after every r rounds: C is block-diagonal.

    A prefix sum holds the noise of each restart that has ended, and that of its own restart so far.

    Args:
        mechanism: The mechanism of one restart.
        rounds: Number of rounds n of the whole run; the last restart may be shorter.
        restart_every: Rounds r of a restart, at least 1; with r ≥ n there is none.
        workload: The workload A of the whole run; `None` is the prefix sum.

    Example:
        >>> from tff_mf import Identity
        >>> restart_errors(Identity(), 9, restart_every=4) == errors(Identity(), 9)
        True

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has fewer rounds than a restart.
    """
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    workload = PrefixSum() if workload is None else workload
    _validate.instance("workload", workload, Workload, "pass a workload such as tff_mf.Momentum, or None")
    rounds, every = workload.check(rounds), _validate.whole("restart_every", restart_every)
    if every >= rounds:
        return errors(mechanism, rounds, workload)
    mechanism.check(every)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(workload, PrefixSum):
            own = _prefix_sum_variances(mechanism, every)
            index = np.arange(_validate.listable(rounds))
            rows = index // every * own[-1] + own[index % every]
        else:
            matrix, inverse = workload.matrix(_validate.dense(rounds)), mechanism.inverse(every)
            rows = np.zeros(rounds)
            for begin in range(0, rounds, every):
                width = min(every, rounds - begin)
                block = matrix[begin:, begin : begin + width] @ inverse[:width, :width]
                rows[begin:] += np.sum(np.square(block), axis=1)
        mean, largest = float(np.mean(rows)), float(np.max(rows))
    return Errors(*(math.inf if math.isnan(value) else math.sqrt(value) for value in (mean, largest)))


def _prefix_sum_variances(mechanism: Mechanism, rounds: int) -> np.ndarray:
    """Returns the squared norm of each row of B = A·C⁻¹ for prefix sums, float64 `[rounds]`."""
    if isinstance(mechanism, ToeplitzMechanism):
        return np.cumsum(np.square(np.cumsum(mechanism.inverse_coefficients(_validate.listable(rounds)))))
    return np.sum(np.square(np.cumsum(mechanism.inverse(_validate.dense(rounds)), axis=0)), axis=1)


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
    if type(mechanism) is BLT and workload == PrefixSum() and blt_sums.fits(mechanism, rounds):
        errors = blt_sums.prefix_sum_errors(mechanism, rounds)
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
