"""The privacy guarantee of a whole run, in every privacy measure, for either adjacency, and composed with others.

A run of a mechanism is one Gaussian release (see `tff_mf.accounting`), and so is any composition of such runs: one
number μ = sensitivity / σ describes it, and the run is μ-GDP (Gaussian differential privacy). Every ε, ρ and event of
dp-accounting in this package is computed here from μ.
"""

import dataclasses
import math

from tff_mf import grids, validation
from tff_mf._guarantee import ADJACENCIES as ADJACENCIES
from tff_mf._guarantee import SLACK
from tff_mf._guarantee import Guarantee as Guarantee
from tff_mf.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.mechanisms import Identity, Mechanism
from tff_mf.participation import Participation
from tff_mf.restarts import restart_sensitivity
from tff_mf.sensitivities import as_released


def guarantee(
    mechanism: Mechanism,
    rounds: int,
    participation: Participation,
    *,
    noise_multiplier: float,
    restart_every: int | None = None,
    adjacency: str = "zero-out",
    grid: Grid | None = None,
    dimension: int | None = None,
) -> Guarantee:
    """Returns the guarantee of a whole run, with or without restarts.

    Formal guarantee:
        Adjacency: `adjacency`.
        Participation: the client's rounds form a pattern of `participation` within all `rounds`, across restarts.
        Sensitivity: that of `mechanism.cast_to_float32()`, or a proven upper bound, rounded up; see
        `restart_sensitivity`.
        Released: all `rounds` noised sums. Composing the result once a round, or once a restart, would be wrong.
        Arithmetic: without `grid`, noise is taken to be Gaussian with real values, which floating-point numbers are
        not. With it, the release is the integers that are computed; what they cost is included: `grids.charge`.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.
        adjacency: "zero-out" or "replace-one".
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.

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
    sigma = validation.nonnegative("noise_multiplier", noise_multiplier)
    validation.one_of("adjacency", adjacency, ADJACENCIES)
    if (grids.check(grid) is None) != (dimension is None):
        raise InputValueError(
            f"grid={grid!r} and dimension={dimension!r} must be given together: the charge of a grid depends on both."
        )
    sens = released_sensitivity(mechanism, rounds, participation, restart_every=restart_every)
    if grid is None or dimension is None or sigma == 0:
        return Guarantee.of_gaussian(sens, sigma).under(adjacency)
    charge = grids.charge(
        mechanism,
        rounds,
        participation.max_participations,
        noise_multiplier=sigma,
        grid=grid,
        dimension=dimension,
        restart_every=restart_every,
    )
    return guarantee_on_grid(sens, sigma, charge, adjacency=adjacency)


def guarantee_on_grid(
    sensitivity: float, noise_multiplier: float, charge: grids.GridCharge, *, adjacency: str = "zero-out"
) -> Guarantee:
    """Returns the guarantee of a release of integers from that of the Gaussian release which it is a function of.

    Formal guarantee: for two neighboring data sets the ideal releases are μ-GDP, and each of them is μ_c-GDP close to
    the computed one, which is therefore (μ + 2μ_c)-GDP, up to the tail.

    Args:
        sensitivity: That of the mechanism cast to float32, for zero-out.
        noise_multiplier: σ, above 0.
        charge: What the integers cost: `grids.charge` of the same run.
        adjacency: "zero-out" or "replace-one".

    Source: Dong, Roth and Su (2022), lemma A.5.

    Example:
        >>> from tff_mf import Grid, Identity
        >>> cost = grids.charge(Identity(), 9, 4, noise_multiplier=2, grid=Grid(bits=16, max_clients=10), dimension=50)
        >>> found, ideal = guarantee_on_grid(2.0, 2.0, cost), Guarantee.of_gaussian(2.0, 2.0)
        >>> ideal.mu < found.mu < ideal.mu + 1e-6
        True

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    ideal = Guarantee.of_gaussian(sensitivity + charge.sensitivity, noise_multiplier).under(adjacency)
    # Once for each of the two data sets.
    return dataclasses.replace(ideal, mu=(ideal.mu + 2 * charge.mu) * (1 + SLACK), tail=charge.tail)


def released_sensitivity(
    mechanism: Mechanism, rounds: int, participation: Participation, *, restart_every: int | None = None
) -> float:
    """Returns the sensitivity that a run is accounted with: that of `mechanism.cast_to_float32()`, or an upper bound.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.

    Example:
        >>> from tff_mf import Identity, MinSep
        >>> released_sensitivity(Identity(), 9, MinSep(min_sep=2, max_participations=4))
        2.0

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    every = rounds if restart_every is None else restart_every
    return restart_sensitivity(as_released(mechanism), rounds, participation, restart_every=every).value


def adaptive_clipping_guarantee(
    rounds: int,
    participation: Participation,
    *,
    count_stddev: float,
    adjacency: str = "zero-out",
    grid: Grid | None = None,
) -> Guarantee:
    """Returns the guarantee of the noised counts that adaptive clipping releases, one per round.

    In each round a client adds +½ if its update is below the clip norm, and −½ otherwise, to a sum with independent
    noise of standard deviation `count_stddev`. An update that is set to zero is below every clip norm, so that a client
    whose update was above it changes its term from −½ to +½. That is the identity mechanism with sensitivity 1 per
    participation: μ = √k / count_stddev. The sums of updates are a separate release: compose their guarantee with this
    one. A new clip norm changes the noise, and correlated noise of different clip norms does not cancel: restart it.

    Formal guarantee:
        Adjacency: `adjacency`. Replacing an update changes a count no more than setting it to zero.
        Participation: at most `participation.max_participations` rounds of a client.
        Sensitivity: √k for either adjacency, exact.
        Released: all counts, and the clip norms computed from them.
        Arithmetic: that of `guarantee`: on a grid, a count is one coordinate, with integer noise of its own.

    Args:
        rounds: Number of rounds n.
        participation: The participation schema Π.
        count_stddev: Standard deviation of the noise of a count; at least 0.
        adjacency: "zero-out" or "replace-one".
        grid: The grid, in units of 2^-bits of which counts are integers, or `None` for floating point.

    Source: Andrew et al. (2021), section 2, for the counts. Their theorem 1 has half of this sensitivity, because it is
    about a client that is absent, which removes ±½, rather than one whose update is zero.

    Example:
        >>> from tff_mf import MinSep
        >>> counts = adaptive_clipping_guarantee(100, MinSep(min_sep=20, max_participations=4), count_stddev=10)
        >>> round(counts.mu, 6)
        0.2

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    validation.instance("participation", participation, Participation, "pass MinSep, FixedEpoch or SingleParticipation")
    participation.check(rounds)
    validation.one_of("adjacency", adjacency, ADJACENCIES)
    stddev = validation.nonnegative("count_stddev", count_stddev)
    if grids.check(grid) is None:
        zero_out = Guarantee.of_gaussian(math.sqrt(participation.max_participations), stddev)
    else:
        zero_out = guarantee(Identity(), rounds, participation, noise_multiplier=stddev, grid=grid, dimension=1)
    return dataclasses.replace(zero_out, adjacency=adjacency)


def compose_guarantees(*guarantees: Guarantee) -> Guarantee:
    """Returns the guarantee of several releases together, whose μ² is the sum of theirs.

    For releases with independent noise, such as several runs, restarts with different noise, and the counts of adaptive
    clipping. Not for the rounds of one run, which share noise.

    Formal guarantee:
        Adjacency: that of the guarantees, which must be the same.
        Released: all of the releases; each may be chosen adaptively. One client is assumed to be the worst case of
        every release, which is exact if all have the same worst pattern of rounds, and an upper bound otherwise.
        Tails add up.

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
        validation.instance("guarantees", each, Guarantee, "make one with tff_mf.guarantee")
    adjacencies = sorted({each.adjacency for each in guarantees})
    if len(adjacencies) != 1:
        raise InputValueError(
            f"guarantees have the adjacencies {adjacencies}: pass at least one guarantee, and all with the same "
            "adjacency; replace_one() turns zero-out into replace-one."
        )
    mus = [each.mu for each in guarantees]
    total = mus[0] if len(mus) == 1 else math.hypot(*mus) * (1 + SLACK)
    tail = math.fsum(each.tail for each in guarantees)
    return Guarantee(mu=total, adjacency=adjacencies[0], tail=min(1.0, tail * (1 + SLACK)))
