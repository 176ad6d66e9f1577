"""Sensitivity of a mechanism without a closed form: by what is known of the structure of C."""

from tff_mf._sensitivity import _banded, general, toeplitz
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism
from tff_mf.participation import Participation


def by_structure(mechanism: Mechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns the sensitivity, or an upper bound of it, from coefficients, diagonals or entries of C.

    Formal guarantee: as for `tff_mf.sensitivity`, whatever C is.
    """
    if isinstance(mechanism, ToeplitzMechanism):
        return toeplitz.toeplitz(mechanism, rounds, participation)
    if isinstance(mechanism, BandedMechanism):
        return _banded.banded(mechanism, rounds, participation)
    return general.of_entries(mechanism, rounds, participation)
