"""Samplings whose cohorts are secret: what each must answer, and how its answers become a guarantee."""

import abc
import dataclasses
import functools
import math
import time
import typing
from collections.abc import Callable

from tff_mf import grids, registry
from tff_mf.accounting._result import ADJACENCIES, SLACK, Amplification, Guarantee, Level
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.mechanisms import Mechanism
from tff_mf.numerics import composed_losses, gaussian
from tff_mf.problem.participation import Participation, Sampling
from tff_mf.sensitivities import SensitivityResult, as_released
from tff_mf.sensitivities.restarts import restart_sensitivity

if typing.TYPE_CHECKING:
    import dp_accounting

# Share of δ that is spent on wrong certificates, of all that a decision needs.
FAILURE = 1e-3
# Relative width to which δ at an ε is found, and the least δ that is looked for.
_WIDTH, _LEAST = 1e-3, 1e-12
# Of a search for σ by certificates: attempts, and by how much ε may be below its target.
_ATTEMPTS, _WANTED = 8, 0.004
# Of a search without samples: relative width of the interval of σ, its least σ as a share of one that is known to be
# enough, and small steps after it.
_PRECISION, _LEAST_SHARE, _STEPS = 1e-4, 1e-6, 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a run, before σ is known.

    Attributes:
        mechanism: The mechanism.
        rounds: Number of rounds n.
        sampling: How cohorts are drawn.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.
        adjacency: "zero-out" or "replace-one".
        grid: The grid, or `None` for real numbers.
        dimension: Number d of coordinates of a record, with a grid.
        samples: Samples of a certificate in each direction.

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range, or secret cohorts amplify no such run.
    """

    mechanism: Mechanism
    rounds: int
    sampling: Sampling
    restart_every: int | None = None
    adjacency: str = "zero-out"
    grid: Grid | None = None
    dimension: int | None = None
    samples: int = 200_000

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        validation.instance("mechanism", self.mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT")
        validation.one_of("adjacency", self.adjacency, ADJACENCIES)
        if (grids.check(self.grid) is None) != (self.dimension is None):
            raise InputValueError(
                f"grid={self.grid!r} and dimension={self.dimension!r} must be given together: the charge of a grid "
                "depends on both."
            )
        if not self.is_secret:
            return
        if self.restart_every is not None or self.adjacency != "zero-out":
            raise InputValueError(
                f"sampling={self.sampling!r} amplifies zero-out without restarts only, not "
                f"restart_every={self.restart_every!r} with adjacency={self.adjacency!r}: account for the schema that "
                "also holds, sampling.schema(rounds)."
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
    def key(self) -> tuple[object, ...] | None:
        """What is asked, by content; `None` for a mechanism that is not registered.

        A class may compare its mechanisms by less than C depends on: an answer would then be the one for another C.
        """
        if registry.find(self.mechanism) is None:
            return None
        others = (each.name for each in dataclasses.fields(self) if each.name != "mechanism")
        content = type(self.mechanism), registry.content_digest(self.mechanism)
        return *content, *(getattr(self, name) for name in others)

    def charge_of(
        self, participations: int, clients_per_round: float | None, *, needs_bands: bool
    ) -> Callable[[float], grids.GridCharge] | None:
        """Returns what the integers of a run with secret cohorts cost, as a function of σ; `None` without a grid.

        Args:
            participations: Largest number of rounds of a client.
            clients_per_round: Expected size of a cohort.
            needs_bands: Whether the theorem needs that C̃ is 0 where C is, which is known of this package's mechanisms.

        Raises:
            InputValueError: If it needs that, and the mechanism is from outside.
        """
        record = registry.find(self.mechanism)
        if needs_bands and self.grid is not None and record is not None and record.outside:
            raise InputValueError(
                f"mechanism of kind {self.mechanism.kind!r} is from outside of tff_mf, and on a grid its recursion may "
                "compute with entries beyond the bands of C: take tff_mf.BallsInBins, or grid=None."
            )
        return grids.charge_of_secret_cohorts(
            self.mechanism,
            self.rounds,
            participations,
            grid=self.grid,
            dimension=self.dimension,
            clients_per_round=clients_per_round,
        )

    def known(self, sigma: float) -> Guarantee:
        """Returns the guarantee for whoever knows the cohorts."""
        sens, schema = self.sensitivity, self.schema
        if self.grid is None or self.dimension is None or sigma == 0:
            found = Guarantee.of_gaussian(sens.value, sigma).under(self.adjacency)
            return dataclasses.replace(found, exact=sens.exact)
        room = getattr(self.sampling, "clients_per_round", None)
        secret = self.charge_of(schema.max_participations, room, needs_bands=False) if self.is_secret else None
        charge = (
            secret(sigma)
            if secret
            else grids.charge(
                self.mechanism,
                self.rounds,
                schema.max_participations,
                noise_multiplier=sigma,
                grid=self.grid,
                dimension=self.dimension,
                restart_every=self.restart_every,
            )
        )
        return guarantee_on_grid(sens.value, sigma, charge, adjacency=self.adjacency)

    def answered(self, sigma: float) -> Guarantee:
        """Returns the guarantee, amplified where cohorts are secret."""
        sampling = self.sampling
        run = sampling.run(self) if isinstance(sampling, SecretSampling) else None
        found = self.known(sigma)
        if run is None or sigma == 0:
            return found
        return dataclasses.replace(found, amplified=Secret(question=self, sigma=sigma, mu=found.mu, prepared=run))


def check_sampling(sampling: Sampling) -> None:
    """Raises unless this is a sampling."""
    validation.instance("sampling", sampling, Sampling, "pass MinSep, FixedEpoch, Poisson or another sampling")


def released_sensitivity(
    mechanism: Mechanism, rounds: int, participation: Participation, *, restart_every: int | None = None
) -> SensitivityResult:
    """Returns the sensitivity that a run is accounted with: of the mechanism as it is released, or an upper bound.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.

    Example:
        >>> from tff_mf import Identity, MinSep
        >>> released_sensitivity(Identity(), 9, MinSep(min_sep=2, max_participations=4)).value
        2.0

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    every = rounds if restart_every is None else restart_every
    return restart_sensitivity(as_released(mechanism), rounds, participation, restart_every=every)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretRun(abc.ABC):
    """A run with secret cohorts that a theorem covers: ε, δ and σ, with all that does not depend on σ computed once.

    Attributes:
        charge_of: What the integers of a grid cost, as a function of σ; `None` for real numbers.
    """

    # Whether ε is certified by sampling, so that it differs from call to call.
    certified: typing.ClassVar[bool] = False

    charge_of: Callable[[float], grids.GridCharge] | None = None

    @abc.abstractmethod
    def ideal(self, sigma: float, delta: float, *, change: float, share: float) -> Level:
        """Returns ε of real numbers at δ.

        Args:
            sigma: σ, at least 0.
            delta: δ.
            change: By how much the norm of what a client adds to Cx may be larger than with C.
            share: A certificate by sampling may fail with this share of δ/1000.
        """

    def about(self, sigma: float, delta: float) -> float | None:
        """Returns roughly ε, for a δ that depends on no sample; `None` where ε may be asked for twice."""
        del sigma, delta
        return None

    def level(self, sigma: float, delta: float, *, share: float) -> Level:
        """Returns ε at δ; a certificate by sampling may fail with `share` of δ/1000."""
        return self.charged(sigma, delta, self.charge_of(sigma) if self.charge_of and sigma else None, share=share)

    def charged(self, sigma: float, delta: float, charge: grids.GridCharge | None, *, share: float = 1.0) -> Level:
        """Returns ε of the computed release from ε of the ideal one, or of real numbers without a charge."""
        delta = delta if self.certified else validation.tail_delta(delta)
        if charge is None:
            return self.ideal(sigma, delta, change=0.0, share=share)
        found: list[Level] = []

        def epsilon_from(part: float) -> float:
            found.append(self.ideal(sigma, part, change=charge.sensitivity, share=share))
            return found[-1].epsilon

        if charge.tail >= delta:
            return worst(delta, "unamplified", math.inf, math.inf)
        epsilon = grids.epsilon_of_chain(delta, charge, epsilon_from, about=self.about(sigma, delta))
        if not found:
            return worst(delta, "unamplified", epsilon, epsilon)
        estimate = found[-1].estimate if self.certified else epsilon
        return dataclasses.replace(found[-1], epsilon=epsilon, delta=delta, estimate=estimate)

    def level_at(self, sigma: float, epsilon: float) -> Level:
        """Returns δ at ε, by halving intervals of log δ, for bounds that need no samples."""
        if self.certified:
            raise InputValueError(
                "epsilon: no δ is certified for this sampling at a given ε, as each δ that is tried takes a part of "
                "what may fail. Ask for epsilon(delta)."
            )
        high, low = 1 - 2.0**-20, _LEAST
        # Nothing below 1 is known to hold.
        if (most := self.level(sigma, high, share=1.0)).epsilon > epsilon:
            return dataclasses.replace(most, epsilon=epsilon, delta=1.0, estimate=1.0)
        if self.level(sigma, low, share=1.0).epsilon <= epsilon:
            high = low
        while high > low * (1 + _WIDTH):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.level(sigma, middle, share=1.0).epsilon <= epsilon else (middle, high)
        return dataclasses.replace(self.level(sigma, high, share=1.0), epsilon=epsilon, delta=high, estimate=high)

    def search(self, epsilon: float, delta: float, *, known: float) -> tuple[float, Level] | None:
        """Returns a σ near the smallest for (ε, δ), and its level; `None` if it found none.

        Args:
            epsilon: ε.
            delta: δ.
            known: A σ that is enough for real numbers without amplification.
        """
        return self.attempted(epsilon, delta, first=known) if self.certified else self._bisected(epsilon, delta, known)

    def attempted(self, epsilon: float, delta: float, *, first: float) -> tuple[float, Level] | None:
        """Returns the best of a few certificates, from a first σ on.

        Attempt t for one σ may fail with δ/1000·2^(−t), so that all of them together fail with at most δ/1000.
        """
        sigma, low, best = first, 0.0, None
        for attempt in range(1, _ATTEMPTS + 1):
            found = self.level(sigma, delta, share=2.0**-attempt)
            if found.epsilon <= epsilon:
                best = sigma, found
                if found.epsilon >= epsilon * (1 - _WANTED):
                    break
            else:
                low = sigma
            # Of an amplified run ε is about as 1/σ, or falls faster.
            aimed = sigma * min(max(found.epsilon / epsilon, 0.5), 2.0) * (1 + _WANTED / 3)
            if best is not None and not low < aimed < best[0]:
                aimed = math.sqrt(low * best[0]) if low else best[0] / 1.5
            sigma = gaussian.rounded_sigma(aimed)
        return best

    def _bisected(self, epsilon: float, delta: float, known: float) -> tuple[float, Level] | None:
        """Returns the smallest σ, to 0.01 %, and its level."""
        # Every machine finds the ε of the result to be at most this.
        aim = validation.positive("epsilon", epsilon) * composed_losses.ON_EVERY_MACHINE

        def smallest(charge: grids.GridCharge | None) -> float:
            return _smallest(lambda sigma: self.charged(sigma, delta, charge).epsilon <= aim, known)

        sigma = smallest(None)
        if self.charge_of:
            # What a grid costs hardly depends on σ, and takes longer than the rest.
            sigma = max(sigma, smallest(self.charge_of(sigma)))
        for _ in range(_STEPS):
            level = self.level(sigma, delta, share=1.0)
            if level.epsilon <= aim:
                return sigma, level
            # The bounds are not quite monotone in σ.
            sigma = gaussian.rounded_sigma(sigma * (1 + _PRECISION))
        return None

    def dp_event(self, sigma: float) -> "dp_accounting.DpEvent | None":
        """Returns the run as an event of dp-accounting, or `None` if there is none."""
        del sigma
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretSampling(Sampling):
    """A sampling that a trusted server draws at random and keeps secret."""

    @abc.abstractmethod
    def run(self, question: Question) -> SecretRun:
        """Returns a run that the theorem of this sampling covers.

        Raises:
            InputValueError: If it does not cover the mechanism; the message names the condition.
        """


# Answers of this process: a certificate that is asked for again is not drawn again.
_ANSWERS: dict[tuple[object, ...], Level] = {}
# σ that this process found: each search draws certificates, and a second one could be luckier.
_FOUND: dict[tuple[object, ...] | None, float] = {}
_MOST_ANSWERS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Secret(Amplification):
    """A question, answered for one σ.

    Attributes:
        question: What is asked.
        sigma: σ.
        mu: μ of the run where cohorts are known.
        prepared: The run.
    """

    question: Question
    sigma: float
    mu: float
    prepared: SecretRun = dataclasses.field(compare=False, repr=False)

    def is_of(self, mu: float) -> bool:
        return self.mu == mu

    def at_delta(self, delta: float) -> Level:
        return self._answered("delta", delta, lambda: self.prepared.level(self.sigma, delta, share=1.0))

    def at_epsilon(self, epsilon: float) -> Level:
        return self._answered("epsilon", epsilon, lambda: self.prepared.level_at(self.sigma, epsilon))

    def dp_event(self) -> "dp_accounting.DpEvent | None":
        return self.prepared.dp_event(self.sigma)

    def _answered(self, name: str, value: float, answer: Callable[[], Level]) -> Level:
        if self.question.key is None:
            return answer()
        key = (*self.question.key, self.sigma, name, value)
        if key not in _ANSWERS:
            began = time.perf_counter()
            _keep(key, dataclasses.replace(answer(), seconds=time.perf_counter() - began))
        return _ANSWERS[key]


def calibrated(question: Question, epsilon: float, delta: float, *, known: Callable[[Question], float]) -> float:
    """Returns σ for (ε, δ); its certificate is what this process answers from then on.

    Args:
        question: What is asked.
        epsilon: ε.
        delta: δ.
        known: Returns a σ that is enough for whoever knows the cohorts.
    """
    sampling = question.sampling
    if not isinstance(sampling, SecretSampling):
        return known(question)
    asked = None if question.key is None else (*question.key, epsilon, delta)
    if asked in _FOUND:
        return _FOUND[asked]
    on_real_numbers = dataclasses.replace(question, grid=None, dimension=None)
    found = sampling.run(question).search(epsilon, delta, known=known(on_real_numbers))
    if found is None:
        return known(question)
    sigma, level = found
    # Certificates of the other attempts could have failed as well.
    failure = FAILURE * delta if level.failure else 0.0
    if question.key is not None and asked is not None:
        _keep((*question.key, sigma, "delta", delta), dataclasses.replace(level, failure=failure))
        _FOUND[asked] = sigma
    return sigma


def _keep(key: tuple[object, ...], level: Level) -> None:
    if len(_ANSWERS) >= _MOST_ANSWERS:
        del _ANSWERS[next(iter(_ANSWERS))]
    _ANSWERS[key] = level


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


def worst(delta: float, theorem: str, remove: float, add: float) -> Level:
    """Returns the level of a bound that needs no samples, from ε of both directions."""
    direction, epsilon = ("remove", remove) if remove >= add else ("add", add)
    return Level(epsilon=epsilon, delta=delta, bound="proved", theorem=theorem, direction=direction, estimate=epsilon)


def _smallest(private: Callable[[float], bool], known: float) -> float:
    """Returns about the smallest σ that is private, from one that is so without amplification."""
    low = high = known
    while low > known * _LEAST_SHARE and private(low):
        high, low = low, low / 2
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if private(middle) else (middle, high)
    return gaussian.rounded_sigma(high)
