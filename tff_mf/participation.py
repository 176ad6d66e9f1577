"""How often, and how far apart, one client may take part: the schema that sensitivity is taken over."""

import abc
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tff_mf import _validate
from tff_mf.errors import InputValueError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation(abc.ABC):  # noqa: B024
    """A set Π of participation patterns: the rounds in which one client may take part.

    Rules for sensitivity go by `min_sep` (b) and `max_participations` (k), and some by the class of a schema. No
    pattern of a schema may exceed the two, or sensitivity comes out too small; and a new schema must
    have every pattern that `MinSep` has, or what is reported as exact is only a bound.

    Attributes:
        min_sep: Smallest difference r₂ − r₁ of two rounds that one client takes part in, b.
        max_participations: Largest number of rounds that one client takes part in, k.

    Formal guarantee: every sensitivity, ρ and ε of this package is a statement about clients whose
    rounds of participation form a pattern of the schema it was computed for. It says nothing about
    a client that took part more often, or sooner again, than the schema allows.
    """

    if TYPE_CHECKING:
        # At run time a dataclass would take a property of its base for the default of the field with the same name.

        @property
        def min_sep(self) -> int: ...

        @property
        def max_participations(self) -> int: ...

    def check(self, rounds: int) -> int:
        """Returns `rounds` if a pattern with `max_participations` participations fits in, else raises.

        Raises:
            InputValueError: If `rounds` is too small; the message says what would fit.
        """
        rounds = _validate.whole("rounds", rounds)
        needed = (self.max_participations - 1) * self.min_sep + 1
        if needed > rounds:
            fits = (rounds - 1) // self.min_sep + 1
            raise InputValueError(
                f"max_participations={self.max_participations} with min_sep={self.min_sep} needs {needed} rounds, but "
                f"rounds={rounds}; at most max_participations={fits} fits."
            )
        return rounds

    def allows(self, pattern: Iterable[int]) -> bool:
        """Returns whether one client may take part in these rounds, in whatever order: whether they are a pattern of Π.

        Formal guarantee: if it does, no contributions of norm at most 1 in these rounds of n move Cx by more than
        `sensitivity` of n rounds and this schema. A round that is named twice is two contributions, and never allowed.

        Args:
            pattern: Rounds of one client, counted from 0 or from any other number.

        Example:
            >>> FixedEpoch(min_sep=4, max_participations=2).allows([0, 8])
            False

        Raises:
            InputTypeError: If a round is not a whole number.
            InputValueError: If a round is negative.
        """
        _validate.instance("pattern", pattern, Iterable, "the rounds of one client")
        return self._has(sorted(_validate.whole("round", each, at_least=0) for each in pattern))

    def patterns(self, rounds: int) -> Iterator[tuple[int, ...]]:
        """Yields every pattern within `rounds`, the empty one first. Exponential: for small n only."""
        for size in range(self.max_participations + 1):
            yield from filter(self._has, itertools.combinations(range(rounds), size))

    def _has(self, pattern: Sequence[int]) -> bool:
        """Returns whether rounds, in order, are a pattern of the schema."""
        apart = all(later - sooner >= self.min_sep for sooner, later in itertools.pairwise(pattern))
        return apart and len(pattern) <= self.max_participations


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSep(Participation):
    """At most `max_participations` (k) rounds, any two of them at least `min_sep` (b) apart.

    Separation is r₂ − r₁ ≥ b, as in Choquette-Choo et al. (2023) and McMahan et al. (2024),
    Π_{b,k} of appendix C.2. TensorFlow Privacy's tree accountant counts r₂ − r₁ − 1 instead.

    Example:
        >>> MinSep(min_sep=342, max_participations=6).max_participations
        6

    Raises:
        InputTypeError: If a field is not a whole number.
        InputValueError: If a field is below 1.
    """

    min_sep: int
    max_participations: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_sep", _validate.whole("min_sep", self.min_sep))
        object.__setattr__(self, "max_participations", _validate.whole("max_participations", self.max_participations))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedEpoch(Participation):
    """Once an epoch of `min_sep` (b) rounds, always in the same place of it, for `max_participations` (k) epochs.

    The (k, b)-participation of Choquette-Choo et al. (2023): a client's rounds are some of
    j, j + b, …, j + (k − 1)b. Clients that are shuffled anew in every epoch are no such schema: one may be last
    in an epoch and first in the next. All of these patterns are also patterns of `MinSep`.

    Example:
        >>> (0, 3) in set(FixedEpoch(min_sep=2, max_participations=2).patterns(4))
        False

    Raises:
        InputTypeError: If a field is not a whole number.
        InputValueError: If a field is below 1.
    """

    min_sep: int
    max_participations: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_sep", _validate.whole("min_sep", self.min_sep))
        object.__setattr__(self, "max_participations", _validate.whole("max_participations", self.max_participations))

    def _has(self, pattern: Sequence[int]) -> bool:
        # Three rounds of k = 2 epochs are too many, and so are two that lie further apart than k epochs reach.
        in_place = all((later - sooner) % self.min_sep == 0 for sooner, later in itertools.pairwise(pattern))
        reach = (self.max_participations - 1) * self.min_sep
        return in_place and super()._has(pattern) and (not pattern or pattern[-1] - pattern[0] <= reach)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleParticipation(Participation):
    """Each client takes part in one round at most.

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
