"""When a stored value agrees with the one recomputed from files, on this machine or on another one.

Floats that are recomputed differ in their last bits between processors, BLAS kernels and releases of NumPy. All else is
compared exactly, types included.
"""

import math
from collections.abc import Mapping
from typing import Any

# What a guarantee gets worse in: a stored one may not be smaller than the recomputed one by more than 1e-9 of it.
CLAIMS = frozenset(
    {
        *("epsilon", "epsilon_as_run", "epsilon_by_pld", "epsilon_from_zcdp", "epsilon_of_a_person"),
        *("amplified_epsilon", "delta", "mu", "zcdp_rho", "tail", "error", "log_ratio"),
        *("sensitivity", "sensitivity_as_run"),
    }
)
# What a guarantee gets better in: a stored one may not be larger than the recomputed one by more than 1e-9 of it.
STRENGTHS = frozenset({"noise_multiplier", "noise_multiplier_as_run", "effective_noise_multiplier"})
TOO_SMALL, APART = 1e-9, 1e-6
# A bound on rounding errors has last bits that are as large as what it bounds.
_ROUNDING_APART = 1e-12


def agrees(name: str, stored: Any, recomputed: Any) -> bool:
    """Returns whether a stored value of JSON agrees with the recomputed one; elements of a list have its name.

    Formal guarantee: if so, no claim in it is smaller than the recomputed one by more than 1e-9 of it, no strength is
    larger by more than that, no other float is further away than 1e-6 of it or 1e-12, and all else is equal.

    Example:
        >>> agrees("epsilon", 8.0, 8.000000000000002), agrees("epsilon", 7.9999999, 8.0), agrees("rounds", 1, 1.0)
        (True, False, False)
    """
    if isinstance(recomputed, Mapping):
        return isinstance(stored, Mapping) and not differing(stored, recomputed)
    if isinstance(recomputed, list | tuple):
        return (
            isinstance(stored, list)
            and len(stored) == len(recomputed)
            and all(agrees(name, *pair) for pair in zip(stored, recomputed, strict=True))
        )
    if type(stored) is not type(recomputed):
        return False
    if not isinstance(recomputed, float):
        return stored == recomputed
    if not math.isclose(stored, recomputed, rel_tol=APART, abs_tol=0.0 if name in CLAIMS else _ROUNDING_APART):
        return False
    if name in CLAIMS:
        return stored >= recomputed * (1 - TOO_SMALL)
    return name not in STRENGTHS or stored <= recomputed * (1 + TOO_SMALL)


def differing(stored: Mapping[str, Any], recomputed: Mapping[str, Any]) -> list[str]:
    """Returns the names, of either object, whose values do not agree.

    Example:
        >>> differing({"epsilon": 7.9, "mu": 1.0}, {"epsilon": 8.0, "mu": 1.0000000000000002, "rounds": 3})
        ['epsilon', 'rounds']
    """
    return [
        name
        for name in dict.fromkeys([*recomputed, *stored])
        if name not in stored or name not in recomputed or not agrees(name, stored[name], recomputed[name])
    ]
