"""Sensitivity of BLTs over more rounds than their coefficients are listed for."""

from tff_mf._sensitivity import toeplitz
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf.mechanisms import BLT, blt_sums
from tff_mf.participation import FixedEpoch, Participation


def blt_sensitivity(mechanism: BLT, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns the norm of the earliest pattern in closed form, where it is the sensitivity or an upper bound.

    C ≥ 0, so equal contributions are the worst. For fixed epochs and for one participation, a later pattern has the
    same columns cut off sooner. Otherwise c must not increase: theorem 3.1 of McMahan et al. (2024). If c₁ > 1, C is
    bounded entry by entry by the matrix with c₁ in place of c₀, for which the theorem holds. Over fewer rounds, the
    coefficients are listed.
    """
    separation, limit = participation.separation, participation.limit
    if not blt_sums.fits(mechanism, rounds, limit):
        return toeplitz.toeplitz(mechanism, rounds, participation)
    if limit == 1 or isinstance(participation, FixedEpoch):
        exact, rule = True, "BLT, closed form: C ≥ 0, and the earliest pattern is cut off last"
    elif blt_sums.never_rises(mechanism):
        exact, rule = True, "BLT, closed form, non-increasing: McMahan et al. (2024), theorem 3.1"
    else:
        exact = False
        rule = "BLT, closed form, upper bound: theorem 3.1 of McMahan et al. (2024) for the non-increasing majorant"
    value = blt_sums.earliest_pattern_norm(mechanism, rounds, separation, limit, raised=not exact)
    return SensitivityResult(value=value, exact=exact, rule=rule)
