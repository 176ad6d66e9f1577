"""The audit: emits the noise of whole runs and tests it; and rederives what a stored one says from its measurements."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import stats

import tff_mf
from tff_mf.base import validation
from tff_mf.numerics import normals

from ...output import agreement, progress
from ._canaries import CONFIDENCE, CanaryBound, bound_of_rates, can_tell_half, canary_bound, reached_sensitivity
from ._setting import COUNTS, FEWEST_COORDINATES, Setting, Test

# Relative tolerance of the sensitivity, above rounding errors.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Emitted:
    """The whitened noise of two runs, `[rows, coordinates]`: independent standard normals if it is correct.

    Attributes:
        moved: The contribution of a canary to each row.
        inexact: How many numbers of the noise are not on the grid; 0 in floating point.
    """

    rows: np.ndarray
    others: np.ndarray
    moved: np.ndarray
    inexact: int

    @property
    def tests(self) -> list[Test]:
        """The tests that sums and counts share."""
        return [
            variance(self.rows),
            correlation(self.rows),
            normality(self.rows),
            repeats(self.rows, self.others),
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit: tests, and what canaries show in the noise.

    `control` is the same for noise of half the size: an audit that does not notice this proves nothing.
    """

    tests: list[Test]
    claimed_epsilon: float
    coordinates: int
    canaries: CanaryBound
    control: CanaryBound

    @property
    def passed(self) -> bool:
        return all(test.passed for test in self.tests)


def audit(setting: Setting) -> Audit:
    """Emits the noise of a whole run twice, and applies all tests to it.

    Formal guarantee: none. An audit that passes proves nothing. A failed test is a false alarm with probability at most
    1e-8; a lower bound of ε holds with its confidence.
    """
    from . import _emitted

    plan, rounds, sigma = setting.plan, setting.rounds, setting.plan.noise_multiplier
    # Of the rounds between two restarts, as often as the run has them.
    blocks = np.eye(-(-validation.dense(rounds) // setting.every))
    encoder = np.kron(blocks, plan.mechanism.cast_to_float32().encoder(setting.every))[:rounds, :rounds]
    middle = (setting.every + 1) // 2
    steps = _emitted.step_twice(plan.mechanism, middle, stddev=sigma, **setting.of_stream)
    progress.step("sensitivity")
    reached, pattern = reached_sensitivity(encoder, plan.participation)
    most, who = plan.sensitivity * (1 + _ROUNDING), {"rounds": [int(each) + 1 for each in pattern]}
    progress.step("noise")
    times = 1.0 if setting.adjacency == "zero-out" else 2.0
    canary = times * np.sum(encoder[:, list(pattern)], axis=1) / sigma
    sums = _emission(setting, plan.mechanism, sigma, encoder, canary, restart_every=plan.restart_every)
    progress.step("canaries")
    parts = [sums]
    if (stddev := plan.adaptive_count_stddev) is not None:
        canary = np.zeros(rounds)
        canary[list(pattern)] = _emitted.count_moved(setting.adjacency) / stddev
        parts.append(_emission(setting, tff_mf.Identity(), stddev, np.eye(rounds), canary))
    canaries, control = (_attack(parts, plan.delta, scale) for scale in (1.0, 0.5))
    claimed = setting.claimed.epsilon(plan.delta)
    tells = can_tell_half(setting.claimed, count=setting.samples, delta=plan.delta)
    progress.step("tests")
    tests = [
        *sums.tests,
        fresh_steps(*steps, stddev=sigma / encoder[middle - 1, middle - 1]),
        Test(name="sensitivity", passed=reached <= most, value=reached, limit=plan.sensitivity, about=who),
        *_epsilons(claimed, canaries, control, tells=tells),
        *([] if plan.grid is None else [integers(sums.inexact), pairs(sums.rows)]),
        *(dataclasses.replace(each, name=COUNTS + each.name) for part in parts[1:] for each in part.tests),
    ]
    progress.step()
    return Audit(tests=tests, claimed_epsilon=claimed, coordinates=setting.samples, canaries=canaries, control=control)


def _emission(
    setting: Setting,
    mechanism: tff_mf.Mechanism,
    stddev: float,
    encoder: np.ndarray,
    moved: np.ndarray,
    restart_every: int | None = None,
) -> _Emitted:
    """Returns the noise of two runs, whitened by the encoder of a whole run."""
    from . import _emitted

    whitened_runs, inexact, grid = [], 0, setting.plan.grid
    for _ in range(2):
        own = _emitted.emit(mechanism, setting.rounds, stddev=stddev, restart_every=restart_every, **setting.of_stream)
        noise = setting.noise_scale * own.astype(np.float64)
        inexact += 0 if grid is None else not_on_grid(noise, grid.largest_norm)
        whitened_runs.append(whitened(noise, encoder, stddev))
    return _Emitted(rows=whitened_runs[0], others=whitened_runs[1], moved=moved, inexact=inexact)


def _attack(parts: list[_Emitted], delta: float, scale: float) -> CanaryBound:
    """Returns the bound of the best attack: for Gaussian noise, the score is the projection on a canary's contribution.

    Each coordinate holds one canary, a client whose updates are all the unit vector of that coordinate, scaled above
    the clip norm. The canaries of the first half of the coordinates take part; in the second half, their neighbours do.
    """
    length = math.sqrt(sum(float(np.sum(np.square(part.moved))) for part in parts))
    runs = (sum(part.moved @ part.rows for part in parts), sum(part.moved @ part.others for part in parts))
    noise = scale * np.concatenate(runs) / length
    half = len(noise) // 2
    return canary_bound(noise[:half] + length, noise[half:], threshold=length / 2, delta=delta)


def _epsilons(claimed: float, canaries: CanaryBound, control: CanaryBound, *, tells: bool) -> list[Test]:
    shown, halved = canaries.shown, control.shown
    # Above the largest ε that this number of canaries can show, the control proves nothing.
    passed = halved > claimed or claimed >= control.at_most or not tells
    of_claim, of_control = {"confidence": canaries.confidence}, {"at_most": control.at_most, "tells": tells}
    return [
        Test(name="canaries", passed=shown <= claimed, value=shown, limit=claimed, about=of_claim),
        Test(name="control", passed=passed, value=halved, limit=claimed, about=of_control),
    ]


# Probability that correct noise fails a test.
_CHANCE = 1e-9

# Number of rows on which every shift is tried: some thousand pairs.
_MOST_SHIFTED_ROWS = 48

# A box so wide hardly ever has a pair of float32 normals by chance if it is so many standard deviations out.
# It has one in 2.6 % of all cases, so that more than half of 16 boxes have one with a probability below 1e-9.
_FAR, _BOX, _PRODUCED = 3.25, 0.98e-6, 0.5
_FEWEST_PAIRS, _MOST_PAIRS = 16, 2000

# The tails of finite sums are slightly heavier than a normal distribution's, and float32 rounds.
_ROOM = 1.1


def _fits(rounds: int, coordinates: int) -> dict[str, Callable[[float], bool]]:
    """Returns, for each test of the noise itself, whether correct noise of this shape can have a measured value."""
    normal = math.sqrt(rounds * coordinates)
    return {
        "variance": lambda value: _two_sided(value * coordinates, coordinates) > _CHANCE / rounds,
        "covariance": lambda value: 0 <= value <= _largest_correlation(rounds**2),
        # Approximations of the distribution differ in the tail.
        "normality": lambda value: 0 < value < 1 and float(stats.kstwobign.sf(value * normal)) > _CHANCE / 10,
        "repeats": lambda value: 0 <= value <= _largest_correlation(_shifts(rounds) * coordinates),
        "fresh steps": lambda value: _two_sided(value * coordinates, coordinates) > _CHANCE,
        "integers": lambda value: value == 0,
        "pairs": lambda value: 0 <= value <= _PRODUCED,
    }


def whitened(noise: np.ndarray, encoder: np.ndarray, sigma: float) -> np.ndarray:
    """Returns C·noise/σ, float64 `[rounds, coordinates]`: independent standard normals if the noise is correct."""
    return encoder @ noise / sigma


def variance(rows: np.ndarray) -> Test:
    """Tests that the variance of each whitened row is 1, by its χ² distribution."""
    coordinates = rows.shape[1]
    sums = np.sum(np.square(rows), axis=1)
    worst = int(np.argmin(np.minimum(stats.chi2.sf(sums, coordinates), stats.chi2.cdf(sums, coordinates))))
    found = float(sums[worst] / coordinates)
    passed = _fits(*rows.shape)["variance"](found)
    return Test(name="variance", passed=passed, value=found, limit=1.0, about={"round": worst + 1})


def _two_sided(total: float, coordinates: int) -> float:
    """Returns the two-sided tail probability of a sum of squares of standard normals."""
    return float(2 * min(stats.chi2.sf(total, coordinates), stats.chi2.cdf(total, coordinates)))


def correlation(rows: np.ndarray) -> Test:
    """Tests that no two whitened rows are correlated: the noise has the covariance of the artifact."""
    rounds, coordinates = rows.shape
    products = np.abs(np.tril(rows @ rows.T, -1)) / np.sqrt(coordinates)
    worst = np.unravel_index(int(np.argmax(products)), products.shape)
    found, limit = float(products[worst]), _largest_correlation(rounds**2)
    about = {"rounds": [int(worst[1]) + 1, int(worst[0]) + 1]}
    return Test(name="covariance", passed=found <= limit, value=found, limit=limit, about=about)


def _largest_correlation(pairs: int) -> float:
    """Returns the largest correlation of so many pairs of correct rows, in standard deviations."""
    return _ROOM * float(stats.norm.isf(_CHANCE / pairs))


def normality(rows: np.ndarray) -> Test:
    """Tests that all whitened numbers together are standard normal: Kolmogorov and Smirnov."""
    found = stats.kstest(rows.ravel(), "norm")
    value, p = float(found.statistic), float(found.pvalue)
    return Test(name="normality", passed=p > _CHANCE, value=value, limit=_CHANCE, about={"p": p})


def repeats(rows: np.ndarray, others: np.ndarray) -> Test:
    """Tests that no row is a shifted copy of another row of its stream, or of a row of a second stream."""
    rounds, coordinates = rows.shape
    chosen = _shifted(rounds)
    first, second = np.fft.rfft(rows[chosen]), np.fft.rfft(others[chosen])
    tried = [(a, b, first) for a, b in itertools.combinations(range(len(chosen)), 2)]
    tried += [(a, b, second) for a in range(len(chosen)) for b in range(len(chosen))]
    found, where = 0.0, {"rounds": [], "other_stream": False}
    for a, b, other in tried:
        shifted = np.fft.irfft(first[a] * np.conj(other[b]), coordinates) / np.sqrt(coordinates)
        largest = float(np.max(np.abs(shifted)))
        if largest > found:
            found = largest
            where = {"rounds": [int(chosen[a]) + 1, int(chosen[b]) + 1], "other_stream": other is second}
    limit = _largest_correlation(_shifts(rounds) * coordinates)
    return Test(name="repeats", passed=found <= limit, value=found, limit=limit, about=where)


def _shifted(rounds: int) -> np.ndarray:
    """Returns the rows on which every shift is tried."""
    return np.unique(np.linspace(0, rounds - 1, min(rounds, _MOST_SHIFTED_ROWS)).astype(int))


def _shifts(rounds: int) -> int:
    """Returns how many pairs of rows are tried: of one stream, and of two."""
    rows = len(_shifted(rounds))
    return rows * (rows - 1) // 2 + rows**2


def not_on_grid(noise: np.ndarray, units: int) -> int:
    """Returns how many numbers of the noise, for a clip norm of 1, are not whole multiples of 1 / units."""
    scaled = noise * units
    return int(np.count_nonzero(scaled != np.rint(scaled)))


def integers(inexact: int) -> Test:
    """Tests that all noise was on the grid."""
    return Test(name="integers", passed=inexact == 0, value=inexact, limit=0.0)


def pairs(rows: np.ndarray) -> Test:
    """Tests that the normals behind the noise are not TensorFlow's in float32, which give clients away.

    An adversary who knows all other updates computes the whitened rows. Of pairs that are far out, float32 normals can
    give nearly all of their own, and hardly any other, so that another one proves that a client took part.
    """
    even = rows.shape[1] // 2 * 2
    found, seen = 0, 0
    for row in rows:
        far = row[:even].reshape(-1, 2)
        far = far[np.linalg.norm(far, axis=1) > _FAR]
        found += int(np.count_nonzero(normals.producible_pairs(far - _BOX / 2, far + _BOX / 2, stddev=1.0)))
        seen += len(far)
        if seen >= _MOST_PAIRS:
            break
    share = found / seen if seen >= _FEWEST_PAIRS else 0.0
    about = {"seen": seen, "needed": _FEWEST_PAIRS}
    return Test(name="pairs", passed=share <= _PRODUCED, value=share, limit=_PRODUCED, about=about)


def fresh_steps(first: np.ndarray, second: np.ndarray, stddev: float) -> Test:
    """Tests that two steps from one state give two rows with independent new noise."""
    found = float(np.mean(np.square(first - second)) / (2 * stddev**2))
    return Test(name="fresh steps", passed=_fits(1, len(first))["fresh steps"](found), value=found, limit=1.0)


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
    of_noise = _fits(setting.rounds, coordinates)
    return {
        **of_noise,
        **{COUNTS + name: passes for name, passes in of_noise.items()},
        "sensitivity": lambda value: 0 < value <= sensitivity * (1 + _ROUNDING),
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
