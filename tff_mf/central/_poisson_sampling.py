"""Batches that each example joins by a secret coin toss of its own, which amplifies privacy."""

import dataclasses
import functools
import os

import numpy as np

from tff_mf import accounting, validation
from tff_mf.central._order import NOBODY, Order, digest
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.participation import FixedEpoch

_COIN_BITS = 64
# Coins that are in memory at a time.
_MOST_COINS = 2**22


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
        groups: Number of groups; must be the number of bands of C for `epsilon`: 1 for `Identity`, DP-SGD.
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
        drawn = [self._groups[t % self.groups][self._joins(t)] for t in range(begin, begin + count)]
        rows = np.full((count, max([1, *map(len, drawn)])), NOBODY, np.int32)
        for row, present in zip(rows, drawn, strict=True):
            row[: len(present)] = present
        return rows

    def _joins(self, step: int) -> np.ndarray:
        """Returns which examples of the group of a round join it, bool `[⌊N / groups⌋]`."""
        size = self._groups.shape[1]
        # A coin is below it with probability ⌊q·2⁶⁴⌋ / 2⁶⁴, in exact arithmetic.
        below = (self.batch_size << _COIN_BITS) // size
        if below >> _COIN_BITS:
            return np.ones(size, bool)
        if self.insecure_seed is not None:
            random = np.random.Generator(np.random.PCG64([self.insecure_seed, step])).bytes
        else:
            random = os.urandom
        parts = [
            np.frombuffer(random(min(_MOST_COINS, size - start) * 8), np.uint64) < np.uint64(below)
            for start in range(0, size, _MOST_COINS)
        ]
        return np.concatenate(parts)

    @functools.cached_property
    def _groups(self) -> np.ndarray:
        order = np.random.Generator(np.random.PCG64(self.seed)).permutation(self.examples)
        size = self.examples // self.groups
        return order[: self.groups * size].reshape(self.groups, size).astype(np.int32)

    @property
    def fingerprint(self) -> bytes:
        return digest(self, self._groups)

    def epsilon(self, mechanism: Mechanism, *, noise_multiplier: float, delta: float) -> float:
        """Returns the amplified ε of the whole training, for zero-out of one example; see `Order`.

        Raises:
            InputTypeError: If an argument is of the wrong type.
            InputValueError: If an argument is out of range, the number of bands of C is not `groups`, or the coins are
                repeatable.
        """
        self._check_amplified(mechanism)
        return accounting.epsilon(
            mechanism, self.rounds, self._sampling, noise_multiplier=noise_multiplier, delta=delta
        )

    def calibrate_noise_multiplier(self, mechanism: Mechanism, *, epsilon: float, delta: float) -> float:
        self._check_amplified(mechanism)
        return accounting.calibrate_noise_multiplier(
            mechanism, self.rounds, self._sampling, epsilon=epsilon, delta=delta
        )

    @property
    def _sampling(self) -> accounting.CyclicPoisson:
        return accounting.CyclicPoisson(groups=self.groups, population=self.examples, clients_per_round=self.batch_size)

    def _check_amplified(self, mechanism: Mechanism) -> None:
        if self.insecure:
            raise InputValueError(
                f"insecure_seed={self.insecure_seed} makes the batches known: TEST ONLY, no amplified ε holds. "
                "Leave it out."
            )
        validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.Banded")
        bands, _ = accounting.bands_and_norm(mechanism, self.rounds)
        if bands != self.groups:
            raise InputValueError(
                f"groups={self.groups}, but C has {bands} bands: amplification is proven for as many groups as bands. "
                f"Take groups={bands}."
            )

    def _drawn(self) -> str:
        drawn = "secret Poisson batches" if self.groups == 1 else f"secret Poisson batches of {self.groups} groups"
        return f"{drawn} of {self.batch_size} examples on average"
