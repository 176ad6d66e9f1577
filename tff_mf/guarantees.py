"""What a whole run guarantees, as a value: in every currency, for either adjacency, and composed with others.

A run of a mechanism is one Gaussian release (see `tff_mf.accounting`), and so is any composition of such runs: what
they are together is one number, μ. That is Gaussian DP: μ-GDP for μ = sensitivity / σ.
"""

import dataclasses
import math
import typing

from tff_mf import _gaussian, _validate
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.participation import Participation
from tff_mf.restarts import restart_sensitivity

if typing.TYPE_CHECKING:
    import dp_accounting

ADJACENCIES = ("zero-out", "replace-one")

# Above the rounding error of the few operations between one figure here and another.
_SLACK = 2.0**-48
# Above it an exponential in dp-accounting overflows: it would be that of a thousandth of ε.
_LARGEST_BY_PLD = 1e5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """μ-GDP of everything that a run releases, and what follows from it.

    Formal guarantee:
        Adjacency: "zero-out" is all contributions of one client set to zero; "replace-one" is all contributions of one
        client replaced by others, each of L2 norm at most the clip norm, which doubles the sensitivity.
        Released: all noised sums that it was computed for, and whatever is computed from them.
        Every figure is rounded so that it promises no more than is true.

    Attributes:
        mu: μ, at least 0: the release is no easier to tell from its neighbour than one draw of N(μ, 1) is from one of
            N(0, 1). Infinite without noise.
        adjacency: "zero-out" or "replace-one".

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

    def __post_init__(self) -> None:
        if self.mu != math.inf:
            object.__setattr__(self, "mu", _validate.nonnegative("mu", self.mu))
        _validate.one_of("adjacency", self.adjacency, ADJACENCIES)

    @classmethod
    def of_sensitivity(cls, sensitivity: float, *, noise_multiplier: float, adjacency: str = "zero-out") -> "Guarantee":
        """Returns the guarantee of a Gaussian release: μ = sensitivity / σ, doubled for "replace-one", rounded up.

        Args:
            sensitivity: The sensitivity for "zero-out" and a clip norm of 1, or an upper bound.
            noise_multiplier: σ, at least 0.
            adjacency: "zero-out" or "replace-one".

        Example:
            >>> round(Guarantee.of_sensitivity(2.0, noise_multiplier=4.0).mu, 9)
            0.5

        Raises:
            InputTypeError: If an argument is of the wrong type.
            InputValueError: If an argument is out of range.
        """
        sensitivity = _validate.nonnegative("sensitivity", sensitivity)
        sigma = _validate.nonnegative("noise_multiplier", noise_multiplier)
        _validate.one_of("adjacency", adjacency, ADJACENCIES)
        found = cls(mu=_gaussian.mu_of(sensitivity, sigma))
        return found if adjacency == "zero-out" else found.replace_one()

    @property
    def effective_noise_multiplier(self) -> float:
        """σ of the one Gaussian release with sensitivity 1; infinite if nothing is released."""
        return 1 / self.mu * (1 - _SLACK) if self.mu else math.inf

    @property
    def zcdp_rho(self) -> float:
        """ρ for which the release is ρ-zCDP: μ² / 2."""
        return _gaussian.rho_of(self.mu)

    def epsilon(self, delta: float) -> float:
        """Returns ε for which the release is (ε, δ)-DP: the smallest, by Balle and Wang (2018), theorem 8."""
        return _gaussian.epsilon_from_delta(_validate.open_unit("delta", delta), self.mu)

    def delta(self, epsilon: float) -> float:
        """Returns δ for which the release is (ε, δ)-DP: the smallest, by Balle and Wang (2018), theorem 8."""
        return _gaussian.delta_from_epsilon(_validate.nonnegative("epsilon", epsilon), self.mu)

    def epsilon_by_pld(self, delta: float) -> float:
        """Returns ε by dp-accounting's accountant of privacy loss distributions, to compare with `epsilon`.

        Its privacy loss is discretized in steps of a thousandth of ε, rounded up. Infinite where ε is above 10⁵, which
        that accountant cannot compute with.
        """
        delta = _validate.open_unit("delta", delta)
        exact = self.epsilon(delta)
        if self.mu == 0 or exact in (0.0, math.inf):
            return exact
        if exact > _LARGEST_BY_PLD:
            return math.inf
        # A second of import that no other function here needs.
        from dp_accounting.pld import privacy_loss_distribution

        distribution = privacy_loss_distribution.from_gaussian_mechanism(
            1 / self.mu, value_discretization_interval=exact / 1000
        )
        return float(distribution.get_epsilon_for_delta(delta))

    def epsilon_from_zcdp(self, delta: float) -> float:
        """Returns the ε that follows from ρ alone, larger than `epsilon`: the figure that some publications print.

        inf over α > 1 of ρα + log(1/(αδ)) / (α − 1) + log(1 − 1/α), at an α near the best; any α is allowed.

        Source: Canonne, Kamath and Steinke (2020), proposition 12, for Rényi divergence ρα.
        """
        log_delta = math.log(_validate.open_unit("delta", delta))
        rho = self.zcdp_rho
        if rho in (0.0, math.inf):
            return rho
        # Costs a good part of the whole package's import time.
        from scipy.optimize import minimize_scalar

        def bound(log_order: float) -> float:
            order = 1 + math.exp(log_order)
            if order == 1:
                return math.inf
            return rho * order - (log_delta + math.log(order)) / (order - 1) + math.log1p(-1 / order)

        middle = 0.5 * math.log(-log_delta / rho)
        found = minimize_scalar(bound, bounds=(middle - 5, middle + 5), method="bounded")
        return max(0.0, float(found.fun) * (1 + _SLACK))

    def replace_one(self) -> "Guarantee":
        """Returns the guarantee for "replace-one": μ doubled, unless it is that already."""
        return self if self.adjacency == "replace-one" else Guarantee(mu=2 * self.mu, adjacency="replace-one")

    def dp_event(self) -> "dp_accounting.GaussianDpEvent":
        """Returns the release as one event of dp-accounting: a Gaussian with the effective noise multiplier."""
        import dp_accounting

        # pyrefly: ignore[unexpected-keyword]: it cannot see the fields of classes made with attr.s.
        return dp_accounting.GaussianDpEvent(noise_multiplier=self.effective_noise_multiplier)


def guarantee(
    mechanism: Mechanism,
    rounds: int,
    participation: Participation,
    *,
    noise_multiplier: float,
    restart_every: int | None = None,
    adjacency: str = "zero-out",
) -> Guarantee:
    """Returns the guarantee of a whole run, restarted or not.

    Formal guarantee:
        Adjacency: `adjacency`.
        Participation: the client's rounds form a pattern of `participation` within all `rounds`, across restarts.
        Sensitivity: that of `mechanism.cast_to_float32()`, or a proven upper bound, rounded up; see
        `restart_sensitivity`.
        Released: all `rounds` noised sums. Composing the result once a round, or once a restart, would be wrong.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        restart_every: Rounds r after which noise starts anew with fresh z, or `None`.
        adjacency: "zero-out" or "replace-one".

    Example:
        >>> from tff_mf import MinSep, Tree
        >>> p = MinSep(min_sep=314, max_participations=6)
        >>> found = guarantee(Tree(2000, variant="online"), 2000, p, noise_multiplier=7)
        >>> round(found.zcdp_rho, 2), round(found.epsilon(1e-10), 2), round(found.epsilon_from_zcdp(1e-10), 2)
        (0.81, 8.53, 8.9)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    _validate.nonnegative("noise_multiplier", noise_multiplier)
    _validate.one_of("adjacency", adjacency, ADJACENCIES)
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    every = rounds if restart_every is None else restart_every
    sens = restart_sensitivity(mechanism.cast_to_float32(), rounds, participation, restart_every=every).value
    return Guarantee.of_sensitivity(sens, noise_multiplier=noise_multiplier, adjacency=adjacency)


def adaptive_clipping_guarantee(
    rounds: int, participation: Participation, *, count_stddev: float, adjacency: str = "zero-out"
) -> Guarantee:
    """Returns the guarantee of the noised counts that adaptive clipping releases, one a round.

    In each round a client adds +½ or −½, whether its update is below the clip norm or not, to a sum with independent
    noise of standard deviation `count_stddev`. An update that is set to zero is below every clip norm, so that a client
    whose update was above it turns from −½ to +½: with its updates set to zero it still counts. That is the identity
    mechanism with sensitivity 1 a participation: μ = √k / count_stddev. The sums of updates are a release of their own:
    compose their guarantee with this one. A new clip norm changes the noise, and correlated noise of different clip
    norms does not cancel: restart it.

    Formal guarantee:
        Adjacency: `adjacency`. An update that is replaced turns a count no further than one that is set to zero.
        Participation: at most as many rounds of a client as `participation` has, or as fit in `rounds`.
        Sensitivity: √k for either adjacency, exact.
        Released: all counts, and the clip norms computed from them.

    Args:
        rounds: Number of rounds n.
        participation: The participation schema Π.
        count_stddev: Standard deviation of the noise of a count, not divided by anything; at least 0.
        adjacency: "zero-out" or "replace-one".

    Source: Andrew et al. (2021), section 2, for the counts. Their theorem 1 has half of this sensitivity: a client that
    is absent, rather than one whose update is zero, takes ±½ away and adds nothing.

    Example:
        >>> from tff_mf import MinSep
        >>> counts = adaptive_clipping_guarantee(100, MinSep(min_sep=20, max_participations=4), count_stddev=10)
        >>> round(counts.mu, 6)
        0.2

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    _validate.instance("participation", participation, Participation, "pass MinSep, FixedEpoch or SingleParticipation")
    participation.check(rounds)
    _validate.one_of("adjacency", adjacency, ADJACENCIES)
    stddev = _validate.nonnegative("count_stddev", count_stddev)
    return Guarantee(mu=_gaussian.mu_of(math.sqrt(participation.max_participations), stddev), adjacency=adjacency)


def compose_guarantees(*guarantees: Guarantee) -> Guarantee:
    """Returns what several releases guarantee together: μ² add up.

    For releases with noise of their own: several runs, restarts with different noise, the counts of adaptive clipping.
    Not for the rounds of one run, whose noise is shared.

    Formal guarantee:
        Adjacency: that of the guarantees, which must be the same.
        Released: all of them; each may be chosen after the ones before were seen. Every client is taken to be the worst
        of each at once, which is exact for one pattern of rounds, and an upper bound otherwise.

    Args:
        guarantees: At least one.

    Source: Dong, Roth and Su (2022), corollary 2.

    Example:
        >>> round(compose_guarantees(Guarantee(mu=3.0), Guarantee(mu=4.0)).mu, 9)
        5.0

    Raises:
        InputTypeError: If one is not a `Guarantee`.
        InputValueError: If there is none, or their adjacencies differ.
    """
    for each in guarantees:
        _validate.instance("guarantees", each, Guarantee, "make one with tff_mf.guarantee")
    adjacencies = sorted({each.adjacency for each in guarantees})
    if len(adjacencies) != 1:
        raise InputValueError(
            f"guarantees have the adjacencies {adjacencies}: pass at least one, all with the same; replace_one() turns "
            "zero-out into replace-one."
        )
    mus = [each.mu for each in guarantees]
    total = mus[0] if len(mus) == 1 else math.hypot(*mus) * (1 + _SLACK)
    return Guarantee(mu=total, adjacency=adjacencies[0])
