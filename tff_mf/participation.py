"""Participation schemas: how often, and how far apart, one client may take part."""

import abc
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tff_mf import validation
from tff_mf.errors import InputValueError


class Sampling(abc.ABC):
    """How cohorts are drawn: what `tff_mf.guarantee` is asked for."""

    @abc.abstractmethod
    def schema(self, rounds: int) -> "Participation":
        """Returns the schema that holds for whoever knows the cohorts: every pattern of rounds a client may have."""


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
            InputTypeError: If a round is not a whole number.
            InputValueError: If a round is negative.
        """
        validation.instance("pattern", pattern, Iterable, "the rounds of one client")
        return self._has(sorted(validation.whole("round", each, at_least=0) for each in pattern))

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

    Raises:
        InputTypeError: If a field is not a whole number.
        InputValueError: If a field is below 1.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedEpoch(_Spaced):
    """Participation at a fixed place in each epoch of `min_sep` (b) rounds, in at most `max_participations` (k) epochs.

    The (k, b)-participation of Choquette-Choo et al. (2023): a client's rounds are some of j, j + b, …, j + (k − 1)b.
    All of these patterns are also patterns of `MinSep`. Clients that are reshuffled in every epoch do not follow this
    schema: a client may be last in one epoch and first in the next.

    Attributes:
        min_sep: b, the rounds of an epoch, at least 1.
        max_participations: k, at least 1.

    Example:
        >>> (0, 3) in set(FixedEpoch(min_sep=2, max_participations=2).patterns(4))
        False

    Raises:
        InputTypeError: If a field is not a whole number.
        InputValueError: If a field is below 1.
    """

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
