"""What a round computes: weighted sums of the rows of memory and of the new row, the same in floats and on a grid."""

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np

# Sources of a sum beside the rows of memory, which are 0, 1, …, and the products after them.
NEW, PAST, DRAWN = -1, -2, -3

# Pairs of a source and its weight, added up in this order.
Terms = Sequence[tuple[int, float]]

THE_NEW_ROW: Terms = ((NEW, 1.0),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """Several weighted sums of the same rows, as one matrix product.

    Attributes:
        weights: `[sums, rows]`.
        rows: The rows of memory.
    """

    weights: np.ndarray
    rows: Sequence[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Round t: the new row n_t = scale·s·z_t − L_t (on a grid: rounded), and the memory after it.

    Attributes:
        scale: 1 / C_tt.
        past: Terms of L_t: of rows of memory and of sums of the product.
        after: For each row of memory after the round: the number of a row that stays as it is, or the terms of a new
            one.
        product: Its sums are sources: the first one has the number of rows of memory.
        drawn_again: Rounds of which s·z is drawn again, and their weights in −L_t.
    """

    scale: float = 1.0
    past: Terms = ()
    after: tuple[int | Terms, ...] = ()
    product: Product | None = None
    drawn_again: Sequence[tuple[int, float]] = ()


class Steps(abc.ABC):
    """The rounds of a mechanism."""

    # Type of a row of memory that is a copy of n_t, on a grid.
    stored = "float64"

    @property
    @abc.abstractmethod
    def row_count(self) -> int:
        """Number of rows of memory; they are zero before round 0."""

    @abc.abstractmethod
    def step(self, done: int) -> Step:
        """Returns what the round after `done` rounds computes."""

    def sums(self, done: int) -> int:
        """Returns how many of the rows, the first ones, are sums and no copies of n_t."""
        del done
        return 0

    def rows_in_use(self, done: int) -> int:
        """Returns how many rows of memory are in use after `done` rounds: not secret."""
        return self.row_count if done else 0


class IdentitySteps(Steps):
    """n_t = s·z_t, as C = I."""

    @property
    def row_count(self) -> int:
        return 0

    def step(self, done: int) -> Step:
        return Step()
