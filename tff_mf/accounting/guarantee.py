"""`Guarantee`: what a whole run guarantees, in every privacy measure, and `Level`, one (ε, δ) of it with its bound."""

import dataclasses
import math
import typing
from collections.abc import Callable
from typing import Self

import numpy as np

from tff_mf.accounting.search import Search
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import composed_losses, gaussian

if typing.TYPE_CHECKING:
    import dp_accounting

ADJACENCIES = ("zero-out", "replace-one")

# Exceeds the rounding error of the few operations that turn one figure here into another.
SLACK = 2.0**-48
# Orders α that are tried: the best of them is within 1e-6 of the best of all.
_ORDERS = 10_001
# Far below every δ that dp-accounting resolves.
_LARGEST_LEFT_OUT = 1e-20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """One (ε, δ) of a run, and how it is known.

    Formal guarantee: the run is (ε, δ)-DP, except with probability `failure` over the samples that were drawn for it,
    which δ includes.

    Attributes:
        epsilon: ε.
        delta: δ.
        bound: "exact", "proved", or "certified" by sampling.
        theorem: Name of the bound, which is the least of those that apply.
        direction: "remove" for the run with the client against the run without it, "add" for the opposite, "both" where
            the two are the same.
        failure: Probability that the certificate is wrong; 0 unless it is by sampling.
        samples: Number of samples that were drawn.
        estimate: An estimate of ε, or of δ if that was asked for, without a certificate.
    """

    epsilon: float
    delta: float
    bound: str
    theorem: str
    direction: str = "both"
    failure: float = 0.0
    samples: int = 0
    estimate: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Amplification:
    """What secret cohorts add to a run at one σ.

    Attributes:
        key: What was asked, by content.
        mu: μ of the run for whoever knows the cohorts.
        at_delta: Returns ε at δ.
        at_epsilon: Returns δ at ε.
        dp_event: Returns the run as an event of dp-accounting, or `None` if there is none.
    """

    key: tuple[object, ...]
    mu: float
    at_delta: Callable[[float], Level] = dataclasses.field(compare=False)
    at_epsilon: Callable[[float], Level] = dataclasses.field(compare=False)
    dp_event: Callable[[], "dp_accounting.DpEvent | None"] = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What everything that a run releases guarantees: μ-GDP, and ε, δ and ρ.

    μ and ρ hold for whoever knows the cohorts. Where the cohorts are secret, ε and δ are smaller than what follows from
    μ: `at` says by which theorem, and with what certainty.

    Formal guarantee:
        Adjacency: "zero-out" is all contributions of one client set to zero; "replace-one" is all contributions of one
        client replaced by others, each of L2 norm at most the clip norm, which doubles the sensitivity.
        Released: all noised sums that it was computed for, and whatever is computed from them.
        Every figure is rounded in the direction of less privacy.

    Attributes:
        mu: μ, at least 0: two neighboring releases are no easier to tell apart than one draw of N(μ, 1) and one of
            N(0, 1). Infinite without noise.
        adjacency: "zero-out" or "replace-one".
        tail: For noise on a grid, the release is within `tail`, in total variation, of one that is μ-GDP, for every
            data set: δ is larger by (1 + e^ε)·tail. Otherwise 0.
        exact: Whether no smaller μ holds.
        amplified: What secret cohorts add, or `None`.
        search: The search whose best run is released, or `None`. μ, ρ and the tail are then of each run, and `epsilon`
            is of the one that is selected.

    Source: Dong, Roth and Su (2022), definition 4, for μ-GDP; Bun and Steinke (2016), proposition 1.6, for ρ.

    Example:
        >>> Guarantee(mu=1.0).zcdp_rho
        0.5000000000000018

    """

    mu: float
    adjacency: str = "zero-out"
    tail: float = 0.0
    exact: bool = dataclasses.field(default=False, compare=False, repr=False)
    amplified: Amplification | None = dataclasses.field(default=None, repr=False)
    search: Search | None = None

    def __post_init__(self) -> None:
        if self.mu != math.inf:
            object.__setattr__(self, "mu", validation.nonnegative("mu", self.mu))
        validation.one_of("adjacency", self.adjacency, ADJACENCIES)
        object.__setattr__(self, "tail", validation.nonnegative("tail", self.tail))
        if self.tail > 1:
            raise InputValueError(f"tail={self.tail!r} must be at most 1: it is a probability.")
        if self.search is not None and self.amplified is not None:
            raise InputValueError(f"search={self.search!r} with secret cohorts has no known ε: leave one of them out.")

    @classmethod
    def of_gaussian(cls, sensitivity: float, noise_multiplier: float) -> Self:
        """Returns the zero-out guarantee of one Gaussian release, μ rounded up by more than the error of its arguments.

        Args:
            sensitivity: Its sensitivity, at least 0.
            noise_multiplier: σ, standard deviation of its noise in the same units, at least 0.

        Example:
            >>> Guarantee.of_gaussian(1.0, 2.0).mu > 0.5
            True
        """
        return cls(mu=gaussian.mu_of(sensitivity, noise_multiplier))

    @property
    def effective_noise_multiplier(self) -> float:
        """σ of the equivalent Gaussian release with sensitivity 1, rounded down; infinite if nothing is released."""
        return 1 / self.mu * (1 - SLACK) if self.mu else math.inf

    @property
    def zcdp_rho(self) -> float:
        """ρ for which the release is ρ-zCDP: μ² / 2. With a tail, it is so for a release within `tail` of this one."""
        return gaussian.rho_of(self.mu)

    @property
    def bound(self) -> str:
        """How μ is known: "exact", or "proved" if it is an upper bound; `at` says how ε is."""
        return "exact" if self.exact and not self.tail else "proved"

    def at(self, *, delta: float | None = None, epsilon: float | None = None) -> Level:
        """Returns ε at δ, or δ at ε, by the least of the bounds that apply, with its name.

        A certificate by sampling is drawn once: a second call returns the same.

        Raises:
            InputValueError: If not exactly one of both is given.
        """
        if (delta is None) == (epsilon is None):
            raise InputValueError("Give either delta=δ or epsilon=ε, and not both.")
        if self.search is not None and delta is not None:
            epsilon = self.search.epsilon(self.mu, validation.open_unit("delta", delta), tail=self.tail)
            return Level(epsilon=epsilon, delta=delta, bound="proved", theorem="private selection")
        self._check_no_search()
        secret = self._secret
        if delta is not None:
            delta = validation.open_unit("delta", delta)
            plain = self._plain(gaussian.epsilon_with_tail(delta, self.tail, self._epsilon), delta)
            amplified = secret.at_delta(delta) if secret and plain.epsilon else plain
            return amplified if amplified.epsilon < plain.epsilon else plain
        assert epsilon is not None
        plain = self._plain(
            epsilon, gaussian.delta_with_tail(validation.nonnegative("epsilon", epsilon), self.mu, self.tail)
        )
        amplified = secret.at_epsilon(epsilon) if secret and plain.delta else plain
        return amplified if amplified.delta < plain.delta else plain

    @property
    def _secret(self) -> Amplification | None:
        """What secret cohorts add to this guarantee, and not to another one that it was copied from."""
        return self.amplified if self.amplified and self.amplified.mu == self.mu else None

    def _check_no_search(self) -> None:
        """Raises if a figure would be of one run, and smaller than the selected run's."""
        if self.search is not None:
            raise InputValueError(
                f"search={self.search!r} has no other figure than ε at δ for the run that it selects; of each run, ask "
                "dataclasses.replace(guarantee, search=None)."
            )

    def _plain(self, epsilon: float, delta: float) -> Level:
        return Level(epsilon=epsilon, delta=delta, bound=self.bound, theorem="unamplified")

    def epsilon(self, delta: float) -> float:
        """Returns ε for which the release is (ε, δ)-DP: the smallest that is known, as `at` explains.

        Source: Balle and Wang (2018), theorem 8, where cohorts may be known.
        """
        return self.at(delta=delta).epsilon

    def _epsilon(self, delta: float) -> float:
        return gaussian.epsilon_from_delta(delta, self.mu)

    def delta(self, epsilon: float) -> float:
        """Returns δ for which the release is (ε, δ)-DP: the smallest that is known, as `at` explains."""
        return self.at(epsilon=epsilon).delta

    def epsilon_by_pld(self, delta: float) -> float:
        """Returns ε by the moments of the privacy loss (`numerics.composed_losses`), for comparison with `epsilon`."""
        self._check_no_search()
        return gaussian.epsilon_with_tail(validation.open_unit("delta", delta), self.tail, self._epsilon_by_pld)

    def _epsilon_by_pld(self, delta: float) -> float:
        if self.mu in (0.0, math.inf):
            return self.mu
        return composed_losses.epsilon(composed_losses.nothing, 1, delta, most=math.inf, gaussian=self.mu)

    def epsilon_from_zcdp(self, delta: float) -> float:
        """Returns the ε implied by ρ alone, which is larger than `epsilon` and which some publications state.

        inf over α > 1 of ρα + log(1/(αδ)) / (α − 1) + log(1 − 1/α), at a nearly optimal α; the bound holds at any α.

        Source: Canonne, Kamath and Steinke (2020), proposition 12, for Rényi divergence ρα.
        """
        self._check_no_search()
        return gaussian.epsilon_with_tail(validation.open_unit("delta", delta), self.tail, self._epsilon_from_zcdp)

    def _epsilon_from_zcdp(self, delta: float) -> float:
        log_delta = math.log(delta)
        rho = self.zcdp_rho
        if rho in (0.0, math.inf):
            return rho
        # Not of the quotient, which overflows where ρ is subnormal.
        middle = 0.5 * (math.log(-log_delta) - math.log(rho))
        orders = 1 + np.exp(middle + np.linspace(-5, 5, _ORDERS))
        orders = orders[orders > 1]
        bounds = rho * orders - (log_delta + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
        return max(0.0, float(np.min(bounds, initial=math.inf)) * (1 + SLACK))

    def replace_one(self) -> "Guarantee":
        """Returns the guarantee for "replace-one": itself if it is one, and otherwise with μ doubled.

        Nothing is amplified then: no theorem here compares two runs with the client.
        """
        if self.adjacency == "replace-one":
            return self
        return dataclasses.replace(self, mu=2 * self.mu, adjacency="replace-one", amplified=None)

    def under(self, adjacency: str) -> "Guarantee":
        """Returns this zero-out guarantee for an adjacency, "zero-out" or "replace-one"."""
        validation.one_of("adjacency", adjacency, ADJACENCIES)
        return self.replace_one() if adjacency == "replace-one" else self

    def dp_event(self) -> "dp_accounting.DpEvent":
        """Returns the release as one event of dp-accounting.

        It is a Gaussian with the effective noise multiplier, or, for Poisson sampling of real numbers, a sequence of
        sampled Gaussians. On a grid nothing is amplified, as the event then has what the integers cost.

        dp-accounting has no event for a tail: add (1 + e^ε)·`tail` to the δ of whatever is computed from the event.

        Raises:
            InputValueError: If the tail is above 1e-20, and so may not be left out, or there is a search.
        """
        self._check_no_search()
        if self.tail > _LARGEST_LEFT_OUT:
            raise InputValueError(
                f"tail={self.tail!r} is above {_LARGEST_LEFT_OUT}, and dp-accounting has no event for it: use epsilon "
                "and delta of the guarantee itself."
            )
        sampled = self._secret.dp_event() if self._secret else None
        if sampled is not None:
            return sampled
        # Imported here: it takes a second, and no other function needs it.
        import dp_accounting

        # pyrefly: ignore[unexpected-keyword]: it cannot see the fields of classes made with attr.s.
        return dp_accounting.GaussianDpEvent(noise_multiplier=self.effective_noise_multiplier)


def compose_guarantees(*guarantees: Guarantee) -> Guarantee:
    """Returns the guarantee of several releases together, whose μ² is the sum of theirs.

    For releases with independent noise, such as several runs, restarts with different noise, and the counts of adaptive
    clipping. Not for the rounds of one run, which share noise.

    Formal guarantee:
        Adjacency: the guarantees' own, which must be the same.
        Released: all of the releases; each may be chosen adaptively. One client is assumed to be the worst case of
        every release, which is exact if all have the same worst pattern of rounds, and an upper bound otherwise.
        Tails add up. Secret cohorts add nothing: what is composed is the guarantee for whoever knows them.

    Args:
        guarantees: At least one.

    Source: Dong, Roth and Su (2022), corollary 2.

    Example:
        >>> round(compose_guarantees(Guarantee(mu=3.0), Guarantee(mu=4.0)).mu, 9)
        5.0

    Raises:
        InputValueError: If there is none, or their adjacencies differ.
    """
    for release in guarantees:
        validation.instance("guarantees", release, Guarantee, "make one with tff_mf.guarantee")
        release._check_no_search()
    adjacencies = sorted({release.adjacency for release in guarantees})
    if len(adjacencies) != 1:
        raise InputValueError(
            f"guarantees have the adjacencies {adjacencies}: pass at least one guarantee, and all with the same "
            "adjacency; replace_one() turns zero-out into replace-one."
        )
    mus = [release.mu for release in guarantees]
    total = mus[0] if len(mus) == 1 else math.hypot(*mus) * (1 + SLACK)
    tail = math.fsum(release.tail for release in guarantees)
    return Guarantee(mu=total, adjacency=adjacencies[0], tail=min(1.0, tail * (1 + SLACK)))
