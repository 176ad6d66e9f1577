"""Runs with secret cohorts: what the theorem of a sampling must compute, and how ε, δ and σ follow from it."""

import abc
import dataclasses
import math
import typing
from collections.abc import Callable

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
_LEAST_CERTIFIED = 1e-290
# Of a search for σ by certificates: attempts, and by how much ε may be below its target.
_ATTEMPTS, _WANTED = 8, 0.004
# Of a search without samples: relative width of the interval of σ, its least σ as a share of the unamplified one, and
# small steps after it.
_PRECISION, _LEAST_SHARE, _STEPS = 1e-4, 1e-6, 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretRun(abc.ABC):
    """A run with secret cohorts that a theorem covers: ε, δ and σ, with all that does not depend on σ computed once.

    Attributes:
        charge_of: What the integers of a grid cost, as a function of σ; `None` for real numbers.
    """

    # Whether ε is certified by sampling, so that it differs from call to call.
    certified: typing.ClassVar[bool] = False

    charge_of: Callable[[float], grid_charge.GridCharge] | None = None

    @abc.abstractmethod
    def ideal(self, sigma: float, delta: float, *, change: float, failure_share: float) -> Level:
        """Returns ε of real numbers at δ.

        Args:
            sigma: σ, at least 0.
            delta: δ.
            change: By how much the norm of what a client adds to Cx may be larger than with C.
            failure_share: A certificate by sampling may fail with this share of δ/1000.
        """

    def rough_epsilon(self, sigma: float, delta: float) -> float | None:
        """Returns roughly ε, for a δ that depends on no sample; `None` where `ideal` may be called twice."""
        del sigma, delta
        return None

    def level(self, sigma: float, delta: float, *, failure_share: float = 1.0) -> Level:
        """Returns ε at δ; a certificate by sampling may fail with `failure_share` of δ/1000."""
        charge = self.charge_of(sigma) if self.charge_of and sigma else None
        return self.charged(sigma, delta, charge, failure_share=failure_share)

    def charged(
        self, sigma: float, delta: float, charge: grid_charge.GridCharge | None, *, failure_share: float = 1.0
    ) -> Level:
        """Returns ε of the computed release, whose distance from the ideal one is `charge`; `None` for real numbers."""
        delta = delta if self.certified else validation.tail_delta(delta)
        if delta < _LEAST_CERTIFIED:
            raise InputValueError(f"delta={delta!r} must be at least {_LEAST_CERTIFIED}.")
        if charge is None:
            return self.ideal(sigma, delta, change=0.0, failure_share=failure_share)
        ideal_levels: list[Level] = []

        def epsilon_from(ideal_delta: float) -> float:
            change = charge.sensitivity
            ideal_levels.append(self.ideal(sigma, ideal_delta, change=change, failure_share=failure_share))
            return ideal_levels[-1].epsilon

        if charge.tail >= delta:
            return proved_level(delta, "unamplified", math.inf, math.inf)
        rough_epsilon = self.rough_epsilon(sigma, delta)
        epsilon = grid_charge.epsilon_of_chain(delta, charge, epsilon_from, rough_epsilon=rough_epsilon)
        if not ideal_levels:
            return proved_level(delta, "unamplified", epsilon, epsilon)
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
        """Returns a σ near the smallest, and its level, from the σ of known cohorts; `None` if none is enough."""
        if self.certified:
            return self.best_of_attempts(epsilon, delta, first=unamplified)
        return self._bisected(epsilon, delta, unamplified)

    def best_of_attempts(self, epsilon: float, delta: float, *, first: float) -> tuple[float, Level] | None:
        """Returns the best of a few certificates, from a first σ on.

        Attempt t for one σ may fail with δ/1000·2^(−t), so that all of them together fail with at most δ/1000.
        """
        sigma, low, best = first, 0.0, None
        for attempt in range(1, _ATTEMPTS + 1):
            level = self.level(sigma, delta, failure_share=2.0**-attempt)
            if level.epsilon <= epsilon:
                best = sigma, level
                if level.epsilon >= epsilon * (1 - _WANTED):
                    break
            else:
                low = sigma
            # Of an amplified run ε is about as 1/σ, or falls faster.
            aimed = sigma * min(max(level.epsilon / epsilon, 0.5), 2.0) * (1 + _WANTED / 3)
            if best is not None and not low < aimed < best[0]:
                aimed = math.sqrt(low * best[0]) if low else best[0] / 1.5
            sigma = gaussian.rounded_sigma(aimed)
        return best

    def _bisected(self, epsilon: float, delta: float, unamplified: float) -> tuple[float, Level] | None:
        """Returns the smallest σ, to 0.01 %, and its level."""
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


def proved_level(delta: float, theorem: str, remove: float, add: float) -> Level:
    """Returns the level of a bound that needs no samples, from ε of both directions."""
    direction, epsilon = ("remove", remove) if remove >= add else ("add", add)
    return Level(epsilon=epsilon, delta=delta, bound="proved", theorem=theorem, direction=direction, estimate=epsilon)
