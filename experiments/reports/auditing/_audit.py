"""The audit: emits the noise of whole runs and applies all tests to it."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
from scipy import stats

import tff_mf
from tff_mf.base import validation
from tff_mf.numerics import normals

from ...output import progress
from ._canaries import CanaryBound, can_tell_half, canary_bound, reached_sensitivity
from ._setting import COUNTS, Setting, Test

# Relative tolerance of the sensitivity, above rounding errors.
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Emitted:
    """The whitened noise of two runs, which should be independent standard normals, and the contribution of a canary.

    Attributes:
        rows: Whitened noise of one run, float64 `[rows, coordinates]`.
        others: Whitened noise of another run, of the same shape.
        moved: The contribution of a canary to each row, float64 `[rows]`.
        inexact: How many numbers of the noise are not on the grid; 0 in floating point.
    """

    rows: np.ndarray
    others: np.ndarray
    moved: np.ndarray
    inexact: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit.

    Attributes:
        tests: The tests.
        claimed_epsilon: The claimed ε.
        coordinates: Number of coordinates of the tested noise.
        canaries: Lower bound of ε from canaries in the noise.
        control: The same for noise of half the size: an audit that does not notice this proves nothing.
    """

    tests: list[Test]
    claimed_epsilon: float
    coordinates: int
    canaries: CanaryBound
    control: CanaryBound

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return all(test.passed for test in self.tests)


def audit(setting: Setting) -> Audit:
    """Emits the noise of a whole run twice, and applies all tests to it.

    Formal guarantee: none. An audit that passes proves nothing. A failed test is a false alarm with probability at most
    1e-8; a lower bound of ε holds with its confidence.
    """
    from . import _emitted

    plan, rounds, sigma = setting.plan, setting.rounds, setting.plan.noise_multiplier
    encoder = _whole(plan.mechanism.cast_to_float32().encoder(setting.every), rounds)
    middle = (setting.every + 1) // 2
    steps = _emitted.step_twice(plan.mechanism, middle, stddev=sigma, **_of_stream(setting))
    progress.step("sensitivity")
    reached, pattern = reached_sensitivity(encoder, plan.participation)
    sensitivity, who = plan.sensitivity, {"rounds": [int(each) + 1 for each in pattern]}
    most = sensitivity * (1 + ROUNDING)
    progress.step("noise")
    sums = _sums(setting, encoder, pattern)
    progress.step("canaries")
    parts = [sums] if plan.adaptive_count_stddev is None else [sums, _counts(setting, pattern)]
    canaries, control = (_attack(parts, plan.delta, scale) for scale in (1.0, 0.5))
    claimed = setting.claimed.epsilon(plan.delta)
    progress.step("tests")
    tells = can_tell_half(setting.claimed, count=setting.samples, delta=plan.delta)
    tests = [
        *_of_noise(sums),
        fresh_steps(*steps, stddev=sigma / encoder[middle - 1, middle - 1]),
        Test(name="sensitivity", passed=reached <= most, value=reached, limit=sensitivity, about=who),
        *_epsilons(claimed, canaries, control, tells=tells),
        *([] if plan.grid is None else [integers(sums.inexact), pairs(sums.rows)]),
        *(dataclasses.replace(each, name=COUNTS + each.name) for part in parts[1:] for each in _of_noise(part)),
    ]
    progress.step()
    return Audit(tests=tests, claimed_epsilon=claimed, coordinates=setting.samples, canaries=canaries, control=control)


def _of_stream(setting: Setting) -> dict[str, Any]:
    return {"coordinates": setting.samples, "insecure_seed": setting.plan.insecure_seed, "grid": setting.plan.grid}


def _whole(encoder: np.ndarray, rounds: int) -> np.ndarray:
    """Returns the strategy matrix of a whole run, from the matrix of the rounds between two restarts."""
    blocks = -(-validation.dense(rounds) // len(encoder))
    return np.kron(np.eye(blocks), encoder)[:rounds, :rounds]


def _sums(setting: Setting, encoder: np.ndarray, pattern: tuple[int, ...]) -> _Emitted:
    """Returns the noise of the sums, and the contribution of a canary that takes part in a pattern of rounds."""
    from . import _emitted

    sigma, grid = setting.plan.noise_multiplier, setting.plan.grid
    several = (
        setting.noise_scale
        * _emitted.emit(
            setting.plan.mechanism,
            setting.rounds,
            stddev=sigma,
            restart_every=setting.plan.restart_every,
            **_of_stream(setting),
        ).astype(np.float64)
        for _ in range(2)
    )
    independent, inexact = [], 0
    for noise in several:
        inexact += 0 if grid is None else not_on_grid(noise, grid.largest_norm)
        independent.append(whitened(noise, encoder, sigma))
    rows, others = independent
    times = 1 if setting.adjacency == "zero-out" else 2
    moved = times * np.sum(encoder[:, list(pattern)], axis=1) / sigma
    return _Emitted(rows=rows, others=others, moved=moved, inexact=inexact)


def _counts(setting: Setting, pattern: tuple[int, ...]) -> _Emitted:
    """Returns the noise of the counts, and the contribution of the same canary."""
    from . import _emitted

    stddev = validation.positive("adaptive_count_stddev", setting.plan.adaptive_count_stddev)
    rows, others = (
        setting.noise_scale
        * _emitted.emit(
            tff_mf.Identity(),
            setting.rounds,
            stddev=stddev,
            **_of_stream(setting),
        ).astype(np.float64)
        / stddev
        for _ in range(2)
    )
    moved = np.zeros(setting.rounds)
    moved[list(pattern)] = _emitted.count_moved(setting.adjacency) / stddev
    return _Emitted(rows=rows, others=others, moved=moved)


def _of_noise(emitted: _Emitted) -> list[Test]:
    return [
        variance(emitted.rows),
        correlation(emitted.rows),
        normality(emitted.rows),
        repeats(emitted.rows, emitted.others),
    ]


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
    shown = max(canaries.epsilon, canaries.epsilon_gaussian)
    halved = max(control.epsilon, control.epsilon_gaussian)
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


def whitened(noise: np.ndarray, encoder: np.ndarray, sigma: float) -> np.ndarray:
    """Returns C·noise/σ, float64 `[rounds, coordinates]`: independent standard normals if the noise is correct."""
    return encoder @ noise / sigma


def variance(rows: np.ndarray) -> Test:
    """Tests that the variance of each whitened row is 1, by its χ² distribution."""
    rounds, coordinates = rows.shape
    sums = np.sum(np.square(rows), axis=1)
    tails = 2 * np.minimum(stats.chi2.sf(sums, coordinates), stats.chi2.cdf(sums, coordinates))
    worst = int(np.argmin(tails))
    found = float(sums[worst] / coordinates)
    passed = variance_fits(found, rounds, coordinates)
    return Test(name="variance", passed=passed, value=found, limit=1.0, about={"round": worst + 1})


def variance_fits(value: float, rounds: int, coordinates: int) -> bool:
    """Returns whether correct noise can have this variance in the worst of so many rows."""
    return _two_sided(value * coordinates, coordinates) > _CHANCE / rounds


def _two_sided(total: float, coordinates: int) -> float:
    """Returns the two-sided tail probability of a sum of squares of standard normals."""
    return float(2 * min(stats.chi2.sf(total, coordinates), stats.chi2.cdf(total, coordinates)))


def correlation(rows: np.ndarray) -> Test:
    """Tests that no two whitened rows are correlated: the noise has the covariance of the artifact."""
    rounds, coordinates = rows.shape
    products = np.abs(np.tril(rows @ rows.T, -1)) / np.sqrt(coordinates)
    limit = correlation_limit(rounds)
    worst = np.unravel_index(int(np.argmax(products)), products.shape)
    found = float(products[worst])
    about = {"rounds": [int(worst[1]) + 1, int(worst[0]) + 1]}
    return Test(name="covariance", passed=found <= limit, value=found, limit=limit, about=about)


def correlation_limit(rounds: int) -> float:
    """Returns the largest correlation of two rows that correct noise has, in standard deviations."""
    return _ROOM * float(stats.norm.isf(_CHANCE / max(1, rounds**2)))


def normality(rows: np.ndarray) -> Test:
    """Tests that all whitened numbers together are standard normal: Kolmogorov and Smirnov."""
    found = stats.kstest(rows.ravel(), "norm")
    value, p = float(found.statistic), float(found.pvalue)
    return Test(name="normality", passed=p > _CHANCE, value=value, limit=_CHANCE, about={"p": p})


def normality_fits(value: float, count: int) -> bool:
    """Returns whether standard normal numbers can have this distance; approximations differ in the tail."""
    return 0 < value < 1 and float(stats.kstwobign.sf(value * np.sqrt(count))) > _CHANCE / 10


def repeats(rows: np.ndarray, others: np.ndarray) -> Test:
    """Tests that no row is a shifted copy of another row of its stream, or of a row of a second stream."""
    chosen = _shifted(len(rows))
    first, second = np.fft.rfft(rows[chosen]), np.fft.rfft(others[chosen])
    coordinates = rows.shape[1]
    pairs = [(a, b, first) for a, b in itertools.combinations(range(len(chosen)), 2)]
    pairs += [(a, b, second) for a in range(len(chosen)) for b in range(len(chosen))]
    found, where = 0.0, {"rounds": [], "other_stream": False}
    for a, b, other in pairs:
        shifted = np.fft.irfft(first[a] * np.conj(other[b]), coordinates) / np.sqrt(coordinates)
        largest = float(np.max(np.abs(shifted)))
        if largest > found:
            found = largest
            where = {"rounds": [int(chosen[a]) + 1, int(chosen[b]) + 1], "other_stream": other is second}
    limit = repeats_limit(len(rows), coordinates)
    return Test(name="repeats", passed=found <= limit, value=found, limit=limit, about=where)


def _shifted(rounds: int) -> np.ndarray:
    """Returns the rows on which every shift is tried."""
    return np.unique(np.linspace(0, rounds - 1, min(rounds, _MOST_SHIFTED_ROWS)).astype(int))


def repeats_limit(rounds: int, coordinates: int) -> float:
    """Returns the largest correlation at any shift that correct noise has, in standard deviations."""
    rows = len(_shifted(rounds))
    pairs = rows * (rows - 1) // 2 + rows**2
    return _ROOM * float(stats.norm.isf(_CHANCE / (pairs * coordinates)))


def not_on_grid(noise: np.ndarray, units: int) -> int:
    """Returns how many numbers of the noise, for a clip norm of 1, are not whole multiples of 1 / units."""
    scaled = noise * units
    return int(np.count_nonzero(scaled != np.rint(scaled)))


def integers(inexact: int) -> Test:
    """Tests that all noise was on the grid."""
    return Test(name="integers", passed=integers_fit(inexact), value=inexact, limit=0.0)


def integers_fit(value: float) -> bool:
    """Returns whether noise on a grid can have so many numbers that are not on it."""
    return value == 0


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
    return Test(name="pairs", passed=pairs_fit(share), value=share, limit=_PRODUCED, about=about)


def pairs_fit(value: float) -> bool:
    """Returns whether normals other than float32 normals can have this share."""
    return 0 <= value <= _PRODUCED


def fresh_steps(first: np.ndarray, second: np.ndarray, stddev: float) -> Test:
    """Tests that two steps from one state give two rows with independent new noise."""
    found = float(np.mean(np.square(first - second)) / (2 * stddev**2))
    return Test(name="fresh steps", passed=fresh_steps_fit(found, len(first)), value=found, limit=1.0)


def fresh_steps_fit(value: float, coordinates: int) -> bool:
    """Returns whether fresh noise can have this variance of the difference, relative to its expectation."""
    return _two_sided(value * coordinates, coordinates) > _CHANCE
