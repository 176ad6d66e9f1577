"""What it costs to search: a random number of runs, of which only the best is ever published.

plan = tff_mf.plan(population=len(clients), clients_per_round=20, rounds=100, epsilon=8.0, delta=1e-6,
search=tff_mf.Search(mean=8))
for _ in range(plan.search.draw()):
...  # a run of the plan with settings of its own, drawn from a stated distribution, and fresh noise
"""

import dataclasses
import decimal
import functools
import math
import os
from collections.abc import Callable

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.numerics import gaussian

# Exceeds the rounding error of the few operations of each figure here.
_SLACK = 2.0**-48
_MOST_RUNS = 1000.0
# Beyond, γ is so near 1 that float64 has none with this mean.
_LARGEST_SHAPE = 1e6
# Orders that are tried, twice: over all of them, and around the best.
_ORDERS = 200
# Of the distribution that a number of runs is drawn from: digits of its probabilities, random bytes, the least
# probability, and a bound of the chance that all of these change the number.
_DIGITS, _BYTES, _LEAST_PROBABILITY, _ROUNDING = 60, 32, decimal.Decimal("1e-50"), 1e-40
# Of λ − 1, at least.
_LEAST_LOG = -30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """A search for settings: K runs, of which the one with the best score is published, and nothing of the others.

    K is random, and nobody learns it. It has a truncated negative binomial distribution, which for shape 0 is the
    logarithmic one and for shape 1 the geometric one, or, for `shape=math.inf`, Poisson's, with which no run at all may
    be made. One fixed number of runs would cost far more.

    Formal guarantee:
        Released: the weights, the settings and the score of the selected run, or, with Poisson's distribution, that
        there was no run. Models, curves and reports of all other runs, and their number, remain secret.
        Runs: each has settings that are drawn independently from one distribution, which does not depend on the
        clients, fresh noise, and the guarantee that `epsilon` is asked for.
        Score: a function of what a run releases and of data that are not protected, such as those of clients that never
        train. An exact score on clients that train is not covered.

    Attributes:
        mean: Mean E[K] of the number of runs, from 1 to 1000.
        shape: η, from 0 to a million: the larger, the less K varies; `math.inf` for Poisson's distribution.

    Source: Papernot and Steinke (2022), definition 1 and theorems 2 and 6; Liu and Talwar (2019).

    Example:
        >>> import tff_mf
        >>> run = (tff_mf.Identity(), 100, tff_mf.SingleParticipation())
        >>> one = tff_mf.epsilon(*run, noise_multiplier=4.2247, delta=1e-6)
        >>> best = tff_mf.epsilon(*run, noise_multiplier=4.2247, delta=1e-6, search=Search(mean=8))
        >>> round(one, 2), round(best, 2), Search(mean=8).draw() >= 1
        (1.0, 1.76, True)

    Raises:
        InputValueError: If a number is out of range.
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        mean = validation.real("mean", self.mean)
        if not 1 <= mean <= _MOST_RUNS:
            raise InputValueError(f"mean={self.mean!r} must be from 1 to {_MOST_RUNS:.0f} runs.")
        object.__setattr__(self, "mean", mean)
        if isinstance(self.shape, bool) or not isinstance(self.shape, int | float):
            raise InputTypeError(f"shape={self.shape!r} must be a number, or math.inf for Poisson's distribution.")
        if not (0 <= self.shape <= _LARGEST_SHAPE or self.shape == math.inf):
            raise InputValueError(f"shape={self.shape!r} must be from 0 to {_LARGEST_SHAPE:.0f}, or math.inf.")
        object.__setattr__(self, "shape", float(self.shape))

    @property
    def is_poisson(self) -> bool:
        """Whether K has Poisson's distribution."""
        return self.shape == math.inf

    @property
    def _is_one_run(self) -> bool:
        """Whether K is always 1."""
        return self.mean == 1 and not self.is_poisson

    @property
    def _mean_drawn(self) -> float:
        """E[K] of what is drawn, which may be a little more than the mean, as γ is rounded."""
        return self.mean if self.is_poisson else _mean(self.gamma, self.shape)

    def epsilon(self, mu: float, delta: float, *, tail: float = 0.0) -> float:
        """Returns an ε for which the selected run is (ε, δ)-DP, if each run is μ-GDP up to its tail.

        Formal guarantee: by theorems 2 and 6 of the source, with ρ = μ²/2 and
        γ from `gamma`, the selected one has the Rényi divergence ε′(λ) for every λ > 1 and λ̂ ≥ 1:

            ε′(λ) = ρλ + log E[K] / (λ − 1) + (1 + η)·((1 − 1/λ̂)·ρλ̂ + log(1/γ) / λ̂),
            ε′(λ) = ρλ + log E[K] / (λ − 1) + E[K]·δ_μ(log(1 + 1/(λ − 1)))               for Poisson's distribution.

        Canonne, Kamath and Steinke (2020), proposition 12, turn it into ε, for any λ. The tails of all runs add up, on
        average E[K] of them, with the probability that rounding has changed K.

        Args:
            mu: μ of each run, at least 0.
            delta: δ, strictly between 0 and 1.
            tail: Of each run, as of `Guarantee`.
        """
        if self._is_one_run:
            return gaussian.epsilon_with_tail(delta, tail, lambda rest: gaussian.epsilon_from_delta(rest, mu))
        tail = min(1.0, tail * self._mean_drawn * (1 + _SLACK) + _ROUNDING)
        return gaussian.epsilon_with_tail(delta, tail, lambda rest: self._epsilon(mu, rest))

    def mu(self, epsilon: float, delta: float) -> float:
        """Returns the largest μ of a run without a tail for which the selected one is (ε, δ)-DP, or a little less.

        Args:
            epsilon: ε of the selected run.
            delta: δ, strictly between 0 and 1.

        Raises:
            InputValueError: If there is none.
        """
        fits, too_large = 0.0, gaussian.mu_from(epsilon, delta) * 2
        for _ in range(40):
            middle = (fits + too_large) / 2
            if self.epsilon(middle, delta) <= epsilon:
                fits = middle
            else:
                too_large = middle
        if not fits:
            raise InputValueError(f"epsilon={epsilon!r} at delta={delta!r} is too small for {self}: take fewer runs.")
        return fits

    def draw(self) -> int:
        """Returns a number of runs, from the randomness of the system. Keep it secret, and never draw it again."""
        if self._is_one_run:
            return 1
        # γ^−η is so near 1 for a small η that their difference needs as many digits more.
        digits = _DIGITS - min(0, decimal.Decimal(self.shape).adjusted()) if self.shape else _DIGITS
        with decimal.localcontext(decimal.Context(prec=digits)):
            place = decimal.Decimal(int.from_bytes(os.urandom(_BYTES), "big")) / 2 ** (8 * _BYTES)
            mean, shape, gamma = map(decimal.Decimal, (self.mean, self.shape, self.gamma))
            if self.is_poisson:
                runs, probability = 0, (-mean).exp()
            elif self.shape == 0:
                runs, probability = 1, (1 - gamma) / -gamma.ln()
            else:
                runs, probability = 1, (1 - gamma) * shape / (gamma**-shape - 1)
            # Beyond the last number that the digits can tell, there is none; the first ones can be as unlikely.
            while place >= probability and (probability > _LEAST_PROBABILITY or runs < self.mean):
                place -= probability
                probability *= mean / (runs + 1) if self.is_poisson else (1 - gamma) * (runs + shape) / (runs + 1)
                runs += 1
            return runs

    @functools.cached_property
    def gamma(self) -> float:
        """γ of the truncated negative binomial distribution with this mean, rounded down."""
        low, high = 0.0, 1.0
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if _mean(middle, self.shape) > self.mean else (low, middle)
        return low * (1 - _SLACK)

    def _epsilon(self, mu: float, delta: float) -> float:
        """Returns ε of the selected run where each is μ-GDP: the least of those by many orders λ."""
        rho = gaussian.rho_of(mu)
        if rho in (0.0, math.inf):
            return rho
        of_search = self._of_poisson(mu) if self.is_poisson else self._of_gamma(rho)

        def bound(order: float) -> float:
            converted = -(math.log(delta) + math.log(order)) / (order - 1) + math.log1p(-1 / order)
            return rho * order + of_search(order) + converted

        # Not of the quotient, which overflows where ρ is subnormal.
        middle, width = 0.5 * (math.log(-math.log(delta)) - math.log(rho)), 5.0
        least = math.inf
        for _ in range(2):
            logs = np.linspace(middle - width, middle + width, _ORDERS)
            bounds = [bound(1 + math.exp(log)) for log in logs.tolist() if log > _LEAST_LOG]
            least = min([least, *bounds])
            middle, width = float(logs[int(np.argmin(bounds))]) if bounds else middle, 10 * width / _ORDERS
        return max(0.0, least * (1 + _SLACK))

    def _of_gamma(self, rho: float) -> Callable[[float], float]:
        """Returns what theorem 2 adds to ρλ, as a function of λ, with the best λ̂."""
        log_mean, log = math.log(self._mean_drawn), -math.log(self.gamma)
        # At λ̂ = √(log(1/γ)/ρ), or at 1 if that is below it.
        least = log if log < rho else 2 * math.sqrt(rho * log) - rho
        return lambda order: (log_mean / (order - 1) + (1 + self.shape) * least) * (1 + _SLACK)

    def _of_poisson(self, mu: float) -> Callable[[float], float]:
        """Returns what theorem 6 adds to ρλ, as a function of λ."""

        def added(order: float) -> float:
            chance = gaussian.delta_from_epsilon(math.log1p(1 / (order - 1)) * (1 - _SLACK), mu)
            return (math.log(self.mean) / (order - 1) + self.mean * chance) * (1 + _SLACK)

        return added


def _mean(gamma: float, shape: float) -> float:
    """Returns E[K] of the truncated negative binomial distribution with γ and η."""
    if not gamma:
        return math.inf
    # Not 1/γ − 1, which has no digits where γ is near 1.
    log, odds = -math.log(gamma), (1 - gamma) / gamma
    exponent = shape * log
    return odds / log * (exponent / -math.expm1(-exponent) if exponent else 1.0)
