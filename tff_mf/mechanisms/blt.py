"""Buffered linear Toeplitz matrices (BLT): C and C⁻¹ are both sums of a few decaying exponentials.

Beside BLTs: those whose columns are scaled, and sums of BLTs in closed form, at a cost that does not grow with the
rounds. Terms of these are positive; exponents are x = −log θ, which keep the digits that θ near 1 has lost.
"""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, NamedTuple, Self

import numpy as np

from tff_mf.base import matrices, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import series
from tff_mf.mechanisms._mechanism import Mechanism, OptimizedFor, ToeplitzMechanism
from tff_mf.mechanisms.grid import GridBounds, Linear
from tff_mf.mechanisms.recursion import NEW, Case, Entry, Recursion, first_line
from tff_mf.mechanisms.series import geometric_sum, weighted_geometric_sum
from tff_mf.problem.participation import MinSep

# Up to this many rounds, coefficients are summed one by one.
_DIRECT_ROUNDS = 2**20

# Whole numbers are exact in float64 up to here.
_MOST_ROUNDS = 2**53

# With at most this many, the squared sensitivity is a sum whose every term is rounded fewer than 5000 times: a
# relative error below 2⁻⁴⁰ of the sensitivity, which accounting adds.
_MOST_PARTICIPATIONS = 2**20
_MOST_BUFFERS = 2**10
_BLOCK = 2**10

# Rounding of an eigenvalue.
_ROUNDING = 1e-12

# θ, ω, rounds, minimum separation and participations: McMahan et al. (2024), appendix F.
_PRODUCTION = {
    "b100": (
        (0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191),
        (0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538),
        (2000, 100, 10),
    ),
    "b400": (
        (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
        (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
        (4000, 400, 5),
    ),
    "b1000": (
        (0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317),
        (0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523),
        (4000, 1000, 2),
    ),
}


class BLTParameters(NamedTuple):
    """Decay `theta` and scale `omega` of the buffers, each float64 `[buffers]`."""

    theta: np.ndarray
    omega: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class BLT(ToeplitzMechanism):
    """BLT(θ, ω): c₀ = 1 and c_i = Σ_j ω_j θ_j^(i−1), McMahan et al. (2024), equation 2.

    It is defined for any number of rounds, and its noise needs one row of memory per buffer.

    Attributes:
        theta: Decay of each buffer, in (0, 1].
        omega: Scale of each buffer, at least 0.

    Example:
        >>> BLT(theta=[0.5], omega=[0.25]).coefficients(4)
        array([1.    , 0.25  , 0.125 , 0.0625])
    """

    kind: ClassVar[str] = "blt"
    theta: Sequence[float]
    omega: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        theta = validation.sequence("theta", self.theta, per="buffer")
        omega = validation.sequence("omega", self.omega, per="buffer")
        if len(theta) != len(omega):
            raise InputValueError(
                f"theta has {len(theta)} values and omega has {len(omega)}: give one of each per buffer."
            )
        for index, value in enumerate(theta):
            if not series.SMALLEST <= value <= 1:
                raise InputValueError(f"theta[{index}]={value!r} must be at least {series.SMALLEST} and at most 1.")
        for index, value in enumerate(omega):
            if not 0 <= value <= series.LARGEST:
                raise InputValueError(f"omega[{index}]={value!r} must be at least 0 and at most {series.LARGEST}.")
        object.__setattr__(self, "theta", theta)
        object.__setattr__(self, "omega", omega)

    @classmethod
    def production(cls, name: str) -> Self:
        """Returns a BLT that trained production language models, by name: b100, b400 or b1000.

        The name is the minimum separation it was optimized for. Source: McMahan et al. (2024), appendix F.

        Example:
            >>> BLT.production("b400").optimized_for.participation.min_sep
            400
        """
        theta, omega, (rounds, min_sep, participations) = _PRODUCTION[
            validation.one_of("name", name, cls.production_names())
        ]
        schema = MinSep(min_sep=min_sep, max_participations=participations)
        return cls(theta=theta, omega=omega, optimized_for=OptimizedFor(rounds=rounds, participation=schema))

    @staticmethod
    def production_names() -> tuple[str, ...]:
        """Returns the names that `production` takes.

        Example:
            >>> BLT.production_names()
            ('b100', 'b400', 'b1000')
        """
        return tuple(_PRODUCTION)

    @property
    def buffers(self) -> int:
        """Number of buffers d_buf."""
        return len(self.theta)

    def inverse_parameters(self) -> BLTParameters:
        """Returns (θ̂, ω̂) with BLT(θ, ω)⁻¹ = BLT(θ̂, ω̂), in the order of decreasing θ̂.

        By equation 3 of McMahan et al. (2024) the buffers of C⁻¹ advance by diag(θ) − 1ωᵀ. Scaled
        by √ω on both sides that is the symmetric diag(θ) − √ω√ωᵀ, whose eigenvalues are θ̂ and the
        squares of whose eigenvectors' products with √ω are −ω̂. A symmetric eigenproblem stays
        accurate where decays coincide, as two of the production BLT b100 do to 3e-11; formulas
        with θ_i − θ_j in a denominator do not.
        """
        root = np.sqrt(np.asarray(self.omega))
        values, vectors = np.linalg.eigh(np.diag(self.theta) - np.outer(root, root))
        return BLTParameters(theta=values[::-1], omega=-((root @ vectors)[::-1] ** 2))

    def coefficients(self, rounds: int) -> np.ndarray:
        return _exponential_sum(BLTParameters(np.asarray(self.theta), np.asarray(self.omega)), rounds)

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        return _exponential_sum(self.inverse_parameters(), rounds)

    def cast_to_float32(self) -> Self:
        return dataclasses.replace(self, theta=series.float32(self.theta), omega=series.float32(self.omega))

    def recursion(self) -> Recursion:
        """McMahan et al. (2024), equation 3 and algorithm 3: L_t = ωᵀS, then S ← diag(θ)S + 1n_t."""
        return Recursion.linear(
            past=self.omega, after=[[(buffer, decay), (NEW, 1.0)] for buffer, decay in enumerate(self.theta)]
        )

    def grid_bounds(self) -> GridBounds:
        return Linear(self, as_stored=True)


def _exponential_sum(parameters: BLTParameters, rounds: int) -> np.ndarray:
    rounds = validation.listable(rounds)
    column = np.ones(rounds)
    powers = np.arange(rounds - 1)
    column[1:] = sum(
        omega * np.power(theta, powers) for theta, omega in zip(parameters.theta, parameters.omega, strict=True)
    )
    return column


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledBLT(Mechanism):
    """C = LtToep(c)·diag(d) for the coefficients c of a BLT.

    The noise of round t is that of the BLT, divided by d_t, so that scales cost no memory. Columns of late rounds are
    cut off by the end of the run, and all participations weigh the same in a Toeplitz matrix: scales change both, and
    fix the number of rounds.

    Attributes:
        theta: Decay θ of each buffer, in (0, 1].
        omega: Weight ω of each buffer, at least 0.
        scales: d, above 0, one number for each round.

    Example:
        >>> ScaledBLT(theta=[0.5], omega=[0.25], scales=[1.0, 2.0, 4.0]).encoder(3)
        array([[1.   , 0.   , 0.   ],
               [0.25 , 2.   , 0.   ],
               [0.125, 0.5  , 4.   ]])
    """

    kind: ClassVar[str] = "scaled_blt"
    scales: Sequence[float]
    theta: Sequence[float]
    omega: Sequence[float]

    def __post_init__(self) -> None:
        blt = BLT(theta=self.theta, omega=self.omega)
        for name in ("theta", "omega"):
            object.__setattr__(self, name, getattr(blt, name))
        scales = validation.sequence("scales", self.scales, per="round")
        for index, value in enumerate(scales):
            if not series.SMALLEST <= value <= series.LARGEST:
                raise InputValueError(
                    f"scales[{index}]={value!r} must be at least {series.SMALLEST} and at most {series.LARGEST}."
                )
        object.__setattr__(self, "scales", scales)
        super().__post_init__()

    @property
    def max_rounds(self) -> int:
        return len(self.scales)

    @property
    def blt(self) -> BLT:
        """The BLT whose columns are scaled."""
        return BLT(theta=self.theta, omega=self.omega)

    @property
    def buffers(self) -> int:
        """Number of buffers, and of rows of memory."""
        return len(self.theta)

    def unscaled_column(self, rounds: int) -> np.ndarray:
        """Returns c, float64 `[rounds]`."""
        return self.blt.coefficients(rounds)

    def unscaled_inverse_column(self, rounds: int) -> np.ndarray:
        """Returns the first column of LtToep(c)⁻¹, float64 `[rounds]`."""
        return series.quotient(np.eye(1, rounds)[0], self.unscaled_column(rounds))

    def encoder(self, rounds: int) -> np.ndarray:
        rounds = validation.dense(self.check(rounds))
        return matrices.lower_toeplitz(self.unscaled_column(rounds)) * np.array(self.scales[:rounds])

    def inverse(self, rounds: int) -> np.ndarray:
        rounds = validation.dense(self.check(rounds))
        scales = np.array(self.scales[:rounds])
        return matrices.lower_toeplitz(self.unscaled_inverse_column(rounds)) / scales[:, np.newaxis]

    def cast_to_float32(self) -> Self:
        blt = self.blt.cast_to_float32()
        return dataclasses.replace(self, theta=blt.theta, omega=blt.omega, scales=series.float32(self.scales))

    def recursion(self) -> Recursion:
        """The BLT's, whose n_t is divided by d_t; its rows of memory get n_t times d_t."""
        scales, last = np.array(self.scales), 1 + self.buffers
        # 1/d_t, whose product with s may be rounded down; ω/d_t; and d_t.
        table = np.column_stack([(1 + 2.0**-50) / scales, np.divide.outer(self.omega, scales).T, scales])
        past = tuple((buffer, Entry(1 + buffer)) for buffer in range(self.buffers))
        after = tuple(((buffer, decay), (NEW, Entry(last))) for buffer, decay in enumerate(self.theta))
        case = Case(scale=Entry(0), past=past, after=after)
        return Recursion(rows=self.buffers, cases=(case,), tables=(table,), line=first_line, rounds=len(scales))


def fits(mechanism: BLT, rounds: int, participations: int = 1) -> bool:
    """Returns whether the closed forms are needed for this many rounds, and accurate for them."""
    few = participations <= _MOST_PARTICIPATIONS and mechanism.buffers <= _MOST_BUFFERS
    return few and _DIRECT_ROUNDS < rounds <= _MOST_ROUNDS


def never_rises(mechanism: BLT) -> bool:
    """Returns whether c₀ ≥ c₁ ≥ c₂ ≥ … ≥ 0, decided without rounding.

    Since ω ≥ 0 and 0 < θ ≤ 1, that is the case if and only if c₁ = Σω is at most c₀ = 1.
    """
    return sum(map(Fraction, mechanism.omega)) <= 1


def earliest_pattern_norm(mechanism: BLT, rounds: int, min_sep: int, limit: int, *, raised: bool) -> float:
    """Returns ‖Cu‖ for the pattern 0, b, …, (k − 1)b, which must lie within `rounds`.

    From the (m+1)-th participation on and until the next, row mb + s of Cu is Σ_j ω_j θ_j^(s−1) P_mj with
    P_mj = Σ_{i≤m} θ_j^(ib): a sum of exponentials in s. Row mb itself is c₀ + Σ_j ω_j θ_j^(b−1) P_(m−1)j.

    Args:
        mechanism: The BLT.
        rounds: Number of rounds n.
        min_sep: b.
        limit: k.
        raised: Whether to replace c₀ by max(1, c₁), which makes c non-increasing.
    """
    omega = np.asarray(mechanism.omega)
    exponents = -np.log(mechanism.theta)
    head = max(1.0, float(np.nextafter(float(sum(map(Fraction, mechanism.omega))), np.inf))) if raised else 1.0
    min_sep = min(min_sep, rounds)
    bridged = omega * np.exp(-(min_sep - 1.0) * exponents)
    overlap = np.zeros((len(omega), len(omega)))
    hits = head * head
    for start in range(0, limit - 1, _BLOCK):
        until = np.arange(start + 1.0, min(start + _BLOCK, limit - 1) + 1.0)[:, np.newaxis]
        carried, _ = geometric_sum(min_sep * exponents, until)
        overlap += carried.T @ carried
        hits += float(np.sum(np.square(head + carried @ bridged)))
    last, _ = geometric_sum(min_sep * exponents, float(limit))
    added = exponents[:, np.newaxis] + exponents
    stretch, _ = geometric_sum(added, min_sep - 1.0)
    end, _ = geometric_sum(added, float(rounds - (limit - 1) * min_sep - 1))
    between = omega @ (overlap * stretch + np.multiply.outer(last, last) * end) @ omega
    return float(np.sqrt(hits + between))


def prefix_sum_errors(mechanism: BLT, rounds: int) -> tuple[float, float] | None:
    """Returns the mean and the largest squared row norm of B = A·C⁻¹ for the prefix sum A.

    It is `None` if C⁻¹ alternates in sign, where this closed form does not hold.

    The prefix sums of C⁻¹ are b_i = Σ_p β_p p^i over p ∈ {1, θ̂₁, θ̂₂, …}, with β ≥ 0. For the matrix F of diag(√(1 − θ))
    over the row √ω, FᵀF is 1 less the matrix whose eigenvalues are the θ̂ (see `BLT.inverse_parameters`): the squared
    singular values of F are the 1 − θ̂, and the squares of the last row of its left singular vectors the β. That of
    the vector with Fᵀu = 0 belongs to p = 1. Small 1 − θ̂ keep the digits that θ̂ near 1 would lose.

    Source: McMahan et al. (2024), proposition 3.2.
    """
    factor = np.vstack([np.diag(np.sqrt(1 - np.asarray(mechanism.theta))), np.sqrt(mechanism.omega)])
    left, values, _ = np.linalg.svd(factor)
    gaps = np.append(np.square(values), 0.0)
    if np.max(gaps) > 1 + _ROUNDING:
        return None
    exponents = -np.log1p(-np.minimum(gaps, np.nextafter(1, 0)))
    beta = np.square(left[-1])
    added = exponents[:, np.newaxis] + exponents
    mean = float(beta @ weighted_geometric_sum(added, float(rounds))[0] @ beta)
    return mean, float(beta @ geometric_sum(added, float(rounds))[0] @ beta)
