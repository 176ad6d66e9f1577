"""Batches in a fixed order: shuffled once, the same in every epoch."""

import dataclasses
import functools

import numpy as np

from tff_mf import accounting
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.keras._order import Order, digest
from tff_mf.mechanisms import Mechanism
from tff_mf.problem.participation import FixedEpoch


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedOrder(Order):
    """Examples shuffled once and cut into b = ⌊N / B⌋ batches, which take turns for k epochs.

    Formal guarantee: each example is in exactly one batch, or in none: batch j, whose rounds are j, j + b, …,
    j + (k − 1)b. That is a pattern of `FixedEpoch(min_sep=b, max_participations=k)`. The order does not depend on the
    data and may be public. The N − b·B examples that fill no batch never take part.

    Attributes:
        examples: Number N of examples.
        batch_size: Number B of examples in every batch.
        epochs: Number k of epochs.
        seed: The same seed gives the same order.

    Example:
        >>> order = FixedOrder(examples=10, batch_size=3, epochs=4)
        >>> order.rounds, order.participation
        (12, FixedEpoch(min_sep=3, max_participations=4))
        >>> order.batches(0, 1).tolist() == order.batches(3, 1).tolist()
        True

    Raises:
        InputTypeError: If a field is not a whole number.
        InputValueError: If a field is out of range, or there are fewer examples than in one batch.
    """

    examples: int
    batch_size: int
    epochs: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("examples", 1), ("batch_size", 1), ("epochs", 1), ("seed", 0)):
            object.__setattr__(self, name, validation.whole(name, getattr(self, name), at_least=least))
        if self.batch_size > self.examples:
            raise InputValueError(
                f"batch_size={self.batch_size} exceeds examples={self.examples}: take smaller batches."
            )
        validation.listable(self.rounds)

    @property
    def rounds(self) -> int:
        return self.epoch_rounds * self.epochs

    @property
    def epoch_rounds(self) -> int:
        return self.examples // self.batch_size

    @property
    def participation(self) -> FixedEpoch:
        return FixedEpoch(min_sep=self.epoch_rounds, max_participations=self.epochs)

    @property
    def is_sampled(self) -> bool:
        return False

    @property
    def insecure(self) -> bool:
        return False

    def batches(self, begin: int, count: int) -> np.ndarray:
        begin, count = self._checked_rounds(begin, count)
        return self._batches[np.arange(begin, begin + count) % self.epoch_rounds]

    @functools.cached_property
    def _batches(self) -> np.ndarray:
        order = np.random.Generator(np.random.PCG64(self.seed)).permutation(self.examples)
        return order[: self.epoch_rounds * self.batch_size].reshape(self.epoch_rounds, -1).astype(np.int32)

    @property
    def fingerprint(self) -> bytes:
        return digest(self, self._batches)

    def epsilon(self, mechanism: Mechanism, *, noise_multiplier: float, delta: float) -> float:
        return self.guarantee(mechanism, noise_multiplier=noise_multiplier).epsilon(delta)

    def calibrate_noise_multiplier(self, mechanism: Mechanism, *, epsilon: float, delta: float) -> float:
        return accounting.calibrate_noise_multiplier(
            mechanism, self.rounds, self.participation, epsilon=epsilon, delta=delta
        )
