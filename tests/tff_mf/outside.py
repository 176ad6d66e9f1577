"""Mechanisms as authors outside of this package write them, right and wrong ones: each class has a kind of its own."""

import dataclasses
import itertools

import numpy as np

import tff_mf
from tff_mf.mechanisms import BandedMechanism, Recursion, ToeplitzMechanism
from tff_mf.mechanisms.recursion import NEW

_NUMBERS = itertools.count()


def float32(value):
    return float(np.float32(value))


def geometric_class(*, own=None, **methods):
    """A new class of C = LtToep(1, α, αβ, αβ², …), with some methods replaced."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Geometric(ToeplitzMechanism):
        kind = f"geometric_{next(_NUMBERS)}" if own is None else own
        alpha: float
        beta: float

        def coefficients(self, rounds):
            return np.concatenate([[1.0], self.alpha * self.beta ** np.arange(rounds - 1)])

        def inverse_coefficients(self, rounds):
            return np.concatenate([[1.0], -self.alpha * (self.beta - self.alpha) ** np.arange(rounds - 1)])

        def cast_to_float32(self):
            return dataclasses.replace(self, alpha=float32(self.alpha), beta=float32(self.beta))

    for name, method in methods.items():
        setattr(Geometric, name, method)
    return Geometric


def geometric(*, alpha=0.5, beta=0.75, **methods):
    return geometric_class(**methods)(alpha=alpha, beta=beta)


def geometric_with_a_recursion(**methods):
    """x_t = z_t − αs, then s ← βs + x_t."""
    own = lambda self: Recursion.linear(past=[self.alpha], after=[[(0, self.beta), (NEW, 1.0)]])  # noqa: E731
    return geometric(recursion=own, **methods)


def of_column(column):
    """A Toeplitz mechanism of any coefficients."""
    column = np.array(column, np.float64)
    return geometric(coefficients=lambda self, rounds: column[:rounds].copy(), max_rounds=len(column))


def any_matrix(matrix, **methods):
    """A mechanism of any lower-triangular C."""

    @dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
    class Any(tff_mf.Mechanism):
        kind = f"any_{next(_NUMBERS)}"
        matrix: np.ndarray

        def __post_init__(self):
            super().__post_init__()
            matrix = np.array(self.matrix)
            matrix.flags.writeable = False
            object.__setattr__(self, "matrix", matrix)

        @property
        def max_rounds(self):
            return len(self.matrix)

        def encoder(self, rounds):
            return self.matrix[: self.check(rounds), :rounds].copy()

        def inverse(self, rounds):
            return tff_mf.Dense(matrix=self.encoder(rounds)).inverse(rounds)

        def cast_to_float32(self):
            return dataclasses.replace(self, matrix=self.matrix.astype(np.float32).astype(np.float64))

    for name, method in methods.items():
        setattr(Any, name, method)
    return Any(matrix=np.array(matrix, dtype=np.float64))


def mixed_matrix(rounds):
    """Entries of both signs and no zeros, so that no rule for min-sep is exact."""
    generator = np.random.default_rng(4)
    return np.tril(generator.uniform(-0.5, 0.5, (rounds, rounds)), -1) + np.eye(rounds)


def with_diagonals(diagonals, *, count=3, **methods):
    """A banded mechanism of any diagonals, which are right or wrong."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Diagonals(BandedMechanism):
        kind = f"diagonals_{next(_NUMBERS)}"
        bands = count

        def diagonals(self, rounds):
            return diagonals(rounds)

        def cast_to_float32(self):
            return self

    for name, method in methods.items():
        setattr(Diagonals, name, method)
    return Diagonals()
