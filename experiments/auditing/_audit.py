"""All tests of an audit, in one."""

import dataclasses

import numpy as np

import tff_mf
from tff_mf import _validate

from . import _noise_tests
from ._adversary import reached_sensitivity
from ._canaries import CanaryBound, canary_bound
from ._result import Test

# Of the sensitivity: rounding, and what a search leaves.
ROUNDING = 1e-9

NAMES = ("variance", "covariance", "normality", "repeats", "fresh steps", "sensitivity", "canaries", "control")

# Coordinates are samples: fewer show nothing, and more do not fit in memory with all rounds.
FEWEST_COORDINATES = 1024
_MOST_COORDINATES = 16_384
_NUMBERS = 2**24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What is claimed.

    Attributes:
        mechanism: The mechanism.
        rounds: Number of rounds n.
        participation: The participation schema.
        noise_multiplier: σ.
        delta: δ.
        coordinates: Coordinates of the noise, each a sample of its own: two canaries. As many as fit in memory if
            not given.
        insecure_seed: Of the noise, `None` for noise that is private.
        noise_scale: What the emitted noise is multiplied with, to see whether the audit notices: 1 unless it is a test.
    """

    mechanism: tff_mf.Mechanism
    rounds: int
    participation: tff_mf.Participation
    noise_multiplier: float
    delta: float
    coordinates: int | None = None
    insecure_seed: int | None = None
    noise_scale: float = 1.0


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
    coordinates = _coordinates(setting)
    arguments = {"coordinates": coordinates, "stddev": sigma, "insecure_seed": setting.insecure_seed}
    encoder = mechanism.as_run().encoder(rounds)
    noise = setting.noise_scale * _emitted.emit(mechanism, rounds, **arguments).astype(np.float64)
    other = setting.noise_scale * _emitted.emit(mechanism, rounds, **arguments).astype(np.float64)
    rows, others = (_noise_tests.whitened(each, encoder, sigma) for each in (noise, other))
    middle = (rounds + 1) // 2
    steps = _emitted.step_twice(mechanism, middle, **arguments)
    new = sigma / encoder[middle - 1, middle - 1]
    claimed_sensitivity = tff_mf.sensitivity(mechanism.as_run(), rounds, setting.participation)
    reached, pattern = reached_sensitivity(encoder, setting.participation)
    claimed = claimed_epsilon(setting)
    direction = np.sum(encoder[:, list(pattern)], axis=1)
    canaries = _attack(rows, others, direction, sigma, setting.delta, 1.0)
    control = _attack(rows, others, direction, sigma, setting.delta, 0.5)
    tests = [
        _noise_tests.variance(rows),
        _noise_tests.correlation(rows),
        _noise_tests.normality(rows),
        _noise_tests.repeats(rows, others),
        _noise_tests.fresh_steps(*steps, stddev=new),
        _sensitivity(reached, claimed_sensitivity, pattern),
        *_epsilons(claimed, canaries, control),
    ]
    return Audit(tests=tests, claimed_epsilon=claimed, coordinates=coordinates, canaries=canaries, control=control)


def claimed_epsilon(setting: Setting) -> float:
    """Returns the ε that is claimed."""
    reached = tff_mf.sensitivity(setting.mechanism.as_run(), setting.rounds, setting.participation)
    return tff_mf.Guarantee(mu=reached / setting.noise_multiplier * (1 + 2.0**-40)).epsilon(setting.delta)


def _coordinates(setting: Setting) -> int:
    if setting.coordinates is None:
        return min(_MOST_COORDINATES, max(FEWEST_COORDINATES, _NUMBERS // setting.rounds))
    return _validate.whole("coordinates", setting.coordinates, at_least=FEWEST_COORDINATES)


def _attack(
    rows: np.ndarray, others: np.ndarray, direction: np.ndarray, sigma: float, delta: float, scale: float
) -> CanaryBound:
    """Returns what the best attack shows: the score along C·1_π, which for Gaussian noise no other beats.

    Each coordinate holds one canary, a client whose every update is the unit vector of that coordinate. Canaries of the
    first half of all coordinates take part, those of the second do not.
    """
    length = float(np.linalg.norm(direction))
    noise = scale * sigma * np.concatenate([direction @ rows, direction @ others]) / length
    half = len(noise) // 2
    return canary_bound(noise[:half] + length, noise[half:], threshold=length / 2, delta=delta)


def _sensitivity(reached: float, claimed: float, pattern: tuple[int, ...]) -> Test:
    shown = ", ".join(str(each + 1) for each in pattern[:8]) + (", …" if len(pattern) > 8 else "")
    text = f"worst client found: {reached:.6f} with rounds {shown}; claimed {claimed:.6f}"
    return Test(name="sensitivity", passed=reached <= claimed * (1 + ROUNDING), value=reached, limit=claimed, text=text)


def _epsilons(claimed: float, canaries: CanaryBound, control: CanaryBound) -> list[Test]:
    shown = max(canaries.epsilon, canaries.epsilon_gaussian)
    text = f"canaries show ε ≥ {shown:.4f} with confidence {canaries.confidence}; claimed {claimed:.4f}"
    tests = [Test(name="canaries", passed=shown <= claimed, value=shown, limit=claimed, text=text)]
    halved = max(control.epsilon, control.epsilon_gaussian)
    text = (
        f"with the noise cut in half canaries show ε ≥ {halved:.4f}, which must be above {claimed:.4f}; so many can "
        f"show {control.at_most:.2f} at most"
    )
    # Beyond what so many canaries can show, the control says nothing.
    passed = halved > claimed or claimed >= control.at_most
    return [*tests, Test(name="control", passed=passed, value=halved, limit=claimed, text=text)]
