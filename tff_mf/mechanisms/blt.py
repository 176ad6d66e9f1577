"""Buffered linear Toeplitz matrices (BLT): C and C⁻¹ are both sums of a few decaying exponentials."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import series
from tff_mf.mechanisms._mechanism import OptimizedFor, ToeplitzMechanism
from tff_mf.mechanisms.analyzed import Analyzed
from tff_mf.mechanisms.grid_recursion import GridRecursion
from tff_mf.mechanisms.recursion import NEW, Recursion
from tff_mf.problem.participation import MinSep

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
        theta = series.numbers("theta", self.theta, each="buffer")
        omega = series.numbers("omega", self.omega, each="buffer")
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

    def grid_recursion(self, *, deviation: float, largest_normal: float) -> GridRecursion:
        return Analyzed(self, deviation=deviation, largest_normal=largest_normal, as_stored=True)


def _exponential_sum(parameters: BLTParameters, rounds: int) -> np.ndarray:
    rounds = validation.listable(rounds)
    column = np.ones(rounds)
    powers = np.arange(rounds - 1)
    column[1:] = sum(
        omega * np.power(theta, powers) for theta, omega in zip(parameters.theta, parameters.omega, strict=True)
    )
    return column
