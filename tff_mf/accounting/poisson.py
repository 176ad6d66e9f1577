"""Privacy amplification by sampling: banded mechanisms whose cohorts are drawn at random and kept secret.

The population is split into b ≥ b̂ groups, where b̂ is the number of bands of C; in round i only clients of group i mod b
take part. Different rounds of a client then change different rows of Cx, so that the run is a sequence of ⌈n/b⌉
Gaussian queries on one group, each of sensitivity max_t ‖C e_t‖, and every amplification theorem for such a sequence
applies to the run: Choquette-Choo et al. (2023), theorem 4.

This does not apply to cross-device training, where a server cannot draw clients at random: see `tff_mf.guarantee`.
"""

import dataclasses
import fractions
import functools
import math
import sys
import typing

import numpy as np

from tff_mf.accounting.entries import bands_and_norm
from tff_mf.accounting.guarantee import Guarantee, Level
from tff_mf.accounting.question import Question, SecretSampling
from tff_mf.accounting.secret import SecretRun, least
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import composed_losses
from tff_mf.numerics.composed_losses import Losses, Nodes
from tff_mf.problem.draws import Cohorts, Draws
from tff_mf.problem.participation import FixedEpoch, MinSep, Participation

if typing.TYPE_CHECKING:
    import dp_accounting

# A sum in place of an integral is exact to e to the power of minus this, ten times: for itself, and for its ends.
_DIGITS = 42.0
_MOST_NODES = 2**18

_THEOREM = "Poisson sampling"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(SecretSampling):
    """Groups of clients take turns, and each client of a round's group joins it by a coin toss of its own.

    ε mostly exceeds the smallest by 0.01 %; rounding errors are included.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm. dp-accounting
        calls the relation add-or-remove-one; the two agree as long as nobody learns who took part, or how many did.
        Participation: in round i each client of group i mod b takes part with probability
        q = clients_per_round / ⌊population / b⌋, independently of everything else, and no other client does. Groups are
        fixed beforehand and hold ⌊population / b⌋ clients each. Cohorts of a fixed size are not covered.
        Sensitivity: C has at most b bands. Its largest column norm, rounded up, in each of ⌈n/b⌉ queries.
        Released: all `rounds` noised sums, possibly divided by a constant, but not by the size of a cohort.
        Arithmetic: with a grid, the norm of a column changes by what the rounding of its entries changes, the ideal
        release is amplified, and the computed one is close to it for every draw of the cohorts, by the chain of
        `grid_charge.epsilon_of_chain`. A cohort beyond `grid.max_clients`, which ends the run, is part of δ.

    Attributes:
        groups: Number of groups b.
        population: Number of clients N, at least b.
        clients_per_round: Expected size of a cohort, above 0 and at most ⌊N / b⌋.

    Source: Choquette-Choo et al. (2023), theorem 4 and corollary E.1; `numerics.composed_losses` for the arithmetic,
    with its proof; docs/proofs.md for the grid.

    Example:
        >>> from tff_mf import BandedToeplitz, epsilon
        >>> sampling = CyclicPoisson(groups=2, population=1000, clients_per_round=10)
        >>> round(epsilon(BandedToeplitz(column=[1.0, 0.5]), 100, sampling, noise_multiplier=2.0, delta=1e-6), 2)
        0.41
    """

    groups: int
    population: int
    clients_per_round: float

    def __post_init__(self) -> None:
        super().__post_init__()
        group = self.population // self.groups
        if self.clients_per_round > group:
            raise InputValueError(
                f"clients_per_round={self.clients_per_round} exceeds the {group} clients in each of the "
                f"groups={self.groups} of population={self.population}: take fewer groups, or smaller cohorts."
            )
        if group >= 2**53 or self.probability < sys.float_info.min:
            raise InputValueError(
                f"clients_per_round={self.clients_per_round} is too small a part of the population for the arithmetic "
                "of ε: take larger cohorts, or the number of clients that can really take part."
            )

    @property
    def probability(self) -> float:
        """q, with which a client of a round's group joins it."""
        return self.clients_per_round / (self.population // self.groups)

    def schema(self, rounds: int) -> Participation:
        """Returns that a client comes at one place of epochs of b rounds."""
        return FixedEpoch(min_sep=self.groups, max_participations=-(-rounds // self.groups))

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        """Returns cohorts of groups that are drawn first; ⌊N / b⌋·b clients are in one of them."""
        if clients != self.population:
            raise InputValueError(f"clients={clients} must be population={self.population}, whose ε is stated.")
        groups = self.members(draws)
        return [self.joined(groups[t % self.groups], draws) for t in range(rounds)]

    def members(self, draws: Draws) -> np.ndarray:
        """Returns the clients of each group, `[b, ⌊N / b⌋]`."""
        size = self.population // self.groups
        return draws.order(self.population)[: self.groups * size].reshape(size, self.groups).T

    def joined(self, group: np.ndarray, draws: Draws) -> np.ndarray:
        """Returns the clients of a group that join a cohort, in exact arithmetic."""
        return group[draws.joining(len(group), fractions.Fraction(self.clients_per_round) / len(group))]

    def run(self, question: Question) -> SecretRun:
        """Returns a run of a mechanism with at most b bands."""
        mechanism, rounds = question.mechanism, question.rounds
        bands, norm = bands_and_norm(mechanism, rounds)
        if bands > self.groups:
            raise InputValueError(
                f"mechanism has {bands} bands, and {self.groups} groups of clients amplify at most {self.groups} of "
                f"them: take CyclicPoisson(groups={bands}, …), or fewer bands."
            )
        # A client has one participation in each query.
        return _PoissonRun(
            queries=-(-rounds // self.groups),
            probability=self.probability,
            norm=norm,
            charge_of=question.charge_of(1, needs_bands=True),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(CyclicPoisson):
    """Every client joins every cohort by a coin toss of its own, as in DP-SGD: `CyclicPoisson` with one group.

    Formal guarantee: as for `CyclicPoisson`, for independent noise: a C of one band.

    Example:
        >>> from tff_mf import Grid, Identity, epsilon
        >>> run = (Identity(), 100, Poisson(population=1000, clients_per_round=10))
        >>> round(epsilon(*run, noise_multiplier=1.0, delta=1e-6), 2)
        0.95
        >>> on_grid = {"grid": Grid(bits=16, max_clients=1000), "dimension": 4_050_748}
        >>> round(epsilon(*run, noise_multiplier=1.0, delta=1e-6, **on_grid), 4)
        0.9558
    """

    groups: int = dataclasses.field(default=1, init=False, repr=False)

    def schema(self, rounds: int) -> Participation:
        """Returns that a client may come in every round."""
        return MinSep(min_sep=1, max_participations=rounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PoissonRun(SecretRun):
    """A sequence of queries, each with the sampled client or without it."""

    queries: int
    probability: float
    norm: float

    least_delta = 1e-12

    def ideal(self, sigma: float, delta: float, *, change: float) -> Level:
        if change and self.probability == 1:
            # The unamplified ε is smaller than what the chain costs.
            return least("remove", delta, [(math.inf, _THEOREM)])
        mu = Guarantee.of_gaussian(self.norm + change, sigma).mu
        remove, add = poisson_epsilons(self.queries, self.probability, mu, delta)
        return least("remove" if remove >= add else "add", delta, [(max(remove, add), _THEOREM)])

    def dp_event(self, sigma: float) -> "dp_accounting.SelfComposedDpEvent | None":
        if self.charge_of is not None:
            # Of what a grid costs, dp-accounting has no event that is sampled.
            return None
        # Imported here: it takes a second, and no other function needs it.
        import dp_accounting

        one_release = Guarantee.of_gaussian(self.norm, sigma).dp_event()
        # pyrefly: ignore[unexpected-keyword]: it cannot see the fields of classes made with attr.s.
        sampled = dp_accounting.PoissonSampledDpEvent(sampling_probability=self.probability, event=one_release)
        # pyrefly: ignore[unexpected-keyword]
        return dp_accounting.SelfComposedDpEvent(event=sampled, count=self.queries)


@functools.lru_cache(maxsize=256)
def poisson_epsilons(queries: int, probability: float, mu: float, delta: float) -> tuple[float, float]:
    """Returns ε for the run with the client against the run without it, and for the opposite."""
    plain = Guarantee(mu=mu * math.sqrt(queries) * (1 + 2.0**-50)).epsilon(delta)
    if probability == 1 or plain in (0.0, math.inf):
        return plain, plain
    remove, add = query_losses(probability, mu)
    to_remove = composed_losses.epsilon(remove, queries, delta, most=plain)
    return to_remove, composed_losses.epsilon(add, queries, delta, most=plain, least=to_remove)


def query_losses(probability: float, mu: float) -> tuple[Losses, Losses]:
    """Returns the loss of a query with a client who joins with q against the one without it, and of the opposite."""
    return functools.partial(_nodes, probability, mu, True), functools.partial(_nodes, probability, mu, False)


def _nodes(probability: float, mu: float, takes_part: bool, s: float, omega: float) -> Nodes | None:
    """Returns φ(s + iω) of one query whose client takes part with probability q, or not at all, by quadrature.

    Let Z(x) = 1 − q + q·e^(μx − μ²/2). Without the client, x ~ N(0, 1) and the loss is −log Z(x); with it, x has this
    density times Z, and the loss is log Z(x). So φ(s + iω) = ∫ f with f(x) = e^(−x²/2)·Z(x)^(p ± iω)/√(2π), where p is
    −s or 1 + s. The trapezoidal rule with steps h is off by at most 2M/(e^(2πc/h) − 1), if M bounds ∫|f(x + iy)|dx for
    |y| ≤ c (Trefethen and Weideman (2014), theorem 5.1). Let c ≤ π/(2μ). The angle of Z(x + iy) is at most μc, and

        |Z(x + iy)| ≤ Z(x),    |Z(x + iy)| ≥ Z(x)·cos(μc/2) ≥ Z(x)·e^(−0.141(μc)²),    |Z(x + iy)| ≥ 1 − q.

    As φ(s) ≥ 1 by Jensen's inequality, M/φ(s) is at most e^(c²/2 + ωμc), times the smaller of e^(0.141s(μc)²) and
    (1 − q)^(−s) for p = −s. Nodes are left out where f is small, and so is the density. To the right, f ends like a
    normal density and e^(s(s + 1)μ²/2) times one around (1 + s)μ, as Z^(1 + s) ≤ 1 + e^((1 + s)(μx − μ²/2)), where
    φ(s) ≥ q^(1 + s)·e^(s(s + 1)μ²/2). Z^(−s) is at most 1 to the right of μ/2, and (1 − q)^(−s) to the left. In
    between, Z^p is monotone, which bounds f in intervals of ¼.
    """
    least = -math.log1p(-probability)
    step = _step(mu, omega, 0.5, _DIGITS)
    if takes_part:
        cost = min((s + 1) * s * mu * mu / 2, -(1 + s) * math.log(probability))
        low, high, power = -math.sqrt(2 * _DIGITS), (1 + s) * mu + math.sqrt(2 * (_DIGITS + cost)), 1 + s
    else:
        low, high, power = -math.sqrt(2 * (_DIGITS + s * least)), mu + math.sqrt(2 * _DIGITS), -s
        step = max(_step(mu, omega, 0.5 + 0.141 * s * mu * mu, _DIGITS), _step(mu, omega, 0.5, _DIGITS + s * least))
    if not high - low < _MOST_NODES / 4:
        return None
    edges = low + np.arange(math.ceil((high - low) * 4) + 1) / 4
    # Of f, and of the density itself, whose weights must add up to 1.
    ratios = _log_ratio(probability, mu, edges)
    powers = np.maximum(power * ratios, ratios if takes_part else 0.0)
    heights = np.maximum(powers[1:], powers[:-1]) - np.square(np.minimum(np.abs(edges[1:]), np.abs(edges[:-1]))) / 2
    large = np.flatnonzero(heights > -_DIGITS - math.log(len(edges)))
    low, high = float(edges[large[0]]), float(edges[large[-1] + 1])
    if not (high - low) / step < _MOST_NODES:
        return None
    x = low + step * np.arange(math.ceil((high - low) / step) + 1)
    losses, y = _log_ratio(probability, mu, x), mu * (x - mu / 2)
    # Of log Z by y: q·e^y/Z.
    derivative = np.exp(np.minimum(math.log(probability) + y - losses, 0.0))
    logs = math.log(step / math.sqrt(2 * math.pi)) - np.square(x) / 2
    return Nodes(
        losses=losses if takes_part else -losses,
        logs=logs + losses if takes_part else logs,
        rounding=np.abs(losses) + derivative * (1 + np.abs(y) + mu * np.abs(x) + mu * mu),
        error=10 * math.exp(-_DIGITS),
    )


def _step(mu: float, omega: float, curvature: float, digits: float) -> float:
    """Returns the largest h with 2πc/h ≥ `digits` + ωμc + `curvature`·c² for some c ≤ π/(2μ)."""
    width = min(math.sqrt(digits / curvature), math.pi / (2 * mu))
    return 2 * math.pi / (digits / width + curvature * width + omega * mu)


def _log_ratio(probability: float, mu: float, x: np.ndarray) -> np.ndarray:
    """Returns log Z(x), without cancellation where Z is near 1, nor where it is near 0."""
    y = mu * (x - mu / 2)
    change = probability * np.expm1(np.minimum(y, 1.0))
    far = np.logaddexp(math.log1p(-probability), math.log(probability) + y)
    return np.where((y < 1) & (change > -0.5), np.log1p(np.maximum(change, -0.5)), far)
