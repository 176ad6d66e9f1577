"""Central training whose examples are in groups drawn at random: the rows of `central_digits.py` for balls in bins."""

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np

import tff_mf
from tff_mf import Order


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsInBins(Order):
    """Each example is in one of `groups`, drawn independently and anew for each instance; they take turns."""

    examples: int
    batch_size: int
    rounds: int
    groups: int

    @property
    def participation(self) -> tff_mf.FixedEpoch:
        return tff_mf.FixedEpoch(min_sep=self.groups, max_participations=-(-self.rounds // self.groups))

    @property
    def epoch_rounds(self) -> int:
        return self.groups

    @property
    def is_sampled(self) -> bool:
        return True

    @property
    def insecure(self) -> bool:
        return False

    def batches(self, begin: int, count: int) -> np.ndarray:
        """Returns the examples of the groups of the rounds; −1 fills the end of a row."""
        members = [np.flatnonzero(self._groups == group) for group in range(self.groups)]
        rows = np.full((count, max(map(len, members))), -1, np.int32)
        for row, step in zip(rows, range(begin, begin + count), strict=True):
            present = members[step % self.groups]
            row[: len(present)] = present
        return rows

    @functools.cached_property
    def _groups(self) -> np.ndarray:
        return np.random.default_rng().integers(self.groups, size=self.examples)

    @property
    def fingerprint(self) -> bytes:
        return repr(self).encode()

    def redrawn(self) -> "BallsInBins":
        """Returns the order of another run, with groups of its own."""
        return dataclasses.replace(self)

    def epsilon(self, mechanism: tff_mf.Mechanism, *, noise_multiplier: float, delta: float) -> float:
        """Returns the certified ε."""
        sampling = tff_mf.BallsInBins(groups=self.groups)
        return tff_mf.epsilon(mechanism, self.rounds, sampling, noise_multiplier=noise_multiplier, delta=delta)

    def calibrate_noise_multiplier(self, mechanism: tff_mf.Mechanism, *, epsilon: float, delta: float) -> float:
        """Returns the certified σ."""
        sampling = tff_mf.BallsInBins(groups=self.groups)
        return tff_mf.calibrate_noise_multiplier(mechanism, self.rounds, sampling, epsilon=epsilon, delta=delta)


def prepared(
    kind: str, *, examples: int, batch_size: int, rounds: int, epsilon: float, delta: float
) -> SimpleNamespace:
    """Returns the mechanism made for balls in bins at (ε, δ), the order and the certified σ."""
    groups = examples // batch_size
    optimize = {"blt": tff_mf.optimize_amplified_blt, "banded": tff_mf.optimize_amplified_banded_toeplitz}[kind]
    mechanism = optimize(rounds=rounds, bins=groups, epsilon=epsilon, delta=delta).mechanism
    order = BallsInBins(examples=examples, batch_size=batch_size, rounds=rounds, groups=groups)
    sigma = order.calibrate_noise_multiplier(mechanism, epsilon=epsilon, delta=delta)
    return SimpleNamespace(mechanism=mechanism, order=order, noise_multiplier=sigma)
