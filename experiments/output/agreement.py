"""When a stored value agrees with the one recomputed from files, on this machine or on another one.

Floats that are recomputed differ in their last bits between processors, BLAS kernels and releases of NumPy. So each
value is compared by the rule of its name, and every name that is not listed here by equality:

- A *claim* is what a guarantee gets worse in: ε, μ, ρ, a sensitivity, an error. The stored one may not be smaller than
  the recomputed one by more than 1e-9 of it, nor larger by more than 1e-6 of it.
- A *strength* is what a guarantee gets better in: the same rule, with the sides exchanged.
- Any other *recomputed* float agrees within 1e-6 of it; a bound on rounding errors also within 1e-12, since its own
  last bits are as large as what it bounds. What it is added to is a claim of its own.
- All else is equal, types included: hashes, whole numbers, states, names, texts, and inputs such as σ, δ or clip norm.

Tolerances add up where a stored value is compared with one that was computed from another stored value. Therefore
recompute each from the files that hold the inputs.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

CLAIMS = frozenset(
    {
        *("epsilon", "epsilon_as_run", "epsilon_by_pld", "epsilon_from_zcdp", "epsilon_of_a_person"),
        *("amplified_epsilon", "claimed_epsilon", "mu", "zcdp_rho", "tail", "error", "log_ratio"),
        *("sensitivity", "sensitivity_as_run"),
    }
)
STRENGTHS = frozenset({"effective_noise_multiplier"})
RECOMPUTED = frozenset({"limit"})
ROUNDING = frozenset({"added_sensitivity"})

# Relative: what a claim may be too small by, and what any recomputed float may differ by otherwise.
TOO_SMALL, APART = 1e-9, 1e-6
_ROUNDING_APART = 1e-12


def claim_holds(stored: float, recomputed: float) -> bool:
    """Returns whether a stored claim agrees with the recomputed one, which is finite or equal to it.

    Formal guarantee: if so, the stored value is at least (1 - 1e-9) times the recomputed one.

    Example:
        >>> claim_holds(8.0, 8.000000000000002), claim_holds(7.9999999, 8.0), claim_holds(8.1, 8.0)
        (True, False, False)
    """
    if not (math.isfinite(stored) and math.isfinite(recomputed)):
        return stored == recomputed
    size = abs(recomputed)
    return recomputed - TOO_SMALL * size <= stored <= recomputed + APART * size


def close(stored: float, recomputed: float) -> bool:
    """Returns whether two floats of which neither is a claim agree.

    Example:
        >>> close(1.0, 1.0000001), close(1.0, 1.00001)
        (True, False)
    """
    return math.isclose(stored, recomputed, rel_tol=APART)


def same(stored: Any, recomputed: Any) -> bool:
    """Returns whether two values of JSON are equal; 1, 1.0 and true differ.

    Example:
        >>> same({"n": 1}, {"n": 1}), same([1], [1.0])
        (True, False)
    """
    return _exact(stored) == _exact(recomputed)


def agrees(name: str, stored: Any, recomputed: Any) -> bool:
    """Returns whether a stored value agrees with the recomputed one by the rule of its name.

    Example:
        >>> agrees("epsilon", 8.0, 8.000000000000002), agrees("delta", 1e-6, 1.0000000000000002e-6)
        (True, False)
    """
    return same(stored, adopted(stored, recomputed, name))


def adopted(stored: Any, recomputed: Any, name: str = "") -> Any:
    """Returns the recomputed value with the stored one in place of each float in it that agrees.

    The result equals the stored value if, and only if, the two agree in everything. Elements of a list have the name of
    the list.

    Args:
        stored: A value of JSON.
        recomputed: The value that follows from the files.
        name: Its name.

    Example:
        >>> adopted({"epsilon": 8.0, "rounds": 3}, {"epsilon": 8.000000000000002, "rounds": 4})
        {'epsilon': 8.0, 'rounds': 4}
    """
    if isinstance(stored, Mapping) and isinstance(recomputed, Mapping):
        return {key: adopted(stored.get(key), value, str(key)) for key, value in recomputed.items()}
    if isinstance(stored, list) and isinstance(recomputed, list | tuple) and len(stored) == len(recomputed):
        return [adopted(*pair, name) for pair in zip(stored, recomputed, strict=True)]
    floats = isinstance(stored, float) and isinstance(recomputed, float)
    return stored if floats and _floats_agree(name, stored, recomputed) else recomputed


def differing(stored: Mapping[str, Any], recomputed: Mapping[str, Any]) -> list[str]:
    """Returns the names, of either object, whose values do not agree.

    Example:
        >>> differing({"epsilon": 7.9, "mu": 1.0}, {"epsilon": 8.0, "mu": 1.0000000000000002, "rounds": 3})
        ['epsilon', 'rounds']
    """
    names = dict.fromkeys([*recomputed, *stored])
    return [
        name
        for name in names
        if name not in stored or name not in recomputed or not agrees(name, stored[name], recomputed[name])
    ]


def _floats_agree(name: str, stored: float, recomputed: float) -> bool:
    if name in CLAIMS:
        return claim_holds(stored, recomputed)
    if name in STRENGTHS:
        return claim_holds(-stored, -recomputed)
    if name in ROUNDING:
        return close(stored, recomputed) or abs(stored - recomputed) <= _ROUNDING_APART
    return close(stored, recomputed) if name in RECOMPUTED else stored == recomputed


def _exact(value: Any) -> str:
    """Returns a value as text, which is different for 1, 1.0 and true."""
    return json.dumps(value, sort_keys=True)
