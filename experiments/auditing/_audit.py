"""All tests of an audit, in one."""

import dataclasses
import math

import numpy as np

import tff_mf
from tff_mf import _validate

from ..output import progress
from ..output.digits import rounded_up
from . import _noise_tests
from ._adversary import reached_sensitivity
from ._canaries import CanaryBound, can_tell_half, canary_bound
from ._result import Test
from ._setting import COUNTS, Setting

# Of the sensitivity: rounding, and what a search leaves.
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Emitted:
    """A run's whitened noise, twice: independent standard normals, and what a worst client adds to them.

    Attributes:
        rows: Those of a run, float64 `[rows, coordinates]`.
        others: Those of another.
        moved: What a canary adds in every row, float64 `[rows]`.
    """

    rows: np.ndarray
    others: np.ndarray
    moved: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """What came out.

    Attributes:
        tests: Each test.
        claimed_epsilon: What is claimed.
        coordinates: Coordinates of the noise that was tested.
        canaries: What canaries show of the noise as it is.
        control: What they show of the same noise, cut in half: an audit that does not notice that shows nothing.
    """

    tests: list[Test]
    claimed_epsilon: float
    coordinates: int
    canaries: CanaryBound
    control: CanaryBound

    @property
    def passed(self) -> bool:
        """Whether every test came out as it must."""
        return all(test.passed for test in self.tests)


def audit(setting: Setting) -> Audit:
    """Runs the noise of a whole run twice, and all tests on it.

    Formal guarantee: none. That an audit finds nothing proves nothing; what it finds is wrong with probability at most
    1e-8, and a lower bound of ε with that of its confidence.

    Args:
        setting: What is claimed.

    Raises:
        InputError: If the mechanism cannot be streamed, or TensorFlow is not installed.
    """
    from . import _emitted

    mechanism, rounds, sigma = setting.mechanism, setting.rounds, setting.noise_multiplier
    encoder = _whole(mechanism.cast_to_float32().encoder(setting.every), rounds)
    middle = (setting.every + 1) // 2
    arguments = {"coordinates": setting.samples, "stddev": sigma, "insecure_seed": setting.insecure_seed}
    steps = _emitted.step_twice(mechanism, middle, **arguments)
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
        *(dataclasses.replace(each, name=COUNTS + each.name) for part in parts[1:] for each in _of_noise(part)),
    ]
    progress.step()
    return Audit(tests=tests, claimed_epsilon=claimed, coordinates=setting.samples, canaries=canaries, control=control)


def _whole(encoder: np.ndarray, rounds: int) -> np.ndarray:
    """Returns the strategy matrix of a whole run, from that of a restart."""
    blocks = -(-_validate.dense(rounds) // len(encoder))
    return np.kron(np.eye(blocks), encoder)[:rounds, :rounds]


def _sums(setting: Setting, encoder: np.ndarray, pattern: tuple[int, ...]) -> _Emitted:
    """Returns the noise of the sums, and what a canary that takes part in a pattern of rounds adds to it."""
    from . import _emitted

    sigma = setting.noise_multiplier
    several = (
        setting.noise_scale
        * _emitted.emit(
            setting.mechanism,
            setting.rounds,
            coordinates=setting.samples,
            stddev=sigma,
            insecure_seed=setting.insecure_seed,
            restart_every=setting.restart_every,
        ).astype(np.float64)
        for _ in range(2)
    )
    rows, others = (_noise_tests.whitened(noise, encoder, sigma) for noise in several)
    times = 1 if setting.adjacency == "zero-out" else 2
    return _Emitted(rows=rows, others=others, moved=times * np.sum(encoder[:, list(pattern)], axis=1) / sigma)


def _counts(setting: Setting, pattern: tuple[int, ...]) -> _Emitted:
    """Returns the noise of the counts, and what the same canary adds to them."""
    from . import _emitted

    assert setting.count_stddev is not None
    stddev = _validate.positive("count_stddev", setting.count_stddev)
    rows, others = (
        setting.noise_scale
        * _emitted.emit(
            tff_mf.Identity(),
            setting.rounds,
            coordinates=setting.samples,
            stddev=stddev,
            insecure_seed=setting.insecure_seed,
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
    """Returns what the best attack shows: the score along what a canary adds, which for Gaussian noise no other beats.

    Each coordinate holds one canary, a client whose every update is the unit vector of that coordinate, and above the
    clip norm. Canaries of the first half of all coordinates take part; of those of the second nothing is there but
    their neighbours' updates.
    """
    length = math.sqrt(sum(float(np.sum(np.square(part.moved))) for part in parts))
    runs = (sum(part.moved @ part.rows for part in parts), sum(part.moved @ part.others for part in parts))
    noise = scale * np.concatenate(runs) / length
    half = len(noise) // 2
    return canary_bound(noise[:half] + length, noise[half:], threshold=length / 2, delta=delta)


def _sensitivity(reached: float, claimed: float, pattern: tuple[int, ...]) -> Test:
    shown = ", ".join(str(each + 1) for each in pattern[:8]) + (", …" if len(pattern) > 8 else "")
    text = f"worst client found: {reached:.6f} with rounds {shown}; claimed {claimed:.6f}"
    return Test(name="sensitivity", passed=reached <= claimed * (1 + ROUNDING), value=reached, limit=claimed, text=text)


def _epsilons(claimed: float, canaries: CanaryBound, control: CanaryBound, *, tells: bool) -> list[Test]:
    shown = max(canaries.epsilon, canaries.epsilon_gaussian)
    text = f"canaries show {_at_least(shown)} with confidence {canaries.confidence}; claimed {rounded_up(claimed)}"
    tests = [Test(name="canaries", passed=shown <= claimed, value=shown, limit=claimed, text=text)]
    halved = max(control.epsilon, control.epsilon_gaussian)
    must = (
        f"which must be above {rounded_up(claimed)}; this many canaries can show {control.at_most:.2f} at most"
        if tells
        else f"and this many cannot tell it from the claim of {rounded_up(claimed)}: nothing follows from that"
    )
    text = f"with the noise cut in half, canaries show {_at_least(halved)}, {must}"
    # Beyond what so many canaries can show, the control says nothing.
    passed = halved > claimed or claimed >= control.at_most or not tells
    return [*tests, Test(name="control", passed=passed, value=halved, limit=claimed, text=text)]


def _at_least(epsilon: float) -> str:
    """Returns a lower bound in words, rounded down: what was shown is never less than what is said."""
    return f"an ε of {math.floor(epsilon * 1000) / 1000:.3f} or more"
