"""Rederives what a stored audit must say from its measurements: limits, verdicts and bounds."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ...output import agreement
from . import _audit
from ._audit import ROUNDING
from ._canaries import CONFIDENCE, bound_of_rates, can_tell_half
from ._setting import COUNTS, FEWEST_COORDINATES, Setting

_Passes = Callable[[float], bool]


def disagreements(stored: Any, setting: Setting) -> list[str]:
    """Returns where a stored audit does not follow from its measurements, or is not an audit of the setting.

    The measurements (variances, correlations, rates of hits and alarms) cannot be repeated without the noise, and are
    accepted as they are: a stored audit is a claim, and this shows that it is consistent, no more.
    """
    try:
        return _disagreements(stored, setting)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, ZeroDivisionError) as error:
        return [f"it is not an audit: {type(error).__name__} {error}"]


def _disagreements(stored: Any, setting: Setting) -> list[str]:
    coordinates = int(stored["coordinates"])
    if coordinates != stored["coordinates"] or coordinates < FEWEST_COORDINATES:
        return [f"it has coordinates={stored['coordinates']!r}, and needs {FEWEST_COORDINATES}"]
    found = _other_setting(stored, setting)
    tests = {test["name"]: test for test in stored["tests"]}
    if len(tests) < len(stored["tests"]) or tuple(tests) != setting.names:
        return [*found, f"it has the tests {', '.join(tests)}, not {', '.join(setting.names)}"]
    for kind in ("canaries", "control"):
        found += _canaries(kind, stored[kind], coordinates, setting.plan.delta)
    passes = _limits(stored, setting, coordinates)
    for name in setting.names:
        value = tests[name]["value"]
        if tests[name]["passed"] is not False and not (math.isfinite(value) and passes[name](value)):
            found.append(f"its test {name} says that it passed, with {value!r}")
    if stored["passed"] is not all(test["passed"] is True for test in tests.values()):
        found.append("its verdict contradicts its tests")
    return found


def _other_setting(stored: Mapping[str, Any], setting: Setting) -> list[str]:
    """Returns where an audit belongs to another run, or to another claim."""
    said = {
        "rounds": setting.rounds,
        "noise_multiplier": setting.plan.noise_multiplier,
        "delta": setting.plan.delta,
        "noise_scale": 1.0,
        "adjacency": setting.adjacency,
    }
    found = [f"it has {name}={stored[name]!r}, not {value!r}" for name, value in said.items() if stored[name] != value]
    if not agreement.claim_holds(stored["claimed_epsilon"], setting.claimed.epsilon(setting.plan.delta)):
        found.append("it claims another ε than the one that follows from the run")
    return found


def _limits(stored: Mapping[str, Any], setting: Setting, coordinates: int) -> dict[str, _Passes]:
    """Returns whether a measured value passes, for each test of an audit."""
    rounds, sensitivity, claim = setting.rounds, setting.plan.sensitivity, setting.claimed
    # As the audit compared, on its machine: the stored claim agrees with the recomputed one.
    claimed = float(stored["claimed_epsilon"])
    shown, halved = (max(stored[kind]["epsilon"], stored[kind]["epsilon_gaussian"]) for kind in ("canaries", "control"))
    can_fail = claimed < float(stored["control"]["at_most"]) and can_tell_half(
        claim, count=coordinates, delta=setting.plan.delta
    )
    of_noise: dict[str, _Passes] = {
        "variance": lambda value: _audit.variance_fits(value, rounds, coordinates),
        "covariance": lambda value: 0 <= value <= _audit.correlation_limit(rounds),
        "normality": lambda value: _audit.normality_fits(value, rounds * coordinates),
        "repeats": lambda value: 0 <= value <= _audit.repeats_limit(rounds, coordinates),
    }
    return {
        **of_noise,
        "integers": _audit.integers_fit,
        "pairs": _audit.pairs_fit,
        **{COUNTS + name: passes for name, passes in of_noise.items()},
        "fresh steps": lambda value: _audit.fresh_steps_fit(value, coordinates),
        "sensitivity": lambda value: 0 < value <= sensitivity * (1 + ROUNDING),
        "canaries": lambda value: value == shown <= claimed,
        "control": lambda value: value == halved and (value > claimed or not can_fail),
    }


def _canaries(kind: str, stored: Mapping[str, Any], coordinates: int, delta: float) -> list[str]:
    """Returns where bounds do not follow from the rates of hits and alarms."""
    expected = vars(
        bound_of_rates(
            hits=round(stored["true_positives"] * coordinates),
            alarms=round(stored["false_positives"] * coordinates),
            count=coordinates,
            others=coordinates,
            delta=delta,
            confidence=CONFIDENCE,
        )
    )
    odd = [name for name, value in expected.items() if not _follows(stored[name], value)]
    return [f"its {kind} have {odd[0]}={stored[odd[0]]!r}, which does not follow from their rates"] if odd else []


def _follows(stored: Any, recomputed: float) -> bool:
    return agreement.close(stored, recomputed) if isinstance(recomputed, float) else agreement.same(stored, recomputed)
