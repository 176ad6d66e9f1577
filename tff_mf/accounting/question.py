"""What is asked of a run, and its answer: a guarantee, amplified where cohorts are secret, which is found once."""

import abc
import dataclasses
import functools
import math
import sys
import time
import typing
from collections.abc import Callable

from tff_mf.accounting import grid_charge
from tff_mf.accounting.guarantee import ADJACENCIES, SLACK, Guarantee, Level, compose_guarantees
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

if typing.TYPE_CHECKING:
    import dp_accounting


class More(typing.TypedDict, total=False):
    """The fields of a `Question` that may be left out."""

    restart_every: int | None
    adaptive_count_stddev: float | None
    adjacency: str
    grid: Grid | None
    dimension: int | None
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
        samples: Number of samples of each certificate in each direction, where ε is certified by sampling.

    Example:
        >>> from tff_mf import Identity, SingleParticipation
        >>> question = Question(mechanism=Identity(), rounds=100, sampling=SingleParticipation())
        >>> question.answered(4.2247).epsilon(1e-6) <= 1
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
    samples: int = 200_000

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        validation.instance("mechanism", self.mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT")
        validation.one_of("adjacency", self.adjacency, ADJACENCIES)
        grids.check_dimension(self.grid, self.dimension)
        if self.adaptive_count_stddev is not None:
            validation.nonnegative("adaptive_count_stddev", self.adaptive_count_stddev)
        if not self.is_secret:
            return
        if self.restart_every is not None or self.adaptive_count_stddev is not None or self.adjacency != "zero-out":
            raise InputValueError(
                f"sampling={self.sampling!r} amplifies zero-out without restarts and counts only, not "
                f"restart_every={self.restart_every!r} and adaptive_count_stddev={self.adaptive_count_stddev!r} with "
                f"adjacency={self.adjacency!r}: account for the schema that also holds, sampling.schema(rounds)."
            )
        validation.whole("samples", self.samples, at_least=1000)

    @property
    def is_secret(self) -> bool:
        """Whether cohorts are secret."""
        return isinstance(self.sampling, SecretSampling)

    @property
    def schema(self) -> Participation:
        """The schema that holds for whoever knows the cohorts."""
        return self.sampling.schema(self.rounds)

    @functools.cached_property
    def sensitivity(self) -> SensitivityResult:
        """The sensitivity of the mechanism as it is released, over all restarts."""
        return released_sensitivity(self.mechanism, self.rounds, self.schema, restart_every=self.restart_every)

    @functools.cached_property
    def counts(self) -> Guarantee | None:
        """The guarantee of the counts of adaptive clipping: see `tff_mf.adaptive_clipping_guarantee`."""
        if self.adaptive_count_stddev is None:
            return None
        dimension = None if self.grid is None else 1
        ones = Question(
            mechanism=Identity(), rounds=self.rounds, sampling=self.schema, grid=self.grid, dimension=dimension
        )
        # Replacing an update changes a count no more than setting it to zero.
        return dataclasses.replace(ones.known(self.adaptive_count_stddev), adjacency=self.adjacency)

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        """What is asked, by content.

        A class may compare its mechanisms by less than C depends on: an answer would then be the one for another C.
        """
        others = (each.name for each in dataclasses.fields(self) if each.name != "mechanism")
        content = type(self.mechanism), self.mechanism.content_digest()
        return *content, *(getattr(self, name) for name in others)

    @functools.cached_property
    def bounds(self) -> GridBounds[typing.Any]:
        """What bounds of the mechanism's integers have in common for every σ."""
        return bounds_of(self.mechanism)

    def over(self, rounds: int, sampling: Sampling) -> "Question":
        """Returns the question about a run of other rounds or cohorts; bounds that both have are found once."""
        other = dataclasses.replace(self, rounds=rounds, sampling=sampling)
        if "bounds" in vars(self):
            vars(other)["bounds"] = self.bounds
        return other

    def charge_of(self, participations: int, *, needs_bands: bool) -> Callable[[float], grid_charge.GridCharge] | None:
        """Returns what the integers of a run with secret cohorts cost, as a function of σ; `None` without a grid.

        Formal guarantee: as for `grid_charge.charge`; the tail includes the probability that a cohort exceeds
        `grid.max_clients`, which ends the run, if clients join independently of one another.

        Where a theorem needs that C̃ is 0 where C is (`needs_bands`), which is known of this package's mechanisms, one
        from outside is refused.
        """
        if self.grid is None:
            return None
        if needs_bands and self.mechanism.is_outside:
            raise InputValueError(
                f"mechanism of kind {self.mechanism.kind!r} is from outside of tff_mf, and on a grid its recursion may "
                "compute with entries beyond the bands of C: take tff_mf.BallsInBins, or grid=None."
            )
        size = getattr(self.sampling, "clients_per_round", None)
        if size is None:
            raise InputValueError(
                "clients_per_round=None is missing: on a grid, a cohort that exceeds max_clients ends the run. Pass "
                "the expected size of a cohort."
            )
        size = validation.positive("clients_per_round", size)
        excess = grid_charge.overflow(self.rounds, max_clients=self.grid.max_clients, clients_per_round=size)

        def charge_at(sigma: float) -> grid_charge.GridCharge:
            charge = self._charge_of_grid(sigma, participations)
            return dataclasses.replace(charge, tail=min(1.0, (charge.tail + excess) * (1 + grid_charge.EXP_SLACK)))

        return charge_at

    @functools.cached_property
    def charge(self) -> Callable[[float], grid_charge.GridCharge | None]:
        """What the integers of a grid cost at σ, found once for each; `None` in floating point and without noise."""
        return functools.cache(self._charge)

    def _charge(self, sigma: float) -> grid_charge.GridCharge | None:
        if self.grid is None or sigma == 0:
            return None
        participations = self.schema.max_participations
        charge_at = self.charge_of(participations, needs_bands=False) if self.is_secret else None
        return charge_at(sigma) if charge_at else self._charge_of_grid(sigma, participations)

    def _charge_of_grid(self, sigma: float, participations: int) -> grid_charge.GridCharge:
        assert self.grid is not None
        assert self.dimension is not None
        return grid_charge.charge(
            self.bounds,
            self.rounds,
            participations,
            noise_multiplier=sigma,
            grid=self.grid,
            dimension=self.dimension,
            restart_every=self.restart_every,
        )

    def known(self, sigma: float, sensitivity: SensitivityResult | None = None) -> Guarantee:
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

    def answered(self, sigma: float, sensitivity: SensitivityResult | None = None) -> Guarantee:
        """Returns the guarantee, amplified where cohorts are secret; `sensitivity` as for `known`."""
        sampling = self.sampling
        run = sampling.run(self) if isinstance(sampling, SecretSampling) else None
        found = self.known(sigma, sensitivity)
        if run is None or sigma == 0:
            return found
        return dataclasses.replace(found, amplified=Secret(question=self, sigma=sigma, mu=found.mu, prepared=run))

    def noise_multiplier(self, *, epsilon: float, delta: float) -> float:
        """Returns the smallest σ for which the run is (ε, δ)-DP: see `calibrate_noise_multiplier`.

        A certificate that the search found is this process's answer from then on.
        """
        target, delta = validation.positive("epsilon", epsilon), validation.open_unit("delta", delta)
        if not isinstance(self.sampling, SecretSampling):
            return self._known_noise_multiplier(target, delta)
        asked = (*self.key, target, delta)
        if asked in _FOUND:
            return _FOUND[asked]
        on_real_numbers = dataclasses.replace(self, grid=None, dimension=None)
        first = on_real_numbers._known_noise_multiplier(target, delta)
        found = self.sampling.run(self).search(target, delta, known=first)
        if found is None:
            return self._known_noise_multiplier(target, delta)
        sigma, level = found
        # Certificates of the other attempts could have failed as well.
        failure = FAILURE * delta if level.failure else 0.0
        _keep((*self.key, sigma, "delta", delta), dataclasses.replace(level, failure=failure))
        _FOUND[asked] = sigma
        return sigma

    def _known_noise_multiplier(self, target: float, delta: float) -> float:
        """Returns the smallest σ for which the run is (target, δ)-DP for whoever knows the cohorts.

        The μ² of sums and counts add up: the counts take their part of the μ that `target` allows. What a grid costs
        hardly depends on σ, so that μ·σ hardly changes, and few steps are enough. A target above what the tail of a
        grid allows is replaced by that: the release is then (ε, δ)-DP with a smaller ε.
        """
        asked = target
        of_sums = self._mu_of_sums(gaussian.mu_from(target, delta), target, delta)
        # Twice a float is exact, so that this doubles μ as `Guarantee.replace_one` does.
        sens = self.sensitivity.value * (2 if self.adjacency == "replace-one" else 1)
        # σ is sens / μ, as μ is sens / σ.
        sigma = max(gaussian.rounded_sigma(gaussian.mu_of(sens, of_sums)), sys.float_info.min)
        if self.grid is not None and sigma < math.inf:
            tail = self._on_every_machine(sigma, asked, delta).tail
            largest = gaussian.largest_epsilon_with_tail(delta, tail)
            if largest <= 0:
                raise InputValueError(
                    f"delta={delta!r} is too small for noise on a grid, whose tail of {tail!r} is part of it."
                )
            if target > largest:
                target = largest
                of_sums = self._mu_of_sums(gaussian.mu_from(largest, delta / 2), asked, delta)
        for exponent in range(-40, 40):
            if sigma == math.inf:
                break
            run = self._on_every_machine(sigma, asked, delta)
            if run.epsilon(delta) <= target:
                return sigma
            others = 0.0 if self.counts is None else self.counts.mu
            excess = math.sqrt((run.mu - others) * (run.mu + others)) / of_sums
            sigma = gaussian.rounded_sigma(sigma * max(excess, 1.0) * (1 + 2.0**exponent))
        raise InputValueError(
            f"epsilon={asked!r} at delta={delta!r} needs more noise than float64 can represent"
            + ("." if self.grid is None else ", or fewer bits of the grid.")
        )

    def _on_every_machine(self, sigma: float, target: float, delta: float) -> Guarantee:
        """Returns the guarantee of the σ that is not below this one on any machine."""
        try:
            return self.known(gaussian.on_every_machine(sigma))
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


def taking_part(clients: int, expected: float | None) -> int:
    """Returns how many of the clients a sampling draws from: the largest number whose cohorts are not too large."""
    if expected is None:
        return clients
    if expected > clients:
        raise InputValueError(
            f"clients={clients} are too few: these cohorts need {math.floor(expected)} clients. Take a smaller "
            "clients_per_round."
        )
    return math.floor(expected)


def check_sampling(sampling: Sampling) -> None:
    """Raises unless this is a sampling."""
    validation.instance("sampling", sampling, Sampling, "pass MinSep, FixedEpoch, Poisson or another sampling")


def released_sensitivity(
    mechanism: Mechanism, rounds: int, participation: Participation, *, restart_every: int | None = None
) -> SensitivityResult:
    """Returns the sensitivity that a run is accounted with: of the mechanism as it is released, or an upper bound."""
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    every = rounds if restart_every is None else restart_every
    return restart_sensitivity(mechanism.cast_to_float32(), rounds, participation, restart_every=every)


# Answers of this process: a certificate that is asked for again is not drawn again.
_ANSWERS: dict[tuple[object, ...], Level] = {}
# σ that this process found: each search draws certificates, and a second one could be luckier.
_FOUND: dict[tuple[object, ...], float] = {}
_MOST_ANSWERS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Secret:
    """What secret cohorts add to a run at σ. `mu` holds for whoever knows them; a repeated call has the same answer."""

    question: Question
    sigma: float
    mu: float
    prepared: SecretRun = dataclasses.field(compare=False, repr=False)

    def at_delta(self, delta: float) -> Level:
        """Returns ε at δ."""
        return self._answered("delta", delta, lambda: self.prepared.level(self.sigma, delta, share=1.0))

    def at_epsilon(self, epsilon: float) -> Level:
        """Returns δ at ε."""
        return self._answered("epsilon", epsilon, lambda: self.prepared.level_at(self.sigma, epsilon))

    def dp_event(self) -> "dp_accounting.DpEvent | None":
        """Returns the run as an event of dp-accounting, or `None` if there is none."""
        return self.prepared.dp_event(self.sigma)

    def _answered(self, name: str, value: float, answer: Callable[[], Level]) -> Level:
        key = (*self.question.key, self.sigma, name, value)
        if key not in _ANSWERS:
            began = time.perf_counter()
            _keep(key, dataclasses.replace(answer(), seconds=time.perf_counter() - began))
        return _ANSWERS[key]


def _keep(key: tuple[object, ...], level: Level) -> None:
    if len(_ANSWERS) >= _MOST_ANSWERS:
        del _ANSWERS[next(iter(_ANSWERS))]
    _ANSWERS[key] = level
