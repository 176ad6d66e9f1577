"""Banded inverses whose columns are scaled."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from tff_mf.mechanisms import series
from tff_mf.mechanisms.banded_inverse import BandedInverse
from tff_mf.mechanisms.recursion import Recursion
from tff_mf.mechanisms.scaled_columns import ScaledColumns


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledInverse(ScaledColumns):
    """C⁻¹ = diag(d)⁻¹·LtToep(e_0, …, e_{b̂−1}, 0, 0, …): the noise of `BandedInverse`, divided by d_t in round t.

    As there, rows of z are drawn again, and no memory grows with the model.

    Attributes:
        inverse_column: e, as of `BandedInverse`.
        scales: d, above 0, one number for each round.

    Example:
        >>> ScaledInverse(inverse_column=[1.0, -0.5], scales=[1.0, 2.0, 4.0]).encoder(3)
        array([[1.  , 0.  , 0.  ],
               [0.5 , 2.  , 0.  ],
               [0.25, 1.  , 4.  ]])
    """

    kind: ClassVar[str] = "scaled_inverse"
    inverse_column: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "inverse_column", series.checked("inverse_column", self.inverse_column))

    @property
    def _unscaled(self) -> BandedInverse:
        return BandedInverse(inverse_column=self.inverse_column)

    def unscaled_column(self, rounds: int) -> np.ndarray:
        return self._unscaled.coefficients(rounds)

    def unscaled_inverse_column(self, rounds: int) -> np.ndarray:
        return self._unscaled.inverse_coefficients(rounds)

    def cast_to_float32(self) -> Self:
        return dataclasses.replace(
            self, inverse_column=series.float32(self.inverse_column), scales=series.float32(self.scales)
        )

    def recursion(self) -> Recursion:
        return self._unscaled.recursion().with_scaled_columns(np.array(self.scales))
