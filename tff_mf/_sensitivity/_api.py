"""`sensitivity` and `explain_sensitivity`: by the closed form that a mechanism registered, or by the structure of C."""

from tff_mf import registry, validation
from tff_mf._sensitivity._claims import checked_claim
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf._sensitivity._structure import by_structure
from tff_mf.mechanisms import Mechanism
from tff_mf.participation import Participation


def sensitivity(mechanism: Mechanism, rounds: int, participation: Participation) -> float:
    """Returns sens_Π(C) for clip norm 1, or a proven upper bound of it.

    Formal guarantee:
        Adjacency: zero-out. Two streams are adjacent if they are equal but for the contributions of
        one client, which may be any vectors of L2 norm at most 1 in the rounds of one pattern of
        `participation`, and are zero in the other stream.
        Participation: every pattern of `participation` within `rounds`.
        Sensitivity: the largest Frobenius norm of C(x − x') over adjacent streams x and x' is at
        most the result, up to the rounding of float64 (below 9e-13 relative).
        Released: nothing.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.

    Source: McMahan et al. (2024), equation 8.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> round(sensitivity(BLT.production("b400"), 4000, MinSep(min_sep=400, max_participations=5)), 4)
        4.8831

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the participations do not fit in `rounds`, C has fewer rounds, or its entries
            are too many or too large to compute with.
    """
    return explain_sensitivity(mechanism, rounds, participation).value


def explain_sensitivity(mechanism: Mechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns what `sensitivity` does, with the rule that gave it and whether it is exact.

    Formal guarantee: as for `sensitivity`. For a class from outside of this package, see `register_mechanism`.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> explain_sensitivity(BLT(theta=[0.5], omega=[0.5]), 4, MinSep(min_sep=2, max_participations=2)).exact
        True

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the participations do not fit in `rounds`, C has fewer rounds, or its entries
            are too many or too large to compute with.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    validation.instance("participation", participation, Participation, "pass MinSep, FixedEpoch or SingleParticipation")
    rounds = participation.check(mechanism.check(rounds))
    record = registry.find(mechanism)
    if record is not None and record.outside:
        return checked_claim(record, mechanism, rounds, participation)
    if record is None or record.sensitivity is None:
        return by_structure(mechanism, rounds, participation)
    return record.sensitivity(mechanism, rounds, participation)
