"""Clients with long updates, and how far cohorts of them move the model."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import _cohorts
from ._probe import Probe

# A change of the model stands out from noise by so many standard deviations.
_DEVIATIONS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
    """What a cohort of identical clients adds to the model.

    Attributes:
        size: Norm of the change without noise; NaN if it is not finite.
        noise_stddev: Standard deviation of the noise in a coordinate of the change.
        dimension: Number of coordinates.
    """

    size: float
    noise_stddev: float
    dimension: int

    @property
    def stands_out(self) -> bool:
        """Whether the change is larger than noise could be."""
        variance = self.noise_stddev**2
        deviation = math.sqrt(2 * self.size**2 * variance + self.dimension * variance**2)
        return self.size**2 > _DEVIATIONS * deviation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """A client whose update is meant to be long.

    Attributes:
        example: The data that it is made of.
        scale: Factor of the data's floating-point numbers, or `None` for the data unchanged.
        factor: Factor of the model's weights.
    """

    example: Any
    scale: float | None = None
    factor: float = 1.0

    @property
    def client(self) -> Any:
        """The client's data."""
        return self.example if self.scale is None else _cohorts.scaled(self.example, self.scale)

    def move(self, probe: Probe, count: int) -> Move:
        """Returns what `count` such clients add to the model; its size is NaN if the model is not finite.

        The noise of two rounds is independent, so that the inner product of their changes is free of it on average.
        """
        cohort = [self.client] * count
        first, second = (probe.step(probe.fresh(self.factor), cohort).change for _ in range(2))
        product = float(first @ second)
        size = math.sqrt(max(0.0, product)) if math.isfinite(product) else math.nan
        noise = float(np.sqrt(np.mean((first - second) ** 2) / 2))
        return Move(size=size, noise_stddev=noise, dimension=first.size)


def attempts(clients: Sequence[Any], hostile: Any) -> Iterator[Attempt]:
    """Yields clients with longer and longer updates, from larger data or for a model with larger weights."""
    given = clients[0] if hostile is None else hostile
    if hostile is not None:
        yield Attempt(example=hostile)
    for scale in (10.0, 100.0, 1000.0) if _cohorts.scaled(given, 1.0) is not None else ():
        yield Attempt(example=given, scale=scale)
    for factor in (1.0, 10.0, 100.0):
        yield Attempt(example=given, factor=factor)
