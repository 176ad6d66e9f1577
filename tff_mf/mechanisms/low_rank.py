"""Decoders B that are banded plus low rank: their noise needs few rows of memory."""

import dataclasses
from typing import ClassVar, Self

import numpy as np

from tff_mf.base import in_order, matrices, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms._mechanism import Mechanism
from tff_mf.mechanisms.recursion import DRAWN, NEW, Case, Entry, Recursion, first_line


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BandedPlusLowRank(Mechanism):
    """A strategy C = B⁻¹·A for prefix sums, with B = D + (L·Rᵀ below D): Denisov et al. (2022), appendix H.

    The noise of prefix sum t is a sum of the last h rows of z, weighted by D, and of r running sums of all older rows,
    weighted by L: h + r rows of memory. The noise of round t is the difference of two such sums.

    Attributes:
        diagonals: D, float64 `[h, rounds]`: entry `[i, t]` is B_{t,t−i}. The main diagonal, `[0]`, is above 0. Entries
            with t < i belong to no column and are stored as 0.
        left: L, float64 `[rounds, r]`.
        right: R, float64 `[rounds, r]`.

    Example:
        >>> BandedPlusLowRank(diagonals=[[1.0, 1.0, 1.0]], left=[[0], [0.5], [0.5]], right=[[1], [1], [0]]).decoder(3)
        array([[1. , 0. , 0. ],
               [0.5, 1. , 0. ],
               [0.5, 0.5, 1. ]])
    """

    kind: ClassVar[str] = "structured"
    diagonals: np.ndarray
    left: np.ndarray
    right: np.ndarray

    def __post_init__(self) -> None:
        diagonals = matrices.numbers("diagonals", self.diagonals)
        left, right = matrices.numbers("left", self.left), matrices.numbers("right", self.right)
        offsets, rounds = diagonals.shape
        if offsets > rounds:
            raise InputValueError(f"diagonals of shape {diagonals.shape} must be no more than the {rounds} rounds.")
        if left.shape != right.shape or len(left) != rounds:
            raise InputValueError(
                f"left of shape {left.shape} and right of shape {right.shape} must both have {rounds} rows, one per "
                "round, and the same number of columns."
            )
        smallest = int(np.argmin(diagonals[0]))
        if diagonals[0, smallest] <= 0:
            raise InputValueError(f"diagonals[0, {smallest}]={diagonals[0, smallest]} must be greater than 0.")
        for offset in range(offsets):
            diagonals[offset, :offset] = 0.0
        for name, array in (("diagonals", diagonals), ("left", left), ("right", right)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        super().__post_init__()

    @property
    def max_rounds(self) -> int:
        return len(self.left)

    def decoder(self, rounds: int) -> np.ndarray:
        """Returns B, lower-triangular, float64 `[rounds, rounds]`."""
        rounds = validation.dense(self.check(rounds))
        offsets = min(len(self.diagonals), rounds)
        decoder = np.tril(in_order.product(self.left[:rounds], self.right[:rounds].T), -offsets)
        for offset in range(offsets):
            np.fill_diagonal(decoder[offset:], self.diagonals[offset, offset:rounds])
        return decoder

    def encoder(self, rounds: int) -> np.ndarray:
        decoder = self.decoder(rounds)
        encoder = in_order.solve(decoder, np.tri(len(decoder)))
        with np.errstate(over="ignore", invalid="ignore"):
            below = np.tril(np.abs(self.left[:rounds]) @ np.abs(self.right[:rounds].T), -len(self.diagonals))
            # Of sums of r products in B, and of up to n in B·C; A⁻¹ at most doubles what they are off by.
            of_decoder = below.sum(axis=0) * max(1.0, self.left.shape[1] / rounds) + np.abs(decoder).sum(axis=0)
            products = 2 * float(np.max(of_decoder @ np.abs(encoder)))
        matrices.check_digits(self.kind, rounds, products)
        return encoder

    def inverse(self, rounds: int) -> np.ndarray:
        return np.diff(self.decoder(rounds), axis=0, prepend=0.0)

    def cast_to_float32(self) -> Self:
        """Returns the mechanism with all three fields cast to float32."""
        with np.errstate(over="ignore"):
            cast = {name: getattr(self, name).astype(np.float32) for name in ("diagonals", "left", "right")}
        return dataclasses.replace(self, **cast)

    def recursion(self) -> Recursion:
        """n_t = y_t − y_{t−1} for y = B·s·z.

        The memory is the last h − 1 rows of s·z, the newest first; the r sums Σ_{i ≤ t−h} R_i s·z_i of older rows; and
        y_{t−1}. A line has D and L of the round, negative but for the first number, and the row of R for the row of z
        that leaves the diagonals in it.
        """
        recent, rank = len(self.diagonals) - 1, self.left.shape[1]
        last = recent + rank
        leaving = np.zeros_like(self.right)
        leaving[recent:] = self.right[: len(self.right) - recent]
        table = np.hstack([self.diagonals[:1].T, -self.diagonals[1:].T, -self.left, leaving])
        oldest = recent - 1 if recent else DRAWN
        after: list[int | tuple] = [((DRAWN, 1.0),), *range(recent - 1)] if recent else []
        after += [((recent + row, 1.0), (oldest, Entry(1 + last + row))) for row in range(rank)]
        past = ((last, 1.0), *((row, Entry(1 + row)) for row in range(last)))

        case = Case(scale=Entry(0), past=past, after=(*after, ((last, 1.0), (NEW, 1.0))))
        return Recursion(rows=last + 1, cases=(case,), tables=(table,), line=first_line, rounds=self.max_rounds)
