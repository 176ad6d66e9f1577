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
