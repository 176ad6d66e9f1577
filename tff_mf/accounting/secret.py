"""Runs with secret cohorts: what the theorem of a sampling must compute, and how ε, δ and σ follow from it."""

import abc
import dataclasses
import math
import typing
from collections.abc import Callable, Sequence

from tff_mf.accounting import grid_charge
from tff_mf.accounting.guarantee import Level
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import composed_losses, gaussian

if typing.TYPE_CHECKING:
    import dp_accounting

# Share of δ that is spent on wrong certificates, of all that a decision needs.
FAILURE = 1e-3
# Relative width to which δ at an ε is found, and the least δ that is looked for.
_WIDTH, _LEAST = 1e-3, 1e-12
# Parts of a smaller δ are no floats.
LEAST_DELTA = 1e-290
# Exceeds the rounding error of sums over all rounds, relative.
_SLACK = 1e-9
# Of a search without samples: relative width of the interval of σ, its least σ as a share of the unamplified one, and
# small steps after it.
_PRECISION, _LEAST_SHARE, _STEPS = 1e-4, 1e-6, 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretRun(abc.ABC):
    """A run with secret cohorts that a theorem covers: ε, δ and σ, with all that does not depend on σ computed once.

    Attributes:
        charge_of: What the integers of a grid cost, as a function of σ; `None` for real numbers.
    """

    # Whether ε is certified by sampling, so that it differs from call to call; and the least δ.
    certified: typing.ClassVar[bool] = False
    least_delta: typing.ClassVar[float] = LEAST_DELTA

    charge_of: Callable[[float], grid_charge.GridCharge] | None = None

    @abc.abstractmethod
    def ideal(self, sigma: float, delta: float, *, change: float) -> Level:
        """Returns ε of real numbers at δ.

        Args:
            sigma: σ, at least 0.
            delta: δ.
            change: By how much the norm of what a client adds to Cx may be larger than with C.
        """

    def rough_epsilon(self, sigma: float, delta: float) -> float | None:
        """Returns roughly ε, for a δ that depends on no sample; `None` where `ideal` may be called twice."""
        del sigma, delta
        return None

    def level(self, sigma: float, delta: float) -> Level:
        """Returns ε at δ."""
        return self.charged(sigma, delta, self.charge_of(sigma) if self.charge_of and sigma else None)

    def charged(self, sigma: float, delta: float, charge: grid_charge.GridCharge | None) -> Level:
        """Returns ε of the computed release, whose distance from the ideal one is `charge`; `None` for real numbers."""
        if delta < self.least_delta:
            raise InputValueError(
                f"delta={delta!r} is below {self.least_delta}: smaller values are lost in rounding. Take a larger one."
            )
        if charge is None:
            return self.ideal(sigma, delta, change=0.0)
        ideal_levels: list[Level] = []

        def epsilon_from(ideal_delta: float) -> float:
            ideal_levels.append(self.ideal(sigma, ideal_delta, change=charge.sensitivity))
            return ideal_levels[-1].epsilon

        if charge.tail >= delta:
            return least("both", delta, [(math.inf, "unamplified")])
        rough_epsilon = self.rough_epsilon(sigma, delta)
        epsilon = grid_charge.epsilon_of_chain(delta, charge, epsilon_from, rough_epsilon=rough_epsilon)
        if not ideal_levels:
            return least("both", delta, [(epsilon, "unamplified")])
        estimate = ideal_levels[-1].estimate if self.certified else epsilon
        return dataclasses.replace(ideal_levels[-1], epsilon=epsilon, delta=delta, estimate=estimate)

    def level_at(self, sigma: float, epsilon: float) -> Level:
        """Returns δ at ε, by halving intervals of log δ, for bounds that need no samples."""
        if self.certified:
            raise InputValueError(
                "epsilon: no δ is certified for this sampling at a given ε, as each δ that is tried takes a part of "
                "what may fail. Ask for epsilon(delta)."
            )
        high, low = 1 - 2.0**-20, _LEAST
        # Where this holds, no δ below 1 is proved.
        if (most := self.level(sigma, high)).epsilon > epsilon:
            return dataclasses.replace(most, epsilon=epsilon, delta=1.0, estimate=1.0)
        if self.level(sigma, low).epsilon <= epsilon:
            high = low
        while high > low * (1 + _WIDTH):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.level(sigma, middle).epsilon <= epsilon else (middle, high)
        return dataclasses.replace(self.level(sigma, high), epsilon=epsilon, delta=high, estimate=high)

    def search(self, epsilon: float, delta: float, *, unamplified: float) -> tuple[float, Level] | None:
        """Returns the smallest σ, to 0.01 %, and its level, from the σ of known cohorts; `None` if none is enough."""
        # Every machine finds the ε of the result to be at most this.
        aim = validation.positive("epsilon", epsilon) * composed_losses.ON_EVERY_MACHINE

        def smallest(charge: grid_charge.GridCharge | None) -> float:
            """Returns about the smallest σ that is private, from one that is so without amplification."""
            low = high = unamplified
            while low > unamplified * _LEAST_SHARE and self.charged(low, delta, charge).epsilon <= aim:
                high, low = low, low / 2
            while high > low * (1 + _PRECISION):
                middle = math.sqrt(low * high)
                is_enough = self.charged(middle, delta, charge).epsilon <= aim
                low, high = (low, middle) if is_enough else (middle, high)
            return gaussian.rounded_sigma(high)

        sigma = smallest(None)
        if self.charge_of:
            # What a grid costs hardly depends on σ, and takes longer than the rest.
            sigma = max(sigma, smallest(self.charge_of(sigma)))
        for _ in range(_STEPS):
            level = self.level(sigma, delta)
            if level.epsilon <= aim:
                return sigma, level
            # The bounds are not quite monotone in σ.
            sigma = gaussian.rounded_sigma(sigma * (1 + _PRECISION))
        return None

    def dp_event(self, sigma: float) -> "dp_accounting.DpEvent | None":
        """Returns the run as an event of dp-accounting, or `None` if there is none."""
        del sigma
        return None


def least(direction: str, delta: float, bounds: Sequence[tuple[float, str]], estimate: float | None = None) -> Level:
    """Returns the least of bounds of one direction that need no samples; the first one is a number.

    Example:
        >>> least("add", 1e-6, [(2.0, "unamplified"), (math.nan, "none"), (1.0, "moments")]).theorem
        'moments'
    """
    # A NaN is not smaller than anything.
    epsilon, theorem = min(bounds, key=lambda bound: bound[0])
    # Not NumPy's number.
    known = {"epsilon": float(epsilon), "estimate": float(epsilon if estimate is None else estimate)}
    return Level(delta=delta, bound="proved", theorem=theorem, direction=direction, **known)


def larger(remove: Level, add: Level) -> Level:
    """Returns the larger of both directions, which needs the certificates of both."""
    level = remove if remove.epsilon >= add.epsilon else add
    are_equal = (remove.epsilon, remove.theorem) == (add.epsilon, add.theorem)
    return dataclasses.replace(
        level,
        direction="both" if are_equal else level.direction,
        bound="certified" if "certified" in (remove.bound, add.bound) else "proved",
        failure=remove.failure + add.failure,
        samples=remove.samples + add.samples,
        estimate=max(remove.estimate or 0.0, add.estimate or 0.0),
    )


def jensen_epsilon(delta: float, square: float, mean_square: float) -> float:
    """Returns ε for the run without the client against the run with it, by theorem 7 of docs/proofs.md.

    Args:
        delta: δ.
        square: The squared norm of the mean of what the client adds to Cx, divided by σ.
        mean_square: The mean of its squared norm; both are exact to 1e-9 of them.

    Example:
        >>> round(jensen_epsilon(1e-6, 0.25, 0.25), 2) == round(gaussian.epsilon_from_delta(1e-6, 0.5), 2)
        True
    """
    mu = math.sqrt(square) * (1 + _SLACK)
    return gaussian.epsilon_from_delta(delta, mu) + (mean_square * (1 + _SLACK) - square * (1 - _SLACK)) / 2
