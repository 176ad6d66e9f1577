"""Workload matrices A: row t gives the weights with which rounds 1..t enter the t-th released iterate.

The noise in A·x is B·z with the decoder B = A·C⁻¹. Privacy does not depend on the workload.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tff_mf.base import matrices, validation
from tff_mf.base.errors import InputValueError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload(abc.ABC):
    """A lower-triangular matrix A."""

    kind: ClassVar[str]

    def check(self, rounds: int) -> int:
        """Returns `rounds` if A is defined for as many, else raises.

        Raises:
            InputValueError: If `rounds` is below 1, or exceeds the number of rounds A is defined for.
        """
        return validation.whole("rounds", rounds)

    @abc.abstractmethod
    def matrix(self, rounds: int) -> np.ndarray:
        """Returns A, lower-triangular, float64 `[rounds, rounds]`."""

    def applied_to(self, values: np.ndarray) -> np.ndarray:
        """Returns A times `values`, float64 `[rounds]` or `[rounds, columns]`."""
        return self.matrix(len(values)) @ values


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToeplitzWorkload(Workload):
    """A workload that is constant along each diagonal."""

    @abc.abstractmethod
    def coefficients(self, rounds: int) -> np.ndarray:
        """Returns the first column of A, float64 `[rounds]`."""

    def matrix(self, rounds: int) -> np.ndarray:
        return matrices.lower_toeplitz(self.coefficients(validation.dense(self.check(rounds))))

    def applied_to(self, values: np.ndarray) -> np.ndarray:
        if values.ndim == 1:
            return np.convolve(self.coefficients(len(values)), values)[: len(values)]
        return super().applied_to(values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixSum(ToeplitzWorkload):
    """The sum of all rounds so far: SGD with a constant learning rate. Denisov et al. (2022), equation 10.

    Example:
        >>> PrefixSum().matrix(3)
        array([[1., 0., 0.],
               [1., 1., 0.],
               [1., 1., 1.]])
    """

    kind: ClassVar[str] = "prefix_sum"

    def coefficients(self, rounds: int) -> np.ndarray:
        return np.ones(validation.listable(self.check(rounds)))

    def applied_to(self, values: np.ndarray) -> np.ndarray:
        return np.cumsum(values, axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Momentum(ToeplitzWorkload):
    """SGD with momentum β and a constant learning rate. Denisov et al. (2022), equation 11, with η = 1.

    Attributes:
        momentum: β, at least 0 and below 1.

    Example:
        >>> Momentum(momentum=0.5).coefficients(4)
        array([1.   , 1.5  , 1.75 , 1.875])

    Raises:
        InputValueError: If it is out of range.
    """

    kind: ClassVar[str] = "momentum"
    momentum: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "momentum", _momentum(self.momentum))

    def coefficients(self, rounds: int) -> np.ndarray:
        return self.applied_to(np.eye(1, validation.listable(self.check(rounds)))[0])

    def applied_to(self, values: np.ndarray) -> np.ndarray:
        return np.cumsum(_decayed_sums(values, self.momentum), axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearSchedule:
    """Learning rates that rise linearly to 1 in the first rounds and fall linearly from 1 in the last ones.

    The default first and last rates are from Choquette-Choo et al. (2023), appendix H, where 2052 rounds have 309
    of warmup and 513 of cooldown.

    Attributes:
        warmup_rounds: Rounds of the warmup; the last of them has rate 1.
        warmup_from: Rate of the first round, if there is a warmup.
        cooldown_rounds: Rounds of the cooldown; the first of them has rate 1.
        cooldown_to: Rate of the last round, if there is a cooldown.

    Example:
        >>> LinearSchedule(warmup_rounds=2, warmup_from=0.5, cooldown_rounds=3, cooldown_to=0).rates(6)
        array([0.5, 1. , 1. , 1. , 0.5, 0. ])
    """

    warmup_rounds: int = 0
    warmup_from: float = 0.05
    cooldown_rounds: int = 0
    cooldown_to: float = 0.05

    def __post_init__(self) -> None:
        for name in ("warmup_rounds", "cooldown_rounds"):
            object.__setattr__(self, name, validation.whole(name, getattr(self, name), at_least=0))
        for name in ("warmup_from", "cooldown_to"):
            object.__setattr__(self, name, validation.nonnegative(name, getattr(self, name)))

    def check(self, rounds: int) -> int:
        """Returns `rounds` if warmup and cooldown fit into them, else raises `InputValueError`."""
        rounds = validation.whole("rounds", rounds)
        if self.warmup_rounds + self.cooldown_rounds > rounds:
            raise InputValueError(
                f"warmup_rounds={self.warmup_rounds} and cooldown_rounds={self.cooldown_rounds} together exceed "
                f"rounds={rounds}."
            )
        return rounds

    def rates(self, rounds: int) -> np.ndarray:
        """Returns the learning rates, float64 `[rounds]`."""
        rates = np.ones(validation.listable(self.check(rounds)))
        rates[: self.warmup_rounds] = np.linspace(self.warmup_from, 1, self.warmup_rounds)
        rates[rounds - self.cooldown_rounds :] = np.linspace(1, self.cooldown_to, self.cooldown_rounds)
        return rates


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningRates(Workload):
    """SGD with learning rates η_t: M^(η) of Denisov et al. (2022), equation 11.

    Attributes:
        rates: η_t, one for each round, at least 0; or a schedule.

    Example:
        >>> LearningRates(rates=[0.5, 1, 0.25]).matrix(3)
        array([[0.5 , 0.  , 0.  ],
               [0.5 , 1.  , 0.  ],
               [0.5 , 1.  , 0.25]])

    Raises:
        InputTypeError: If `rates` is neither a schedule nor a sequence of numbers.
        InputValueError: If a rate is below 0, or there are no rates or too many.
    """

    kind: ClassVar[str] = "learning_rates"
    rates: Sequence[float] | LinearSchedule

    def __post_init__(self) -> None:
        if not isinstance(self.rates, LinearSchedule):
            per = "round, or a tff_mf.LinearSchedule"
            rates = validation.sequence("rates", self.rates, per=per, item=validation.nonnegative)
            validation.dense(len(rates))
            object.__setattr__(self, "rates", rates)

    def check(self, rounds: int) -> int:
        if isinstance(self.rates, LinearSchedule):
            return self.rates.check(rounds)
        rounds = super().check(rounds)
        if rounds > len(self.rates):
            raise InputValueError(f"rounds={rounds} exceeds the {len(self.rates)} rounds that `rates` lists.")
        return rounds

    def listed(self, rounds: int) -> np.ndarray:
        """Returns η_t, float64 `[rounds]`."""
        rounds = self.check(rounds)
        if isinstance(self.rates, LinearSchedule):
            return self.rates.rates(rounds)
        return np.array(self.rates[:rounds])

    def matrix(self, rounds: int) -> np.ndarray:
        return self.applied_to(np.eye(validation.dense(self.check(rounds))))

    def applied_to(self, values: np.ndarray) -> np.ndarray:
        rates = self.listed(len(values))
        return np.cumsum(rates.reshape(-1, *[1] * (values.ndim - 1)) * values, axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentumWithRates(LearningRates):
    """SGD with momentum β and learning rates η_t: M = M^(η)·M^(β), Denisov et al. (2022), equation 11.

    Attributes:
        rates: η_t, one for each round, at least 0; or a schedule.
        momentum: β, at least 0 and below 1.

    Example:
        >>> MomentumWithRates(rates=[1, 0.5, 0.5], momentum=0.5).matrix(3)
        array([[1.   , 0.   , 0.   ],
               [1.25 , 0.5  , 0.   ],
               [1.375, 0.75 , 0.5  ]])
    """

    kind: ClassVar[str] = "momentum_with_rates"
    momentum: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "momentum", _momentum(self.momentum))

    def applied_to(self, values: np.ndarray) -> np.ndarray:
        return super().applied_to(_decayed_sums(values, self.momentum))


def _momentum(value: object) -> float:
    momentum = validation.nonnegative("momentum", value)
    if momentum >= 1:
        raise InputValueError(f"momentum={value!r} must be below 1.")
    return momentum


def _decayed_sums(values: np.ndarray, decay: float) -> np.ndarray:
    """Returns M^(β) times `values`: sums in which the weight of each round is `decay` times the next one's.

    1 + βz + β²z² + … is the product of 1 + βz, 1 + β²z², 1 + β⁴z⁴, …, which takes log₂ n passes instead of a loop over
    rounds.
    """
    total = values.copy()
    shift = 1
    while shift < len(total) and decay > 0:
        total[shift:] += decay * total[:-shift]
        shift, decay = 2 * shift, decay * decay
    return total
