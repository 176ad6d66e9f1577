"""`Guarantee`: one number μ of Gaussian differential privacy, and the ε, δ and ρ that follow from it."""

import dataclasses
import math
import typing
from typing import Self

from tff_mf import gaussian, validation
from tff_mf.errors import InputValueError

if typing.TYPE_CHECKING:
    import dp_accounting

ADJACENCIES = ("zero-out", "replace-one")

# Exceeds the rounding error of the few operations that turn one figure here into another.
SLACK = 2.0**-48
# For an ε above 709, the exponential of ε in dp-accounting overflows, and it returns a larger one.
LARGEST_BY_PLD = 700.0
# Far below every δ that dp-accounting resolves.
_LARGEST_LEFT_OUT = 1e-20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """μ-GDP of everything that a run releases, and the ε, δ and ρ that follow from it.

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

    Source: Dong, Roth and Su (2022), definition 4, for μ-GDP; Bun and Steinke (2016), proposition 1.6, for ρ.

    Example:
        >>> Guarantee(mu=1.0).zcdp_rho
        0.5000000000000018

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range.
    """

    mu: float
    adjacency: str = "zero-out"
    tail: float = 0.0

    def __post_init__(self) -> None:
        if self.mu != math.inf:
            object.__setattr__(self, "mu", validation.nonnegative("mu", self.mu))
        validation.one_of("adjacency", self.adjacency, ADJACENCIES)
        object.__setattr__(self, "tail", validation.nonnegative("tail", self.tail))
        if self.tail > 1:
            raise InputValueError(f"tail={self.tail!r} must be at most 1: it is a probability.")

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
        """ρ for which the release is ρ-zCDP: μ² / 2. With a tail, that of the release within `tail` of it."""
        return gaussian.rho_of(self.mu)

    def epsilon(self, delta: float) -> float:
        """Returns ε for which the release is (ε, δ)-DP: the smallest, by Balle and Wang (2018), theorem 8."""
        return gaussian.epsilon_with_tail(validation.open_unit("delta", delta), self.tail, self._epsilon)

    def _epsilon(self, delta: float) -> float:
        return gaussian.epsilon_from_delta(delta, self.mu)

    def delta(self, epsilon: float) -> float:
        """Returns δ for which the release is (ε, δ)-DP: the smallest, by Balle and Wang (2018), theorem 8."""
        return gaussian.delta_with_tail(validation.nonnegative("epsilon", epsilon), self.mu, self.tail)

    def epsilon_by_pld(self, delta: float) -> float:
        """Returns ε by dp-accounting's accountant of privacy loss distributions, for comparison with `epsilon`.

        The privacy loss is discretized in steps of ε/1000 and rounded up. Infinite where ε is above 700, as that
        accountant computes with exp(ε).
        """
        return gaussian.epsilon_with_tail(validation.open_unit("delta", delta), self.tail, self._epsilon_by_pld)

    def _epsilon_by_pld(self, delta: float) -> float:
        exact = self._epsilon(delta)
        if self.mu == 0 or exact in (0.0, math.inf):
            return exact
        if exact > LARGEST_BY_PLD:
            return math.inf
        # Imported here: it takes a second, and no other function needs it.
        from dp_accounting.pld import privacy_loss_distribution

        distribution = privacy_loss_distribution.from_gaussian_mechanism(
            1 / self.mu, value_discretization_interval=exact / 1000
        )
        return float(distribution.get_epsilon_for_delta(delta))

    def epsilon_from_zcdp(self, delta: float) -> float:
        """Returns the ε implied by ρ alone, which is larger than `epsilon` and which some publications state.

        inf over α > 1 of ρα + log(1/(αδ)) / (α − 1) + log(1 − 1/α), at a nearly optimal α; the bound holds at any α.

        Source: Canonne, Kamath and Steinke (2020), proposition 12, for Rényi divergence ρα.
        """
        return gaussian.epsilon_with_tail(validation.open_unit("delta", delta), self.tail, self._epsilon_from_zcdp)

    def _epsilon_from_zcdp(self, delta: float) -> float:
        log_delta = math.log(delta)
        rho = self.zcdp_rho
        if rho in (0.0, math.inf):
            return rho
        # Imported here: it would double the time of `import tff_mf`.
        from scipy.optimize import minimize_scalar

        def bound(log_order: float) -> float:
            order = 1 + math.exp(log_order)
            if order == 1:
                return math.inf
            return rho * order - (log_delta + math.log(order)) / (order - 1) + math.log1p(-1 / order)

        middle = 0.5 * math.log(-log_delta / rho)
        found = minimize_scalar(bound, bounds=(middle - 5, middle + 5), method="bounded")
        return max(0.0, float(found.fun) * (1 + SLACK))

    def replace_one(self) -> "Guarantee":
        """Returns the guarantee for "replace-one": itself if it is one, and otherwise with μ doubled."""
        if self.adjacency == "replace-one":
            return self
        return dataclasses.replace(self, mu=2 * self.mu, adjacency="replace-one")

    def under(self, adjacency: str) -> "Guarantee":
        """Returns this zero-out guarantee for an adjacency, "zero-out" or "replace-one"."""
        validation.one_of("adjacency", adjacency, ADJACENCIES)
        return self.replace_one() if adjacency == "replace-one" else self

    def dp_event(self) -> "dp_accounting.GaussianDpEvent":
        """Returns the release as one event of dp-accounting, a Gaussian with the effective noise multiplier.

        dp-accounting has no event for a tail: add (1 + e^ε)·`tail` to the δ of whatever is computed from the event.

        Raises:
            InputValueError: If the tail is above 1e-20, and so may not be left out.
        """
        if self.tail > _LARGEST_LEFT_OUT:
            raise InputValueError(
                f"tail={self.tail!r} is above {_LARGEST_LEFT_OUT}, and dp-accounting has no event for it: use epsilon "
                "and delta of the guarantee itself."
            )
        # Imported here: it takes a second, and no other function needs it.
        import dp_accounting

        # pyrefly: ignore[unexpected-keyword]: it cannot see the fields of classes made with attr.s.
        return dp_accounting.GaussianDpEvent(noise_multiplier=self.effective_noise_multiplier)
