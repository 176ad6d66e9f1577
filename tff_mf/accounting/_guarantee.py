"""The guarantee of a whole run, in every privacy measure, for either adjacency, and composed with others; and σ for it.

Noise C⁻¹z added to a stream x is C⁻¹(Cx + z): everything a run releases is a function of Cx + z, one Gaussian release
of a vector with sensitivity sens_Π(C). Its ε is exactly that of the Gaussian mechanism with the effective noise
multiplier σ / sens_Π(C); no composition takes place. One number μ = sens_Π(C) / σ describes it, and the run is μ-GDP
(Gaussian differential privacy), and so is any composition of such runs. Where cohorts are drawn at random and kept
secret, ε is smaller: the file of each sampling has its theorem.

Every function here accounts for `mechanism.cast_to_float32()`, whose float32 parameters the noise runs with.
"""

import dataclasses
import math
import sys
import typing
from collections.abc import Callable

from tff_mf import gaussian, grids, validation
from tff_mf.accounting._result import ADJACENCIES, SLACK, Guarantee
from tff_mf.accounting._sampling import Question, Secret, SecretRun, SecretSampling, calibrated
from tff_mf.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.mechanisms import Identity, Mechanism
from tff_mf.participation import Participation, Sampling
from tff_mf.restarts import restart_sensitivity
from tff_mf.sensitivities import SensitivityResult, as_released

if typing.TYPE_CHECKING:
    import dp_accounting


def guarantee(
    mechanism: Mechanism,
    rounds: int,
    sampling: Sampling,
    *,
    noise_multiplier: float,
    restart_every: int | None = None,
    adjacency: str = "zero-out",
    grid: Grid | None = None,
    dimension: int | None = None,
    samples: int = 200_000,
) -> Guarantee:
    """Returns the guarantee of a whole run, with or without restarts, by the least of the bounds that apply.

    It is the ε of all rounds together; composing an ε of each round would be wrong. Composition assumes fresh noise in
    every round, but here the noise of a round returns, with the opposite sign, in later ones. How much a pattern of
    rounds reveals is measured by the sensitivity of C, and by no quantity of a single round.

    Formal guarantee:
        Adjacency: `adjacency`; zero-out alone is amplified by secret cohorts.
        Participation: cohorts are drawn by `sampling`. For a participation schema, the client's rounds form a pattern
        of it within all `rounds`, across restarts. For any other sampling its own condition holds, which its class
        states; `sampling.schema(rounds)` holds for whoever knows the cohorts, and what follows from it is never
        exceeded.
        Sensitivity: that of `mechanism.cast_to_float32()`, or a proven upper bound, rounded up; see
        `restart_sensitivity`.
        Released: all `rounds` noised sums. Composing the result once a round, or once a restart, would be wrong.
        Arithmetic: without `grid`, noise is taken to be Gaussian with real values, which floating-point numbers are
        not. With it, the release is the integers that are computed; what they cost is included: `grids.charge`.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        sampling: How cohorts are drawn: `MinSep`, `FixedEpoch` or `SingleParticipation`, of which nothing is secret, or
            `Poisson`, `CyclicPoisson`, `BallsInBins`, `BMinSep`, `RandomAllocation` or `ShuffledEpochs`.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.
        adjacency: "zero-out" or "replace-one".
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.
        samples: Number of samples in each direction, where ε is certified by sampling.

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
    question = _question(mechanism, rounds, sampling, restart_every, adjacency, grid, dimension, samples)
    run = sampling.run(question) if question is not None and isinstance(sampling, SecretSampling) else None
    return _answered(
        _Asked(mechanism, rounds, sampling, restart_every, adjacency, grid, dimension), sigma, question, run
    )


class _Asked(typing.NamedTuple):
    """The arguments of `guarantee` but σ."""

    mechanism: Mechanism
    rounds: int
    sampling: Sampling
    restart_every: int | None
    adjacency: str
    grid: Grid | None
    dimension: int | None


def _question(
    mechanism: Mechanism,
    rounds: int,
    sampling: Sampling,
    restart_every: int | None,
    adjacency: str,
    grid: Grid | None,
    dimension: int | None,
    samples: int,
) -> Question | None:
    """Returns what is asked of a sampling with secret cohorts, `None` of another, after checks of the arguments."""
    _check_sampling(sampling)
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    validation.one_of("adjacency", adjacency, ADJACENCIES)
    if (grids.check(grid) is None) != (dimension is None):
        raise InputValueError(
            f"grid={grid!r} and dimension={dimension!r} must be given together: the charge of a grid depends on both."
        )
    if not isinstance(sampling, SecretSampling):
        return None
    if restart_every is not None or adjacency != "zero-out":
        raise InputValueError(
            f"sampling={sampling!r} amplifies zero-out without restarts only, not restart_every={restart_every!r} with "
            f"adjacency={adjacency!r}: account for the schema that also holds, sampling.schema(rounds)."
        )
    samples = validation.whole("samples", samples, at_least=1000)
    return Question(mechanism=mechanism, rounds=rounds, grid=grid, dimension=dimension, samples=samples)


def _check_sampling(sampling: Sampling) -> None:
    validation.instance("sampling", sampling, Sampling, "pass MinSep, FixedEpoch, Poisson or another sampling")


def _answered(asked: _Asked, sigma: float, question: Question | None, run: SecretRun | None) -> Guarantee:
    mechanism, rounds, sampling, restart_every, adjacency, grid, dimension = asked
    schema = sampling.schema(rounds)
    sens = _sensitivity(mechanism, rounds, schema, restart_every=restart_every)
    if grid is None or dimension is None or sigma == 0:
        found = dataclasses.replace(Guarantee.of_gaussian(sens.value, sigma), exact=sens.exact).under(adjacency)
    else:
        room = getattr(sampling, "clients_per_round", None)
        secret = None if question is None else question.charge_of(schema.max_participations, room)
        charge = (secret or _charge_of(asked, schema))(sigma)
        found = guarantee_on_grid(sens.value, sigma, charge, adjacency=adjacency)
    if question is None or run is None or sigma == 0:
        return found
    assert isinstance(sampling, SecretSampling)
    return dataclasses.replace(
        found, amplified=Secret(sampling=sampling, question=question, sigma=sigma, mu=found.mu, prepared=run)
    )


def _charge_of(asked: _Asked, schema: Participation) -> Callable[[float], grids.GridCharge]:
    """Returns what the integers of a run cost whose cohorts have room, as a function of σ."""
    assert asked.grid is not None
    assert asked.dimension is not None
    grid, dimension = asked.grid, asked.dimension
    return lambda sigma: grids.charge(
        asked.mechanism,
        asked.rounds,
        schema.max_participations,
        noise_multiplier=sigma,
        grid=grid,
        dimension=dimension,
        restart_every=asked.restart_every,
    )


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


def effective_noise_multiplier(
    mechanism: Mechanism, rounds: int, sampling: Sampling, *, noise_multiplier: float
) -> float:
    """Returns σ / sens_Π(C): the noise multiplier of the equivalent Gaussian mechanism.

    It is the plain quotient, for display; every privacy measure here is computed from a sensitivity that is rounded up.

    Formal guarantee: as for `epsilon`.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        sampling: How cohorts are drawn; of the schema that also holds if they are secret.
        noise_multiplier: σ, as for `epsilon`.

    Example:
        >>> from tff_mf import Identity, MinSep
        >>> effective_noise_multiplier(Identity(), 9, MinSep(min_sep=2, max_participations=4), noise_multiplier=3)
        1.5

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    sigma = validation.nonnegative("noise_multiplier", noise_multiplier)
    _check_sampling(sampling)
    return sigma / released_sensitivity(mechanism, rounds, sampling.schema(rounds))


def zcdp_rho(mechanism: Mechanism, rounds: int, sampling: Sampling, *, noise_multiplier: float) -> float:
    """Returns ρ for which the whole run is ρ-zCDP, whoever knows the cohorts: `zcdp_rho` of `guarantee`.

    Source: Bun and Steinke (2016), proposition 1.6.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> p = MinSep(min_sep=447, max_participations=5)
        >>> round(zcdp_rho(BLT.production("b400"), 2350, p, noise_multiplier=7.379), 3)
        0.195

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    return guarantee(mechanism, rounds, sampling, noise_multiplier=noise_multiplier).zcdp_rho


def epsilon(
    mechanism: Mechanism,
    rounds: int,
    sampling: Sampling,
    *,
    noise_multiplier: float,
    delta: float,
    restart_every: int | None = None,
    adjacency: str = "zero-out",
    grid: Grid | None = None,
    dimension: int | None = None,
    samples: int = 200_000,
) -> float:
    """Returns ε for which the whole run is (ε, δ)-DP: `epsilon(delta)` of `guarantee` for the same arguments.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> p = MinSep(min_sep=447, max_participations=5)
        >>> round(epsilon(BLT.production("b400"), 2350, p, noise_multiplier=7.379, delta=1e-10), 2)
        3.93

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    # Checked before the sensitivity, which may take seconds.
    validation.open_unit("delta", delta)
    found = guarantee(
        mechanism,
        rounds,
        sampling,
        noise_multiplier=noise_multiplier,
        restart_every=restart_every,
        adjacency=adjacency,
        grid=grid,
        dimension=dimension,
        samples=samples,
    )
    return found.epsilon(delta)


def dp_event(
    mechanism: Mechanism, rounds: int, sampling: Sampling, *, noise_multiplier: float
) -> "dp_accounting.DpEvent":
    """Returns the whole run as one event of dp-accounting: `dp_event` of `guarantee`.

    Compose it with events of other runs, but never with itself once per round.

    Example:
        >>> from tff_mf import Identity, SingleParticipation
        >>> round(dp_event(Identity(), 10, SingleParticipation(), noise_multiplier=2.0).noise_multiplier, 9)
        2.0
        >>> from tff_mf import Poisson
        >>> event = dp_event(Identity(), 8, Poisson(population=100, clients_per_round=5), noise_multiplier=1)
        >>> event.count, event.event.sampling_probability
        (8, 0.05)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    return guarantee(mechanism, rounds, sampling, noise_multiplier=noise_multiplier).dp_event()


def calibrate_noise_multiplier(
    mechanism: Mechanism,
    rounds: int,
    sampling: Sampling,
    *,
    epsilon: float,
    delta: float,
    restart_every: int | None = None,
    adjacency: str = "zero-out",
    grid: Grid | None = None,
    dimension: int | None = None,
    samples: int = 200_000,
) -> float:
    """Returns the smallest σ for which the whole run is (ε, δ)-DP, rounded up to 32 bits.

    With secret cohorts it is within 0.1 % of the smallest, or 0.5 % where ε is certified by sampling.

    Formal guarantee: as for `tff_mf.guarantee`, whose `epsilon(delta)` for the result is at most the requested
    `epsilon`, on this machine and on every other one. Where ε is certified by sampling, all certificates of the search
    together fail with at most δ/1000, which δ includes. This process answers with the one that was found; another one
    draws its own, whose ε may differ in the third digit.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        sampling: How cohorts are drawn, as for `guarantee`.
        epsilon: ε, greater than 0.
        delta: δ, strictly between 0 and 1.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.
        adjacency: "zero-out" or "replace-one".
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.
        samples: Number of samples of each certificate in each direction, where ε is certified by sampling.

    Example:
        >>> from tff_mf import Identity, SingleParticipation
        >>> round(calibrate_noise_multiplier(Identity(), 100, SingleParticipation(), epsilon=1.0, delta=1e-6), 4)
        4.2247

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or no finite noise is enough.
    """
    target = validation.positive("epsilon", epsilon)
    delta = validation.open_unit("delta", delta)
    question = _question(mechanism, rounds, sampling, restart_every, adjacency, grid, dimension, samples)
    asked = _Asked(mechanism, rounds, sampling, restart_every, adjacency, grid, dimension)
    if question is None:
        return _calibrated(asked, target, delta, question)
    assert isinstance(sampling, SecretSampling)
    return calibrated(
        sampling,
        question,
        target,
        delta,
        known=lambda on_grid: _calibrated(
            asked if on_grid else asked._replace(grid=None, dimension=None), target, delta, question
        ),
    )


def _calibrated(asked: _Asked, target: float, delta: float, question: Question | None) -> float:
    """Returns the smallest σ for which the run is (target, δ)-DP for whoever knows the cohorts."""
    mechanism, rounds, sampling, restart_every, adjacency, grid, dimension = asked
    sens = released_sensitivity(mechanism, rounds, sampling.schema(rounds), restart_every=restart_every)
    # Twice a float is exact, so that this doubles μ as `Guarantee.replace_one` does.
    sens *= 2 if adjacency == "replace-one" else 1
    # σ is sens / μ, as μ is sens / σ.
    sigma = max(gaussian.rounded_sigma(gaussian.mu_of(sens, gaussian.mu_from(target, delta))), sys.float_info.min)
    step = 2.0**-40
    while sigma < math.inf and Guarantee.of_gaussian(sens, gaussian.on_every_machine(sigma)).epsilon(delta) > target:
        sigma, step = gaussian.rounded_sigma(sigma * (1 + step)), 2 * step
    if sigma == math.inf:
        raise InputValueError(f"epsilon={target!r} at delta={delta!r} needs more noise than float64 can represent.")
    if grid is None and dimension is None:
        return sigma

    def of(noise_multiplier: float) -> Guarantee:
        return _answered(asked, gaussian.on_every_machine(noise_multiplier), question, None)

    return _raised(sigma, of, target=target, delta=delta)


def _raised(sigma: float, of: Callable[[float], Guarantee], *, target: float, delta: float) -> float:
    """Returns a noise multiplier with which the noise of a grid is (target, δ)-DP, from one for real noise.

    What a grid costs hardly depends on σ, so that μ·σ hardly changes, and few steps are enough. A target above what the
    tail allows is replaced by that: the release is then (ε, δ)-DP with a smaller ε.
    """
    try:
        found = of(sigma)
    except InputValueError as error:
        raise InputValueError(f"epsilon={target!r} at delta={delta!r} has no noise on this grid: {error}") from error
    largest = gaussian.largest_epsilon_with_tail(delta, found.tail)
    if largest <= 0:
        raise InputValueError(
            f"delta={delta!r} is too small for noise on a grid, whose tail of {found.tail!r} is part of it."
        )
    allowed = gaussian.mu_from(target, delta) if target <= largest else gaussian.mu_from(largest, delta / 2)
    target = min(target, largest)
    for exponent in range(-40, 0):
        if found.epsilon(delta) <= target:
            return sigma
        sigma = gaussian.rounded_sigma(sigma * max(found.mu / allowed, 1.0) * (1 + 2.0**exponent))
        found = of(sigma)
    raise InputValueError(
        f"epsilon={target!r} at delta={delta!r} is not reached with noise on a grid: take fewer bits, or a larger ε."
    )


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
    return _sensitivity(mechanism, rounds, participation, restart_every=restart_every).value


def _sensitivity(
    mechanism: Mechanism, rounds: int, participation: Participation, *, restart_every: int | None
) -> SensitivityResult:
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    every = rounds if restart_every is None else restart_every
    return restart_sensitivity(as_released(mechanism), rounds, participation, restart_every=every)


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
        Tails add up. Secret cohorts add nothing: what is composed is the guarantee for whoever knows them.

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
