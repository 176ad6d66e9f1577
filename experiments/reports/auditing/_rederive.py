"""Rederives what a stored audit must say from its measurements: limits, verdicts and bounds."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ...output import agreement
from ._audit import ROUNDING, fits
from ._canaries import CONFIDENCE, bound_of_rates, can_tell_half
from ._setting import COUNTS, FEWEST_COORDINATES, Setting


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
    coordinates, delta = int(stored["coordinates"]), setting.plan.delta
    if coordinates != stored["coordinates"] or coordinates < FEWEST_COORDINATES:
        return [f"it has coordinates={stored['coordinates']!r}, and needs {FEWEST_COORDINATES}"]
    said = {
        "rounds": setting.rounds,
        "noise_multiplier": setting.plan.noise_multiplier,
        "delta": delta,
        "noise_scale": 1.0,
        "adjacency": setting.adjacency,
    }
    found = [f"it has {name}={stored[name]!r}, not {value!r}" for name, value in said.items() if stored[name] != value]
    if not agreement.claim_holds(stored["claimed_epsilon"], setting.claimed.epsilon(delta)):
        found.append("it claims another ε than the one that follows from the run")
    tests = {test["name"]: test for test in stored["tests"]}
    if len(tests) < len(stored["tests"]) or tuple(tests) != setting.names:
        return [*found, f"it has the tests {', '.join(tests)}, not {', '.join(setting.names)}"]
    for kind in ("canaries", "control"):
        found += _canaries(kind, stored[kind], coordinates, delta)
    passes = _limits(stored, setting, coordinates)
    for name in setting.names:
        value = tests[name]["value"]
        if tests[name]["passed"] is not False and not (math.isfinite(value) and passes[name](value)):
            found.append(f"its test {name} says that it passed, with {value!r}")
    if stored["passed"] is not all(test["passed"] is True for test in tests.values()):
        found.append("its verdict contradicts its tests")
    return found


def _limits(stored: Mapping[str, Any], setting: Setting, coordinates: int) -> dict[str, Callable[[float], bool]]:
    """Returns whether a measured value passes, for each test of an audit."""
    # As the audit compared, on its machine: the stored claim agrees with the recomputed one.
    claimed, sensitivity = float(stored["claimed_epsilon"]), setting.plan.sensitivity
    shown, halved = (max(stored[kind]["epsilon"], stored[kind]["epsilon_gaussian"]) for kind in ("canaries", "control"))
    can_fail = claimed < float(stored["control"]["at_most"]) and can_tell_half(
        setting.claimed, count=coordinates, delta=setting.plan.delta
    )
    of_noise = fits(setting.rounds, coordinates)
    return {
        **of_noise,
        **{COUNTS + name: passes for name, passes in of_noise.items()},
        "sensitivity": lambda value: 0 < value <= sensitivity * (1 + ROUNDING),
        "canaries": lambda value: value == shown <= claimed,
        "control": lambda value: value == halved and (value > claimed or not can_fail),
    }


def _canaries(kind: str, stored: Mapping[str, Any], coordinates: int, delta: float) -> list[str]:
    """Returns where bounds do not follow from the rates of hits and alarms."""
    expected = bound_of_rates(
        hits=round(stored["true_positives"] * coordinates),
        alarms=round(stored["false_positives"] * coordinates),
        count=coordinates,
        others=coordinates,
        delta=delta,
        confidence=CONFIDENCE,
    )
    for name, value in vars(expected).items():
        agrees = agreement.close if isinstance(value, float) else agreement.same
        if not agrees(stored[name], value):
            return [f"its {kind} have {name}={stored[name]!r}, which does not follow from their rates"]
    return []
