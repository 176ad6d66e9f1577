"""Samplings whose cohorts are secret: what each must answer, and how its answers become a guarantee."""

import abc
import contextlib
import dataclasses
import math
import time
import typing
from collections.abc import Callable

from tff_mf import composed_losses, gaussian, grids, validation
from tff_mf.accounting._result import Amplification, Level
from tff_mf.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.mechanisms import Mechanism
from tff_mf.participation import Sampling

if typing.TYPE_CHECKING:
    import dp_accounting

# Share of δ that is spent on wrong certificates, of all that a decision needs.
FAILURE = 1e-3
# Relative width to which δ at an ε is found, and the least δ that is looked for.
_WIDTH, _LEAST = 1e-3, 1e-12
# Of a search for σ by certificates: attempts, and by how much ε may be below its target.
_ATTEMPTS, _WANTED = 8, 0.004


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A mechanism in a run whose cohorts are secret, before σ is known.

    Attributes:
        mechanism: The mechanism.
        rounds: Number of rounds n.
        grid: The grid, or `None` for real numbers.
        dimension: Number d of coordinates of a record, with a grid.
        samples: Samples of a certificate in each direction.
    """

    mechanism: Mechanism
    rounds: int
    grid: Grid | None = None
    dimension: int | None = None
    samples: int = 200_000

    def charge_of(
        self, participations: int, clients_per_round: float | None
    ) -> Callable[[float], grids.GridCharge] | None:
        """Returns what the integers of a run cost, as a function of σ; `None` without a grid."""
        return grids.charge_of_secret_cohorts(
            self.mechanism,
            self.rounds,
            participations,
            grid=self.grid,
            dimension=self.dimension,
            clients_per_round=clients_per_round,
        )


class SecretRun(abc.ABC):
    """A run with secret cohorts that a theorem covers: ε, δ and σ, with all that does not depend on σ computed once."""

    # Whether ε is certified by sampling, so that it differs from call to call.
    certified: typing.ClassVar[bool] = False

    @abc.abstractmethod
    def level(self, sigma: float, delta: float, *, share: float) -> Level:
        """Returns ε at δ; a certificate by sampling may fail with `share` of δ/1000."""

    def level_at(self, sigma: float, epsilon: float) -> Level:
        """Returns δ at ε, by halving intervals of log δ, for bounds that need no samples."""
        if self.certified:
            raise InputValueError(
                "epsilon: no δ is certified for this sampling at a given ε, as each δ that is tried takes a part of "
                "what may fail. Ask for epsilon(delta)."
            )
        high, low = 1 - 2.0**-20, _LEAST
        if self.level(sigma, low, share=1.0).epsilon <= epsilon:
            high = low
        while high > low * (1 + _WIDTH):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.level(sigma, middle, share=1.0).epsilon <= epsilon else (middle, high)
        return dataclasses.replace(self.level(sigma, high, share=1.0), epsilon=epsilon, delta=high, estimate=high)

    def search(self, epsilon: float, delta: float, *, known: float) -> tuple[float, Level] | None:
        """Returns a σ near the smallest for (ε, δ), and its level; `None` if it found none.

        Attempt t for one σ may fail with δ/1000·2^(−t), so that all of them together fail with at most δ/1000.

        Args:
            epsilon: ε.
            delta: δ.
            known: A σ that is enough for real numbers without amplification.
        """
        sigma, low, best = known, 0.0, None
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
_MOST_ANSWERS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Secret(Amplification):
    """A question, answered for one σ.

    Attributes:
        sampling: How cohorts are drawn.
        question: What is asked.
        sigma: σ.
        mu: μ of the run where cohorts are known.
        prepared: The run.
    """

    sampling: SecretSampling
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
        key = (self.sampling, self.question, self.sigma, name, value)
        try:
            hash(key)
        except TypeError:
            # A mechanism from outside need not be hashable.
            return answer()
        if key not in _ANSWERS:
            began = time.perf_counter()
            _keep(key, dataclasses.replace(answer(), seconds=time.perf_counter() - began))
        return _ANSWERS[key]


def calibrated(
    sampling: SecretSampling, question: Question, epsilon: float, delta: float, *, known: Callable[[bool], float]
) -> float:
    """Returns σ for (ε, δ); its certificate is what this process answers from then on.

    Args:
        sampling: How cohorts are drawn.
        question: What is asked.
        epsilon: ε.
        delta: δ.
        known: Returns a σ that is enough without amplification: on the grid if asked, else for real numbers.
    """
    found = sampling.run(question).search(epsilon, delta, known=known(False))
    if found is None:
        return known(True)
    sigma, level = found
    # Certificates of the other attempts could have failed as well.
    failure = FAILURE * delta if level.failure else 0.0
    with contextlib.suppress(TypeError):
        _keep((sampling, question, sigma, "delta", delta), dataclasses.replace(level, failure=failure))
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


def bisected(private: Callable[[float], bool], known: float, *, width: float, ratio: float, least: float) -> float:
    """Returns the smallest σ that is private, to `width`, from one that is so without amplification."""
    low = high = known
    while low > known * least and private(low):
        high, low = low, low / ratio
    while high > low * (1 + width):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if private(middle) else (middle, high)
    high = gaussian.rounded_sigma(high)
    # The bounds are not quite monotone in σ.
    step = 2.0**-20
    while not private(high):
        high, step = gaussian.rounded_sigma(high * (1 + step)), 2 * step
        if step > 1:
            raise InputValueError("epsilon is not reached by more noise: take fewer bits or a larger max_clients.")
    return high


def target(epsilon: float) -> float:
    """Returns what a search aims at, so that every machine finds the ε of its result to be at most `epsilon`."""
    return validation.positive("epsilon", epsilon) * composed_losses.ON_EVERY_MACHINE
