"""Sensitivity of BLTs over more rounds than their coefficients are listed for."""

from tff_mf._sensitivity import toeplitz
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf.mechanisms import BLT, blt_sums
from tff_mf.participation import FixedEpoch, Participation


def blt_sensitivity(mechanism: BLT, rounds: int, participation: Participation) -> SensitivityResult:
    """Takes the norm of the earliest pattern in closed form, where that is the sensitivity or bounds it.

    C ≥ 0, so that equal contributions are the worst. In fixed epochs later patterns have the same entries, cut off
    sooner; so has one participation. Otherwise c must not rise: theorem 3.1 of McMahan et al. (2024). Where c₁ > 1,
    C is bounded entry by entry by the matrix with c₁ in place of c₀, for which the theorem holds.
    """
    min_sep, max_participations = participation.min_sep, participation.max_participations
    if not blt_sums.fits(mechanism, rounds, max_participations):
        return toeplitz.toeplitz(mechanism, rounds, participation)
    if max_participations == 1 or isinstance(participation, FixedEpoch):
        exact, rule = True, "BLT, closed form: C ≥ 0, and the earliest pattern is cut off last"
    elif blt_sums.never_rises(mechanism):
        exact, rule = True, "BLT, closed form, non-increasing: McMahan et al. (2024), theorem 3.1"
    else:
        exact = False
        rule = "BLT, closed form, upper bound: theorem 3.1 of McMahan et al. (2024) for the non-increasing majorant"
    value = blt_sums.earliest_pattern_norm(mechanism, rounds, min_sep, max_participations, raised=not exact)
    return SensitivityResult(value=value, exact=exact, rule=rule)
