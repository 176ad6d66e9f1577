"""The audit: emits the noise of whole runs and applies all tests to it."""

import dataclasses
import math
from typing import Any

import numpy as np

import tff_mf
from tff_mf.base import validation

from ...output import progress
from . import _noise_tests
from ._adversary import reached_sensitivity
from ._canaries import CanaryBound, can_tell_half, canary_bound
from ._result import COUNTS, Test
from ._setting import Setting

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

    Args:
        setting: The run and its claim.

    Raises:
        InputError: If the mechanism cannot be streamed, or TensorFlow is not installed.
    """
    from . import _emitted

    mechanism, rounds, sigma = setting.mechanism, setting.rounds, setting.noise_multiplier
    encoder = _whole(mechanism.cast_to_float32().encoder(setting.every), rounds)
    middle = (setting.every + 1) // 2
    steps = _emitted.step_twice(mechanism, middle, stddev=sigma, **_of_stream(setting))
    progress.step("sensitivity")
    reached, pattern = reached_sensitivity(encoder, setting.participation)
    progress.step("noise")
    sums = _sums(setting, encoder, pattern)
    progress.step("canaries")
    parts = [sums] if setting.count_stddev is None else [sums, _counts(setting, pattern)]
    canaries, control = (_attack(parts, setting.delta, scale) for scale in (1.0, 0.5))
    claimed = setting.claimed.epsilon(setting.delta)
    progress.step("tests")
    tells = can_tell_half(setting.claimed, count=setting.samples, delta=setting.delta)
    tests = [
        *_of_noise(sums),
        _noise_tests.fresh_steps(*steps, stddev=sigma / encoder[middle - 1, middle - 1]),
        _sensitivity(reached, setting.sensitivity, pattern),
        *_epsilons(claimed, canaries, control, tells=tells),
        *([] if setting.grid is None else [_noise_tests.integers(sums.inexact), _noise_tests.pairs(sums.rows)]),
        *(dataclasses.replace(each, name=COUNTS + each.name) for part in parts[1:] for each in _of_noise(part)),
    ]
    progress.step()
    return Audit(tests=tests, claimed_epsilon=claimed, coordinates=setting.samples, canaries=canaries, control=control)


def _of_stream(setting: Setting) -> dict[str, Any]:
    return {"coordinates": setting.samples, "insecure_seed": setting.insecure_seed, "grid": setting.grid}


def _whole(encoder: np.ndarray, rounds: int) -> np.ndarray:
    """Returns the strategy matrix of a whole run, from the matrix of the rounds between two restarts."""
    blocks = -(-validation.dense(rounds) // len(encoder))
    return np.kron(np.eye(blocks), encoder)[:rounds, :rounds]


def _sums(setting: Setting, encoder: np.ndarray, pattern: tuple[int, ...]) -> _Emitted:
    """Returns the noise of the sums, and the contribution of a canary that takes part in a pattern of rounds."""
    from . import _emitted

    sigma = setting.noise_multiplier
    several = (
        setting.noise_scale
        * _emitted.emit(
            setting.mechanism,
            setting.rounds,
            stddev=sigma,
            restart_every=setting.restart_every,
            **_of_stream(setting),
        ).astype(np.float64)
        for _ in range(2)
    )
    whitened, inexact = [], 0
    for noise in several:
        inexact += 0 if setting.grid is None else _noise_tests.not_on_grid(noise, setting.grid.largest_norm)
        whitened.append(_noise_tests.whitened(noise, encoder, sigma))
    rows, others = whitened
    times = 1 if setting.adjacency == "zero-out" else 2
    moved = times * np.sum(encoder[:, list(pattern)], axis=1) / sigma
    return _Emitted(rows=rows, others=others, moved=moved, inexact=inexact)


def _counts(setting: Setting, pattern: tuple[int, ...]) -> _Emitted:
    """Returns the noise of the counts, and the contribution of the same canary."""
    from . import _emitted

    assert setting.count_stddev is not None
    stddev = validation.positive("count_stddev", setting.count_stddev)
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
        _noise_tests.variance(emitted.rows),
        _noise_tests.correlation(emitted.rows),
        _noise_tests.normality(emitted.rows),
        _noise_tests.repeats(emitted.rows, emitted.others),
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


def _sensitivity(reached: float, claimed: float, pattern: tuple[int, ...]) -> Test:
    passed, about = reached <= claimed * (1 + ROUNDING), {"rounds": [int(each) + 1 for each in pattern]}
    return Test(name="sensitivity", passed=passed, value=reached, limit=claimed, about=about)


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
