"""BLTs whose columns are scaled: one factor for each round, and no more memory than the BLT."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import series
from tff_mf.mechanisms._mechanism import Mechanism
from tff_mf.mechanisms.blt import BLT
from tff_mf.mechanisms.recursion import Recursion


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledBLT(Mechanism):
    """C = BLT(θ, ω)·diag(d): the noise of round t is that of the BLT, divided by d_t.

    In a BLT, columns of late rounds are cut off by the end of the run, and all participations weigh the same. Scales
    change both at no cost in memory; the number of rounds is then fixed.

    Attributes:
        theta: Decay of each buffer, in (0, 1].
        omega: Scale of each buffer, at least 0.
        scales: d, above 0, one number for each round.

    Example:
        >>> ScaledBLT(theta=[0.5], omega=[0.25], scales=[1.0, 2.0, 4.0]).encoder(3)
        array([[1.   , 0.   , 0.   ],
               [0.25 , 2.   , 0.   ],
               [0.125, 0.5  , 4.   ]])
    """

    kind: ClassVar[str] = "scaled_blt"
    theta: Sequence[float]
    omega: Sequence[float]
    scales: Sequence[float]

    def __post_init__(self) -> None:
        scales = series.numbers("scales", self.scales, each="round")
        for index, value in enumerate(scales):
            if not series.SMALLEST <= value <= series.LARGEST:
                raise InputValueError(
                    f"scales[{index}]={value!r} must be at least {series.SMALLEST} and at most {series.LARGEST}."
                )
        object.__setattr__(self, "scales", scales)
        object.__setattr__(self, "theta", self.unscaled.theta)
        object.__setattr__(self, "omega", self.unscaled.omega)
        super().__post_init__()

    @functools.cached_property
    def unscaled(self) -> BLT:
        """The BLT."""
        return BLT(theta=self.theta, omega=self.omega)

    @property
    def buffers(self) -> int:
        """Number of buffers d_buf."""
        return len(self.theta)

    @property
    def max_rounds(self) -> int:
        return len(self.scales)

    def encoder(self, rounds: int) -> np.ndarray:
        return self.unscaled.encoder(self.check(rounds)) * np.array(self.scales[:rounds])

    def inverse(self, rounds: int) -> np.ndarray:
        return self.unscaled.inverse(self.check(rounds)) / np.array(self.scales[:rounds])[:, np.newaxis]

    def cast_to_float32(self) -> Self:
        names = ("theta", "omega", "scales")
        return dataclasses.replace(self, **{name: series.float32(getattr(self, name)) for name in names})

    def recursion(self) -> Recursion:
        return self.unscaled.recursion().with_scaled_columns(np.array(self.scales))
