"""Batches that each example joins by a secret coin toss of its own, which amplifies privacy."""

import dataclasses
import functools

import numpy as np

from tff_mf import accounting
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.keras._order import Order, digest
from tff_mf.mechanisms import Mechanism
from tff_mf.problem.draws import SeededDraws, SystemDraws, rows_of
from tff_mf.problem.participation import FixedEpoch


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonSampling(Order):
    """Poisson sampling (DP-SGD), or cyclic Poisson sampling by groups that take turns, for banded mechanisms.

    In round i, each example of group i mod `groups` is in the batch with probability q = B / ⌊N / groups⌋,
    independently of everything else. Batches therefore differ in size, and may be empty.

    Formal guarantee: with coins from the operating system, `epsilon` is the amplified ε of `tff_mf.CyclicPoisson`.
    It holds as long as nobody learns which examples were in a batch, or how many. Coins are drawn when a round needs
    them and are never stored; the probability is q, or below it by at most 2⁻⁶⁴. Groups are shuffled once, by a public
    seed; examples that fill no group never take part. With `insecure_seed`, no ε is stated. `guarantee`, without
    amplification, also holds for batches that are known.

    Attributes:
        examples: Number N of examples.
        batch_size: Expected number B of examples in a batch.
        rounds: Number of rounds n.
        groups: Number of groups; at least the number of bands of C for `epsilon`: 1 for `Identity`, DP-SGD.
        seed: The same seed gives the same groups.
        insecure_seed: Makes the coins repeatable. TEST ONLY.

    Source: Choquette-Choo et al. (2023), algorithm 5 and corollary E.1.

    Example:
        >>> import tff_mf
        >>> order = PoissonSampling(examples=1000, batch_size=10, rounds=100)
        >>> round(order.epsilon(tff_mf.Identity(), noise_multiplier=1.0, delta=1e-6), 2)
        0.95

    Raises:
        InputTypeError: If a field is not a whole number.
        InputValueError: If a field is out of range, or a group has fewer examples than a batch.
    """

    examples: int
    batch_size: int
    rounds: int  # pyrefly: ignore[bad-override]: a field, and read-only as the property is.
    groups: int = 1
    seed: int = 0
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("examples", 1), ("batch_size", 1), ("groups", 1), ("seed", 0)):
            object.__setattr__(self, name, validation.whole(name, getattr(self, name), at_least=least))
        object.__setattr__(self, "rounds", validation.listable(self.rounds))
        if self.insecure_seed is not None:
            seed = validation.whole("insecure_seed", self.insecure_seed, at_least=0)
            object.__setattr__(self, "insecure_seed", seed)
        if self.batch_size > self.examples // self.groups:
            raise InputValueError(
                f"batch_size={self.batch_size} exceeds the {self.examples // self.groups} examples in each of the "
                f"groups={self.groups} of examples={self.examples}: take smaller batches, or fewer groups."
            )

    @property
    def epoch_rounds(self) -> int:
        return min(self.rounds, max(1, round(self.examples / self.batch_size)))

    @property
    def participation(self) -> FixedEpoch:
        return FixedEpoch(min_sep=self.groups, max_participations=-(-self.rounds // self.groups))

    @property
    def is_sampled(self) -> bool:
        return True

    @property
    def insecure(self) -> bool:
        return self.insecure_seed is not None

    def batches(self, begin: int, count: int) -> np.ndarray:
        """Returns the examples in the batches of `count` rounds; see `Order`.

        Each call tosses new coins, unless `insecure_seed` is given.
        """
        begin, count = self._checked_rounds(begin, count)
        groups = self._groups
        return rows_of(
            [self.sampling.joined(groups[t % self.groups], self._coins(t)) for t in range(begin, begin + count)]
        )

    def _coins(self, step: int) -> SystemDraws | SeededDraws:
        return SystemDraws() if self.insecure_seed is None else SeededDraws(self.insecure_seed, stream=1 + step)

    @property
    def sampling(self) -> accounting.CyclicPoisson:
        """The sampling that draws the batches, and that is accounted for."""
        return accounting.CyclicPoisson(groups=self.groups, population=self.examples, clients_per_round=self.batch_size)

    @functools.cached_property
    def _groups(self) -> np.ndarray:
        return self.sampling.members(SeededDraws(self.seed)).astype(np.int32)

    @property
    def fingerprint(self) -> bytes:
        return digest(self, self._groups)

    def epsilon(self, mechanism: Mechanism, *, noise_multiplier: float, delta: float) -> float:
        """Returns the amplified ε of the whole training, for zero-out of one example; see `Order`.

        Raises:
            InputTypeError: If an argument is of the wrong type.
            InputValueError: If an argument is out of range, C has more bands than `groups`, or coins are repeatable.
        """
        self._check_secret()
        return accounting.epsilon(mechanism, self.rounds, self.sampling, noise_multiplier=noise_multiplier, delta=delta)

    def calibrate_noise_multiplier(self, mechanism: Mechanism, *, epsilon: float, delta: float) -> float:
        self._check_secret()
        return accounting.calibrate_noise_multiplier(
            mechanism, self.rounds, self.sampling, epsilon=epsilon, delta=delta
        )

    def _check_secret(self) -> None:
        if self.insecure:
            raise InputValueError(
                f"insecure_seed={self.insecure_seed} makes the batches known: TEST ONLY, no amplified ε holds. "
                "Leave it out."
            )

    def _drawn(self) -> str:
        drawn = "secret Poisson batches" if self.groups == 1 else f"secret Poisson batches of {self.groups} groups"
        return f"{drawn} of {self.batch_size} examples on average"
