"""What an audit that is on file must say, given what it measured: limits, verdicts and bounds, computed once more."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from . import _noise_tests
from ._audit import ROUNDING
from ._canaries import CONFIDENCE, bound_of_rates, can_tell_half
from ._setting import COUNTS, FEWEST_COORDINATES, Setting

# Of figures that are computed twice from the same numbers.
_TOLERANCE = 1e-9


def disagreements(stored: Any, setting: Setting) -> list[str]:
    """Returns where an audit does not follow from what it measured, or is none of what is claimed.

    What was measured (variances, correlations, rates of hits and alarms) cannot be computed again without the noise,
    and is taken as it is: an audit that is on file is a claim, which this shows to be consistent, and no more.

    Args:
        stored: The audit as read from its file.
        setting: What it must be an audit of; its number of coordinates is taken from the file.
    """
    try:
        return _disagreements(stored, setting)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, ZeroDivisionError) as error:
        return [f"it is no audit: {type(error).__name__} {error}"]


def _disagreements(stored: Any, setting: Setting) -> list[str]:
    coordinates, sigma = int(stored["coordinates"]), setting.noise_multiplier
    said = {"rounds": setting.rounds, "noise_multiplier": sigma, "delta": setting.delta, "noise_scale": 1.0}
    claimed = setting.claimed.epsilon(setting.delta)
    if coordinates != stored["coordinates"] or coordinates < FEWEST_COORDINATES:
        return [f"it has coordinates={stored['coordinates']!r}, and needs {FEWEST_COORDINATES}"]
    found = [f"it has {name}={stored[name]!r}, not {value!r}" for name, value in said.items() if stored[name] != value]
    # Audits that do not name it are of the one that there was.
    if stored.get("adjacency", "zero-out") != setting.adjacency:
        found.append(f"it has adjacency={stored.get('adjacency')!r}, not {setting.adjacency!r}")
    if not _same(stored["claimed_epsilon"], claimed):
        found.append(f"it claims an ε of {stored['claimed_epsilon']!r}, not {claimed!r}")
    tests = {test["name"]: test for test in stored["tests"]}
    if len(tests) < len(stored["tests"]) or tuple(tests) != setting.names:
        return [*found, f"it has the tests {', '.join(tests)}, not {', '.join(setting.names)}"]
    for kind in ("canaries", "control"):
        found += _canaries(kind, stored[kind], coordinates, setting.delta)
    shown, halved = (_shown(stored[kind]) for kind in ("canaries", "control"))
    sensitivity = setting.sensitivity
    of_noise: dict[str, Callable[[float], bool]] = {
        "variance": lambda value: _noise_tests.variance_fits(value, setting.rounds, coordinates),
        "covariance": lambda value: 0 <= value <= _noise_tests.correlation_limit(setting.rounds),
        "normality": lambda value: _noise_tests.normality_fits(value, setting.rounds * coordinates),
        "repeats": lambda value: 0 <= value <= _noise_tests.repeats_limit(setting.rounds, coordinates),
    }
    passes = of_noise | {
        "fresh steps": lambda value: _noise_tests.fresh_steps_fit(value, coordinates),
        "sensitivity": lambda value: 0 < value <= sensitivity * (1 + ROUNDING),
        "canaries": lambda value: _same(value, shown) and value <= claimed,
        "control": lambda value: (
            _same(value, halved)
            and (
                value > claimed
                or claimed >= float(stored["control"]["at_most"])
                or not can_tell_half(setting.claimed, count=coordinates, delta=setting.delta)
            )
        ),
    }
    for name in setting.names:
        passed = of_noise[name.removeprefix(COUNTS)] if name.startswith(COUNTS) else passes[name]
        value = tests[name]["value"]
        if tests[name]["passed"] is not False and not (math.isfinite(value) and passed(value)):
            found.append(f"its test {name} says that it passed, with {value!r}")
    if stored["passed"] is not all(test["passed"] is True for test in tests.values()):
        found.append("it says that it passed, or did not, and its tests say otherwise")
    return found


def _canaries(kind: str, stored: Mapping[str, Any], coordinates: int, delta: float) -> list[str]:
    """Returns where bounds do not follow from rates of hits and alarms."""
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
    odd = [name for name, value in expected.items() if not _same(stored[name], value)]
    return [f"its {kind} have {odd[0]}={stored[odd[0]]!r}, not {expected[odd[0]]!r}"] if odd else []


def _shown(stored: Mapping[str, Any]) -> float:
    return max(stored["epsilon"], stored["epsilon_gaussian"])


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-12)
