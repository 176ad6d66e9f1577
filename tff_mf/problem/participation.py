"""Who takes part: samplings whose cohorts are known, and the schemas that bound how often a client comes."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.problem.draws import Cohorts, Draws, SystemDraws, rows_of


class Sampling(abc.ABC):
    """How cohorts are drawn: one object that draws them, and that `tff_mf.guarantee` is asked for."""

    @abc.abstractmethod
    def schema(self, rounds: int) -> "Participation":
        """Returns the schema that holds for whoever knows the cohorts: every pattern of rounds a client may have."""

    def cohorts(
        self, clients: int, rounds: int, *, clients_per_round: int | None = None, draws: Draws | None = None
    ) -> np.ndarray:
        """Returns who takes part in each round.

        Formal guarantee: the rounds of every client are a pattern of `schema(rounds)`. Choices come from the randomness
        of the system, and are as secret as the result is kept, unless `draws` has others.

        Args:
            clients: Number of clients, which are counted from 0.
            rounds: Number of rounds n.
            clients_per_round: Clients of a cohort, where the sampling does not say it itself.
            draws: `tff_mf.problem.draws.SeededDraws` for a simulation, in which cohorts are no secret.

        Returns:
            int32 `[rounds, width]`; `tff_mf.problem.draws.NOBODY`, −1, fills the end of a row.

        Example:
            >>> from tff_mf.problem.draws import SeededDraws
            >>> MinSep(min_sep=2, max_participations=2).cohorts(4, 4, clients_per_round=2, draws=SeededDraws(1)).shape
            (4, 2)

        Raises:
            InputValueError: If clients are too few for these cohorts.
        """
        clients, rounds = validation.whole("clients", clients), validation.listable(rounds)
        size = getattr(self, "clients_per_round", None)
        if clients_per_round is not None:
            cohort = validation.whole("clients_per_round", clients_per_round)
            if size is not None and cohort != size:
                raise InputValueError(
                    f"clients_per_round={cohort}, but {self} has clients_per_round={size}: leave it out."
                )
            size = cohort
        return rows_of(self.draw(clients, rounds, size, SystemDraws() if draws is None else draws))

    @abc.abstractmethod
    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        """Returns the cohort of each round; `size` is `clients_per_round`, and all arguments have been checked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation(Sampling):
    """A participation schema: a set Π of patterns, each a set of rounds in which one client may take part.

    The rules for sensitivity depend on `min_sep` (b) and `max_participations` (k), and some on the class of the schema.
    If a pattern of a new schema violated one of the two, its sensitivity would be too small; if it lacked a pattern
    that `MinSep` has, a sensitivity reported as exact would be an upper bound.

    Attributes:
        min_sep: b, the smallest difference r₂ − r₁ of two rounds in which one client takes part.
        max_participations: k, the largest number of rounds in which one client takes part.

    Formal guarantee: every sensitivity, ρ and ε of this package holds for clients whose rounds of participation form a
    pattern of the schema that it was computed for. It does not hold for a client that took part more often, or after a
    shorter gap, than the schema allows.
    """

    if TYPE_CHECKING:
        # At run time a dataclass would take these properties for the defaults of its fields of the same names.

        @property
        def min_sep(self) -> int: ...

        @property
        def max_participations(self) -> int: ...

    def schema(self, rounds: int) -> "Participation":
        """Returns itself: nothing is secret."""
        del rounds
        return self

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        """Returns cohorts that are drawn uniformly among all clients that may come, wherever there are enough.

        With b = min_sep, k = max_participations, n rounds and m clients a round, cohorts exist if and only if the
        population P has P ≥ m·min(b, n) (the clients of b consecutive rounds are distinct) and P·k ≥ n·m (the
        participations suffice). Both are necessary by counting. They are sufficient:

        * Let s = min(max(b, ⌈n/k⌉), n). If P ≥ s·m, each cohort is drawn uniformly among the clients that were in none
          of the s − 1 cohorts before. Those are at least P − (s − 1)·m ≥ m, so a draw never fails, and n rounds hold at
          most ⌈n/s⌉ ≤ k rounds that are s apart. s is b unless k is the tighter bound.
        * Else P is short of s·m by rounding only, since P ≥ n·m/k: the cohorts go round a shuffled circle of all
          clients, m at a time. A client's turns are P places apart, hence at least ⌊P/m⌋ ≥ b rounds, and it has at most
          ⌈n·m/P⌉ ≤ k of them.
        """
        if type(self) not in (MinSep, SingleParticipation):
            raise InputTypeError(
                f"sampling={self!r}: no cohorts are drawn for this schema; take tff_mf.MinSep, or draw your own."
            )
        cohort = cohort_size(size)
        check_capacity(self, clients, cohort, rounds)
        apart = min(max(self.min_sep, math.ceil(rounds / self.max_participations)), rounds)
        if clients >= apart * cohort:
            return _spaced(clients, rounds, cohort, apart, draws)
        return draws.order(clients)[np.arange(rounds * cohort) % clients].reshape(rounds, cohort)

    def check(self, rounds: int) -> int:
        """Returns `rounds` if a pattern with `max_participations` participations fits into them, else raises.

        Raises:
            InputValueError: If `rounds` is too small; the message says how many participations would fit.
        """
        rounds = validation.whole("rounds", rounds)
        needed = (self.max_participations - 1) * self.min_sep + 1
        if needed > rounds:
            fits = (rounds - 1) // self.min_sep + 1
            raise InputValueError(
                f"max_participations={self.max_participations} with min_sep={self.min_sep} needs {needed} rounds, but "
                f"rounds={rounds}; at most max_participations={fits} fits."
            )
        return rounds

    def allows(self, pattern: Iterable[int]) -> bool:
        """Returns whether these rounds, in any order, are a pattern of Π: whether one client may take part in them.

        Formal guarantee: if so, and if the rounds are among n, contributions of norm at most 1 in them change Cx by at
        most the `sensitivity` for n rounds and this schema. A round that is listed twice stands for two contributions,
        which no schema allows.

        Args:
            pattern: Rounds of one client, counted from any number.

        Example:
            >>> FixedEpoch(min_sep=4, max_participations=2).allows([0, 8])
            False

        Raises:
            InputValueError: If a round is negative.
        """
        validation.instance("pattern", pattern, Iterable, "the rounds of one client")
        return self._has(sorted(validation.whole("round", round_, at_least=0) for round_ in pattern))

    def patterns(self, rounds: int) -> Iterator[tuple[int, ...]]:
        """Yields every pattern within `rounds`, the empty one first. Takes exponential time: for small n only."""
        for size in range(self.max_participations + 1):
            yield from filter(self._has, itertools.combinations(range(rounds), size))

    def _has(self, pattern: Sequence[int]) -> bool:
        """Returns whether rounds in increasing order are a pattern of the schema."""
        apart = all(later - sooner >= self.min_sep for sooner, later in itertools.pairwise(pattern))
        return apart and len(pattern) <= self.max_participations


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Spaced(Participation):
    """A schema whose two parameters are given."""

    min_sep: int
    max_participations: int

    def __post_init__(self) -> None:
        for name in ("min_sep", "max_participations"):
            object.__setattr__(self, name, validation.whole(name, getattr(self, name)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSep(_Spaced):
    """Min-sep participation: at most `max_participations` (k) rounds, any two of them at least `min_sep` (b) apart.

    Two rounds r₁ < r₂ are b apart if r₂ − r₁ ≥ b, as in Choquette-Choo et al. (2023) and McMahan et al. (2024), Π_{b,k}
    of appendix C.2. TensorFlow Privacy's tree accountant counts r₂ − r₁ − 1 instead.

    Attributes:
        min_sep: b, at least 1.
        max_participations: k, at least 1.

    Example:
        >>> MinSep(min_sep=342, max_participations=6).max_participations
        6
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedEpoch(_Spaced):
    """Participation at a fixed place in epochs of `min_sep` (b) rounds, in at most `max_participations` (k) in a row.

    The (k, b)-participation of Choquette-Choo et al. (2023): a client's rounds are some of j, j + b, …, j + (k − 1)b.
    All of these patterns are also patterns of `MinSep`. Clients that are reshuffled in every epoch do not follow this
    schema: a client may be last in one epoch and first in the next.

    Attributes:
        min_sep: b, the rounds of an epoch, at least 1.
        max_participations: k, at least 1.

    Example:
        >>> (0, 3) in set(FixedEpoch(min_sep=2, max_participations=2).patterns(4))
        False
    """

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        """Returns the cohorts of clients who are shuffled once; each then comes every b rounds, with the same others.

        b·m clients take part, the others never do.
        """
        if type(self) is not FixedEpoch:
            return super().draw(clients, rounds, size, draws)
        cohort, epoch = cohort_size(size), min(self.min_sep, rounds)
        epochs = math.ceil(rounds / epoch)
        if clients < epoch * cohort or epochs > self.max_participations:
            raise InputValueError(
                f"sampling={self!r} with clients_per_round={cohort} and rounds={rounds} needs {epoch * cohort} clients "
                f"and max_participations={epochs}, but the population has {clients}: take fewer clients_per_round."
            )
        return draws.order(clients)[: epoch * cohort].reshape(epoch, cohort)[np.arange(rounds) % epoch]

    def _has(self, pattern: Sequence[int]) -> bool:
        # The base class bounds the number of rounds; in addition, all of them lie within k epochs.
        in_place = all((later - sooner) % self.min_sep == 0 for sooner, later in itertools.pairwise(pattern))
        reach = (self.max_participations - 1) * self.min_sep
        return in_place and super()._has(pattern) and (not pattern or pattern[-1] - pattern[0] <= reach)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleParticipation(Participation):
    """Each client takes part in at most one round: k = 1, for which b does not matter and is 1.

    Example:
        >>> SingleParticipation().max_participations
        1
    """

    @property
    def min_sep(self) -> int:
        return 1

    @property
    def max_participations(self) -> int:
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpacedEpochs(Sampling):
    """Clients are shuffled anew in every epoch, such that each still waits `min_sep` rounds from turn to turn.

    An epoch has E = ⌊clients / clients_per_round⌋ rounds, and a client takes part at most once in it. Shuffled without
    regard, one that is last in an epoch could be first in the next. Here each cohort is drawn uniformly from the
    clients that are not yet in this epoch and were in none of the min_sep − 1 cohorts before. Those who cannot be drawn
    in round r of an epoch are at most max(r, min_sep − 1) cohorts, so that min_sep ≤ E always leaves enough. Nothing is
    amplified: epochs are not independent.

    Formal guarantee: clients keep `MinSep` with the same two numbers; with n rounds they have at most ⌈n / E⌉ of them.

    Attributes:
        min_sep: b, at least 1 and at most E.
        max_participations: k, at least the number of epochs.

    Example:
        >>> cohorts = SpacedEpochs(min_sep=2, max_participations=2).cohorts(4, 8, clients_per_round=1)
        >>> sorted(cohorts[:4, 0].tolist())
        [0, 1, 2, 3]
    """

    min_sep: int
    max_participations: int

    def __post_init__(self) -> None:
        self.schema(1)

    def schema(self, rounds: int) -> Participation:
        """Returns that any two rounds of a client are b apart."""
        del rounds
        return MinSep(min_sep=self.min_sep, max_participations=self.max_participations)

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        cohort = cohort_size(size)
        epoch, apart = clients // cohort, min(self.min_sep, rounds)
        if not epoch or apart > epoch or math.ceil(rounds / epoch) > self.max_participations:
            raise InputValueError(
                f"sampling={self!r} with clients_per_round={cohort} and {clients} clients has epochs of {epoch} "
                f"rounds, and needs at least {max(apart, math.ceil(rounds / self.max_participations))} in "
                f"rounds={rounds}; take fewer clients_per_round."
            )
        last, begun = np.full(clients, -apart), np.zeros(clients, np.int64)
        cohorts = []
        for t in range(rounds):
            free = np.flatnonzero((begun <= t // epoch) & (last <= t - apart))
            cohorts.append(free[draws.chosen(len(free), cohort)])
            last[cohorts[-1]] = t
            begun[cohorts[-1]] = t // epoch + 1
        return cohorts


_DAY_HOURS = 24.0
# Devices are idle and charging at night, so that rounds then take half as long as they do on average, and half
# as long again by day; how long one takes varies as the sum of four waiting times.
_SWING = 0.5
_SHAPE = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timer(Sampling):
    """Each cohort is drawn uniformly from the devices whose timer has run out: the papers' production setting.

    A timer counts rounds, or hours on a simulated clock, on which rounds are quick by night and slow by day and wait
    for enough devices. How many rounds passed between two participations is then known only afterwards.

    Formal guarantee: with a timer of rounds, any two rounds of a client are at least `min_sep` apart, and nothing but
    that bounds how many there are: ⌈n / min_sep⌉. With a timer of hours nothing is bounded beforehand. The guarantee of
    a run follows from the participation that was observed, which does not depend on anybody's data: cohorts are drawn
    from timers and chance alone.

    Attributes:
        min_sep: Rounds that a device waits, or `None` for a timer of hours.
        hours: Hours that a device waits after taking part.
        round_minutes: Minutes that a round takes on average, with hours.

    Example:
        >>> Timer(min_sep=10).schema(25)
        MinSep(min_sep=10, max_participations=3)
        >>> Timer(hours=10.0, round_minutes=60.0).schema(25)
        MinSep(min_sep=1, max_participations=25)

    Raises:
        InputValueError: If neither rounds nor hours are given, or both.
    """

    min_sep: int | None = None
    hours: float | None = None
    round_minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.min_sep is None) == (self.hours is None) or (self.hours is None) != (self.round_minutes is None):
            raise InputValueError(
                f"min_sep={self.min_sep}, hours={self.hours} and round_minutes={self.round_minutes}: give min_sep for "
                "a timer of rounds, or hours with round_minutes."
            )
        if self.min_sep is not None:
            object.__setattr__(self, "min_sep", validation.whole("min_sep", self.min_sep))
        else:
            validation.positive("hours", self.hours)
            validation.positive("round_minutes", self.round_minutes)

    def schema(self, rounds: int) -> Participation:
        """Returns that rounds of a client are apart by the timer, if that counts rounds."""
        apart = min(self.min_sep or 1, rounds)
        return MinSep(min_sep=apart, max_participations=math.ceil(rounds / apart))

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        cohort, apart = cohort_size(size), min(self.min_sep or 1, rounds)
        if clients < apart * cohort:
            raise InputValueError(
                f"sampling={self!r} with clients_per_round={cohort} needs {apart * cohort} clients, but the population "
                f"has {clients}."
            )
        if self.hours is None or self.round_minutes is None:
            return _spaced(clients, rounds, cohort, apart, draws)
        ready, now, cohorts = np.zeros(clients), 0.0, []
        for _ in range(rounds):
            now = max(now, np.partition(ready, cohort - 1)[cohort - 1])
            free = np.flatnonzero(ready <= now)
            cohorts.append(free[draws.chosen(len(free), cohort)])
            ready[cohorts[-1]] = now + self.hours
            by_day = 1 - _SWING * math.cos(2 * math.pi * now / _DAY_HOURS)
            now += self.round_minutes / 60 * by_day * draws.waiting(_SHAPE) / _SHAPE
        return cohorts


def cohort_size(size: float | None) -> int:
    """Returns the clients of a cohort, which has to be given."""
    if size is None:
        raise InputValueError("clients_per_round is missing: give the number of clients of a cohort.")
    return validation.whole("clients_per_round", size)


def _spaced(clients: int, rounds: int, cohort: int, apart: int, draws: Draws) -> np.ndarray:
    """Returns cohorts, each drawn uniformly from the clients in none of the `apart` − 1 cohorts before."""
    cohorts, waiting = np.empty((rounds, cohort), np.int32), np.arange(clients, dtype=np.int32)
    for t in range(rounds):
        if t >= apart:
            waiting = np.concatenate([waiting, cohorts[t - apart]])
        chosen = draws.chosen(len(waiting), cohort)
        cohorts[t] = waiting[chosen]
        waiting = np.delete(waiting, chosen)
    return cohorts


def check_capacity(schema: Participation, clients: int, cohort: int, rounds: int) -> None:
    """Raises unless cohorts exist, naming single changes that make them exist."""
    window, limit = min(schema.min_sep, rounds), schema.max_participations
    problems = []
    if clients < window * cohort:
        problems.append(f"min_sep={schema.min_sep} with clients_per_round={cohort} needs {window * cohort} clients")
    if clients * limit < rounds * cohort:
        problems.append(
            f"rounds={rounds} with clients_per_round={cohort} and max_participations={limit} needs "
            f"{math.ceil(rounds * cohort / limit)} clients"
        )
    if not problems:
        return
    fits = []
    fewer = min(clients // window, clients * limit // rounds)
    if fewer:
        fits.append(f"clients_per_round={fewer}")
    if clients >= cohort:
        changes = []
        if clients < window * cohort:
            changes.append(f"min_sep={clients // cohort}")
        if clients * limit < rounds * cohort:
            changes.append(f"max_participations={math.ceil(rounds * cohort / clients)}")
        fits.append(" with ".join(changes))
    remedy = f"{' or '.join(fits)} would fit" if fits else "no cohort fits so few clients for so many rounds"
    raise InputValueError(f"{', and '.join(problems)}, but the population has {clients}; {remedy}.")
