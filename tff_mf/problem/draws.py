"""Random choices of who takes part: repeatable for a simulation, or from the randomness of the system."""

import abc
import fractions
import os
from collections.abc import Sequence

import numpy as np

from tff_mf.base import validation

# In place of a client, where a cohort has fewer than its row has places.
NOBODY = -1
_BITS = 64
# Words that are in memory at a time.
_MOST_WORDS = 2**20

# The clients of each round, as rows of one matrix where all cohorts have one size.
Cohorts = Sequence[np.ndarray] | np.ndarray


def rows_of(cohorts: Cohorts) -> np.ndarray:
    """Returns cohorts as rows of one matrix, int32, filled with `NOBODY` at their ends.

    Example:
        >>> rows_of([np.array([3, 1]), np.array([2])])
        array([[ 3,  1],
               [ 2, -1]], dtype=int32)
    """
    rows = np.full((len(cohorts), max([1, *map(len, cohorts)])), NOBODY, np.int32)
    for row, cohort in zip(rows, cohorts, strict=True):
        row[: len(cohort)] = cohort
    return rows


class Draws(abc.ABC):
    """The choices that cohorts are made of.

    All of them are independent of each other, of earlier ones, and uniform, or as likely as they say.
    """

    @abc.abstractmethod
    def order(self, count: int) -> np.ndarray:
        """Returns the numbers below `count` in random order."""

    @abc.abstractmethod
    def chosen(self, total: int, count: int) -> np.ndarray:
        """Returns `count` different numbers below `total`."""

    @abc.abstractmethod
    def joining(self, total: int, probability: fractions.Fraction | float) -> np.ndarray:
        """Returns the numbers below `total` whose coins came up, each with this probability, or one less by 2⁻⁶⁴."""

    @abc.abstractmethod
    def places(self, clients: np.ndarray, among: int) -> np.ndarray:
        """Returns a number below `among` for each of some clients."""


class SeededDraws(Draws):
    """Choices that follow from a seed: for simulations, in which cohorts are no secret.

    Args:
        seed: The same seed gives the same choices.
    """

    def __init__(self, seed: int) -> None:
        self.generator = np.random.Generator(np.random.PCG64(validation.whole("seed", seed, at_least=0)))

    def order(self, count: int) -> np.ndarray:
        return self.generator.permutation(count)

    def chosen(self, total: int, count: int) -> np.ndarray:
        return self.generator.choice(total, count, replace=False)

    def joining(self, total: int, probability: fractions.Fraction | float) -> np.ndarray:
        # Independent coins give a binomial number, and each set of this size is equally likely.
        return self.chosen(total, self.generator.binomial(total, float(probability)))

    def places(self, clients: np.ndarray, among: int) -> np.ndarray:
        return self.generator.integers(among, size=len(clients))


class SystemDraws(Draws):
    """Choices from the randomness of the system, never the same twice: for cohorts that must be secret."""

    def words(self, count: int) -> np.ndarray:
        """Returns random 64-bit words."""
        return np.frombuffer(os.urandom(8 * count), np.uint64)

    def order(self, count: int) -> np.ndarray:
        while True:
            words = self.words(count)
            order = np.argsort(words)
            # Equal words have no random order.
            if np.all(np.diff(words[order]) > 0):
                return order

    def chosen(self, total: int, count: int) -> np.ndarray:
        return self.order(total)[:count]

    def joining(self, total: int, probability: fractions.Fraction | float) -> np.ndarray:
        # A coin is below it with probability ⌊q·2⁶⁴⌋ / 2⁶⁴, in exact arithmetic.
        below = int(fractions.Fraction(probability) * 2**_BITS)
        if below >> _BITS:
            return np.arange(total)
        starts = range(0, total, _MOST_WORDS)
        parts = [self.words(min(_MOST_WORDS, total - start)) < np.uint64(below) for start in starts]
        return np.flatnonzero(np.concatenate(parts)) if parts else np.arange(0)

    def places(self, clients: np.ndarray, among: int) -> np.ndarray:
        # Words beyond the last multiple of `among` would make small numbers more likely.
        most = np.uint64((1 << _BITS) - (1 << _BITS) % among - 1)
        words = self.words(len(clients)).copy()
        while len(beyond := np.flatnonzero(words > most)):
            words[beyond] = self.words(len(beyond))
        return (words % np.uint64(among)).astype(np.int64)
