"""`Question`: what is asked of a run, and its guarantee, amplified where cohorts are secret."""

import abc
import dataclasses
import functools
import math
import sys
import typing
from collections.abc import Callable

from tff_mf.accounting import grid_charge
from tff_mf.accounting.guarantee import ADJACENCIES, SLACK, Amplification, Guarantee, Level, compose_guarantees
from tff_mf.accounting.search import Search
from tff_mf.accounting.secret import FAILURE, SecretRun
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Identity, Mechanism, bounds_of
from tff_mf.mechanisms.grid import GridBounds
from tff_mf.numerics import gaussian
from tff_mf.problem import grids
from tff_mf.problem.grids import Grid
from tff_mf.problem.participation import Participation, Sampling
from tff_mf.sensitivities.general import SensitivityResult
from tff_mf.sensitivities.restarts import restart_sensitivity


class More(typing.TypedDict, total=False):
    """The fields of a `Question` that may be left out."""

    restart_every: int | None
    adaptive_count_stddev: float | None
    adjacency: str
    grid: Grid | None
    dimension: int | None
    search: Search | None
    samples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a run, before σ is known: who takes part in which rounds of which noise, and in what arithmetic.

    Attributes:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        sampling: How cohorts are drawn: `MinSep`, `FixedEpoch` or `SingleParticipation`, of which nothing is secret, or
            `Poisson`, `CyclicPoisson`, `BallsInBins` or `BMinSep`.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.
        adaptive_count_stddev: Standard deviation of the noised counts of adaptive clipping; `None` if there are none.
        adjacency: "zero-out" or "replace-one".
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.
        search: The search that the run is one of; the guarantee is then of the run that it selects.
        samples: Number of samples of each certificate, for `BallsInBins`.

    Example:
        >>> from tff_mf import Identity, SingleParticipation
        >>> question = Question(mechanism=Identity(), rounds=100, sampling=SingleParticipation())
        >>> question.guarantee(4.2247).epsilon(1e-6) <= 1
        True
    """

    mechanism: Mechanism
    rounds: int
    sampling: Sampling
    restart_every: int | None = None
    adaptive_count_stddev: float | None = None
    adjacency: str = "zero-out"
    grid: Grid | None = None
    dimension: int | None = None
    search: Search | None = None
    samples: int = 200_000

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        validation.instance("mechanism", self.mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT")
        validation.one_of("adjacency", self.adjacency, ADJACENCIES)
        grids.check_dimension(self.grid, self.dimension)
        if self.adaptive_count_stddev is not None:
            validation.nonnegative("adaptive_count_stddev", self.adaptive_count_stddev)
        if self.search is not None:
            validation.instance("search", self.search, Search, "pass tff_mf.Search(mean=...) or None")
        if not isinstance(self.sampling, SecretSampling):
            return
        without = (self.restart_every, self.adaptive_count_stddev, self.search)
        if any(field is not None for field in without) or self.adjacency != "zero-out":
            raise InputValueError(
                f"sampling={self.sampling!r} amplifies zero-out without restarts, counts and searches only, not "
                f"restart_every={self.restart_every!r}, adaptive_count_stddev={self.adaptive_count_stddev!r} and "
                f"search={self.search!r} with adjacency={self.adjacency!r}: account for the "
                "schema that also holds, sampling.schema(rounds)."
            )
        validation.whole("samples", self.samples, at_least=1000)

    @property
    def schema(self) -> Participation:
        """The schema that holds for whoever knows the cohorts."""
        return self.sampling.schema(self.rounds)

    @functools.cached_property
    def sensitivity(self) -> SensitivityResult:
        """The sensitivity of the mechanism as it is released, over all restarts, or an upper bound."""
        every = self.rounds if self.restart_every is None else self.restart_every
        return restart_sensitivity(self.mechanism.cast_to_float32(), self.rounds, self.schema, restart_every=every)

    @functools.cached_property
    def counts(self) -> Guarantee | None:
        """The guarantee of the counts of adaptive clipping; `None` if there are none."""
        if self.adaptive_count_stddev is None:
            return None
        return adaptive_clipping_guarantee(
            self.rounds,
            self.sampling,
            count_stddev=self.adaptive_count_stddev,
            adjacency=self.adjacency,
            grid=self.grid,
        )

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        """What is asked, by content.

        Mechanisms are not compared by ==: a class may define it by less than C depends on.
        """
        settings = (getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "mechanism")
        return type(self.mechanism), self.mechanism.content_digest(), *settings

    @functools.cached_property
    def bounds(self) -> GridBounds:
        """What bounds of the mechanism's integers have in common for every σ."""
        return bounds_of(self.mechanism)

    def charge_of(self, participations: int, *, needs_bands: bool) -> Callable[[float], grid_charge.GridCharge] | None:
        """Returns what the integers of a run cost, as a function of σ; `None` without a grid.

        Formal guarantee: as for `grid_charge.charge`; with secret cohorts the tail includes the probability that a
        cohort exceeds `grid.max_clients`, which ends the run, if clients join independently of one another.

        With `needs_bands`, for theorems that need C̃ to be 0 where C is, a mechanism from outside is refused: this is
        known of this package's mechanisms only.
        """
        grid, dimension = self.grid, self.dimension
        if grid is None:
            return None
        assert dimension is not None
        if needs_bands and self.mechanism.is_outside:
            raise InputValueError(
                f"mechanism of kind {self.mechanism.kind!r} is from outside of tff_mf, and on a grid its recursion may "
                "compute with entries beyond the bands of C: take tff_mf.BallsInBins, or grid=None."
            )
        excess = None
        if isinstance(self.sampling, SecretSampling):
            size = getattr(self.sampling, "clients_per_round", None)
            if size is None:
                raise InputValueError(
                    "clients_per_round=None is missing: on a grid, a cohort that exceeds max_clients ends the run. "
                    "Pass the expected size of a cohort."
                )
            size = validation.positive("clients_per_round", size)
            excess = grid_charge.overflow(self.rounds, max_clients=grid.max_clients, clients_per_round=size)

        def charge_at(sigma: float) -> grid_charge.GridCharge:
            charge = grid_charge.charge(
                self.bounds,
                self.rounds,
                participations,
                noise_multiplier=sigma,
                grid=grid,
                dimension=dimension,
                restart_every=self.restart_every,
            )
            if excess is None:
                return charge
            return dataclasses.replace(charge, tail=min(1.0, (charge.tail + excess) * (1 + grid_charge.EXP_SLACK)))

        return charge_at

    @functools.cached_property
    def charge(self) -> Callable[[float], grid_charge.GridCharge | None]:
        """What the integers of a grid cost at σ, computed once for each σ; `None` in floats and without noise."""
        charge_at = self.charge_of(self.schema.max_participations, needs_bands=False)
        return functools.cache(lambda sigma: charge_at(sigma) if charge_at and sigma else None)

    def unamplified(self, sigma: float, sensitivity: SensitivityResult | None = None) -> Guarantee:
        """Returns the guarantee of the sums, and of the counts if there are any, for whoever knows the cohorts.

        Formal guarantee: without a grid, the guarantee of the Gaussian release. A release of integers is a function of
        an ideal one: for two neighboring data sets the ideal releases are μ-GDP, and each of them is μ_c-GDP close to
        the computed one, which is therefore (μ + 2μ_c)-GDP, up to the tail.

        Args:
            sigma: σ, at least 0.
            sensitivity: The sensitivity for zero-out of the patterns that clients can have, or an upper bound, where
                more is known of them than the sampling's schema; the schema's if not given.

        Source: Dong, Roth and Su (2022), lemma A.5.
        """
        sens, charge = sensitivity or self.sensitivity, self.charge(sigma)
        if charge is None:
            sums = Guarantee.of_gaussian(sens.value, sigma).under(self.adjacency)
            sums = dataclasses.replace(sums, exact=sens.exact)
        else:
            ideal = Guarantee.of_gaussian(sens.value + charge.sensitivity, sigma).under(self.adjacency)
            # Once for each of the two data sets.
            sums = dataclasses.replace(ideal, mu=(ideal.mu + 2 * charge.mu) * (1 + SLACK), tail=charge.tail)
        return sums if self.counts is None else compose_guarantees(sums, self.counts)

    def guarantee(self, sigma: float, sensitivity: SensitivityResult | None = None) -> Guarantee:
        """Returns the guarantee, amplified where cohorts are secret; `sensitivity` as for `unamplified`."""
        sampling = self.sampling
        run = sampling.run(self) if isinstance(sampling, SecretSampling) else None
        unamplified = self.unamplified(sigma, sensitivity)
        if run is None or sigma == 0:
            return dataclasses.replace(unamplified, search=self.search)
        key = (*self.key, sigma)
        amplified = Amplification(
            key=key,
            mu=unamplified.mu,
            at_delta=functools.partial(_stored, functools.partial(run.level, sigma), (*key, "delta")),
            at_epsilon=functools.partial(_stored, functools.partial(run.level_at, sigma), (*key, "epsilon")),
            dp_event=functools.partial(run.dp_event, sigma),
        )
        return dataclasses.replace(unamplified, amplified=amplified)

    def noise_multiplier(self, *, epsilon: float, delta: float) -> float:
        """Returns the smallest σ for which the run is (ε, δ)-DP: see `calibrate_noise_multiplier`.

        From then on, this process states the certificate of that σ, and no other.
        """
        target, delta = validation.positive("epsilon", epsilon), validation.open_unit("delta", delta)
        if self.search is not None:
            return self._noise_multiplier_of_search(self.search, target, delta)
        if not isinstance(self.sampling, SecretSampling):
            return self._unamplified_noise_multiplier(target, delta)
        search_key = (*self.key, target, delta)
        if search_key in _SIGMAS:
            return _SIGMAS[search_key]
        on_real_numbers = dataclasses.replace(self, grid=None, dimension=None)
        unamplified = on_real_numbers._unamplified_noise_multiplier(target, delta)
        amplified = self.sampling.run(self).search(target, delta, unamplified=unamplified)
        if amplified is None:
            return self._unamplified_noise_multiplier(target, delta)
        sigma, level = amplified
        # Certificates of the other attempts could have failed as well.
        failure = FAILURE * delta if level.failure else 0.0
        _store((*self.key, sigma, "delta", delta), dataclasses.replace(level, failure=failure))
        _SIGMAS[search_key] = sigma
        return sigma

    def _noise_multiplier_of_search(self, search: Search, target: float, delta: float) -> float:
        """Returns the smallest σ for which the run that a search selects is (target, δ)-DP, or a little more."""
        of_run, mu = dataclasses.replace(self, search=None), search.mu(target, delta)
        # What the tail of a grid costs a search is not in μ, and takes a step more.
        for less in (0.0, *(2.0**power for power in range(-30, 0, 5))):
            epsilon = gaussian.epsilon_from_delta(delta, mu * (1 - less))
            sigma = of_run.noise_multiplier(epsilon=epsilon, delta=delta)
            run = dataclasses.replace(self._on_every_machine(sigma, target, delta), search=search)
            if run.epsilon(delta) <= target:
                return sigma
        raise InputValueError(f"epsilon={target!r} at delta={delta!r} of {search} is reached by no noise on this grid.")

    def _unamplified_noise_multiplier(self, target: float, delta: float) -> float:
        """Returns the smallest σ for which the run is (target, δ)-DP for whoever knows the cohorts.

        The μ² of sums and counts add up: the counts take their part of the μ that `target` allows. What a grid costs
        hardly depends on σ, so that μ·σ hardly changes, and few steps are enough. A target above what the tail of a
        grid allows is replaced by that: the release is then (ε, δ)-DP with a smaller ε.
        """
        requested = target
        of_sums = self._mu_of_sums(gaussian.mu_from(target, delta), target, delta)
        # Twice a float is exact, so that this doubles μ as `Guarantee.replace_one` does.
        sens = self.sensitivity.value * (2 if self.adjacency == "replace-one" else 1)
        # σ is sens / μ, as μ is sens / σ.
        sigma = max(gaussian.rounded_sigma(gaussian.mu_of(sens, of_sums)), sys.float_info.min)
        if self.grid is not None and sigma < math.inf:
            tail = self._on_every_machine(sigma, requested, delta).tail
            largest = gaussian.largest_epsilon_with_tail(delta, tail)
            if largest <= 0:
                raise InputValueError(
                    f"delta={delta!r} is too small for noise on a grid, whose tail of {tail!r} is part of it."
                )
            if target > largest:
                target = largest
                of_sums = self._mu_of_sums(gaussian.mu_from(largest, delta / 2), requested, delta)
        for exponent in range(-40, 40):
            if sigma == math.inf:
                break
            run = self._on_every_machine(sigma, requested, delta)
            if run.epsilon(delta) <= target:
                return sigma
            of_counts = 0.0 if self.counts is None else self.counts.mu
            excess = math.sqrt((run.mu - of_counts) * (run.mu + of_counts)) / of_sums
            sigma = gaussian.rounded_sigma(sigma * max(excess, 1.0) * (1 + 2.0**exponent))
        raise InputValueError(
            f"epsilon={requested!r} at delta={delta!r} needs more noise than float64 can represent"
            + ("." if self.grid is None else ", or fewer bits of the grid.")
        )

    def _on_every_machine(self, sigma: float, target: float, delta: float) -> Guarantee:
        """Returns the guarantee of the σ that is not below this one on any machine."""
        try:
            return self.unamplified(gaussian.on_every_machine(sigma))
        except InputValueError as error:
            raise InputValueError(
                f"epsilon={target!r} at delta={delta!r} has no noise on this grid: {error}"
            ) from error

    def _mu_of_sums(self, allowed: float, target: float, delta: float) -> float:
        """Returns what the counts leave to the sums of the μ that is allowed."""
        if self.counts is None:
            return allowed
        if self.counts.mu >= allowed:
            # Rounded up: a smaller ε must not be shown.
            cost = self.counts.epsilon(delta) * 1.005
            least = math.sqrt(self.schema.max_participations) / allowed * 1.005
            raise InputValueError(
                f"adaptive_count_stddev={self.adaptive_count_stddev!r} alone costs an ε of {cost:.3g}, and "
                f"epsilon={target!r} is allowed: give the counts more noise, above {least:.3g}."
            )
        return math.sqrt((allowed - self.counts.mu) * (allowed + self.counts.mu))


def adaptive_clipping_guarantee(
    rounds: int,
    sampling: Sampling,
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
        Participation: as for `sampling.schema(rounds)`, whoever knows the cohorts: nothing is amplified.
        Sensitivity: √k for either adjacency, exact.
        Released: all counts, and the clip norms computed from them.
        Arithmetic: as for `guarantee`; on a grid, a count is one coordinate, with integer noise of its own.

    Args:
        rounds: Number of rounds n.
        sampling: How cohorts are drawn.
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
    """
    check_sampling(sampling)
    stddev, dimension = validation.nonnegative("count_stddev", count_stddev), None if grid is None else 1
    ones = Question(
        mechanism=Identity(), rounds=rounds, sampling=sampling.schema(rounds), grid=grid, dimension=dimension
    )
    # Replacing an update changes a count no more than setting it to zero.
    return dataclasses.replace(ones.unamplified(stddev), adjacency=adjacency)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretSampling(Sampling):
    """A sampling that a trusted server draws at random and keeps secret, with fields above 0."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                object.__setattr__(self, field.name, validation.whole(field.name, value))
            elif value is not None or field.default is not None:
                number = validation.positive(field.name, value)
                # Accounting is in floats: a fraction becomes one.
                if not isinstance(value, int | float):
                    object.__setattr__(self, field.name, number)

    @abc.abstractmethod
    def run(self, question: Question) -> SecretRun:
        """Returns a run that the theorem of this sampling covers.

        Raises:
            InputValueError: If it does not cover the mechanism; the message names the condition.
        """


def check_sampling(sampling: Sampling) -> None:
    """Raises unless this is a sampling."""
    validation.instance("sampling", sampling, Sampling, "pass MinSep, FixedEpoch, Poisson or another sampling")


# Levels that this process has stated: a second call does not draw a second certificate.
_LEVELS: dict[tuple[object, ...], Level] = {}
# σ of searches in this process: each search draws certificates, and a second one could be luckier.
_SIGMAS: dict[tuple[object, ...], float] = {}
_MOST_LEVELS = 4096


def _stored(compute: Callable[[float], Level], key: tuple[object, ...], number: float) -> Level:
    """Returns the level at this δ or ε, which is computed once."""
    key = (*key, number)
    if key not in _LEVELS:
        _store(key, compute(number))
    return _LEVELS[key]


def _store(key: tuple[object, ...], level: Level) -> None:
    if len(_LEVELS) >= _MOST_LEVELS:
        del _LEVELS[next(iter(_LEVELS))]
    _LEVELS[key] = level
