"""Tables of the sampler: layers under the density of |Z|, and pieces of what the layers leave uncovered."""

import dataclasses
import functools
import importlib.resources
import itertools

import numpy as np

# 2⁻²⁰ is the unit of all edges: 24 bits suffice up to 16.
EDGE_BITS = 20
INDEX_BITS = 9
# A piece takes one of the six order statistics of as many uniforms.
STATISTICS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tables:
    """Integers that define the law of the sampler, all of them exact.

    Attributes:
        layers: Half the width of each layer in units of 2⁻²⁰, decreasing, uint32 `[509]`. Each layer has probability
            2⁻⁹.
        edges: By level, the edges of its pieces in units of 2⁻²⁰, int64 `[pieces + 1]`.
        cumulative: By level, −2⁶³ plus the sum of the first i + 1 probabilities in units of 2⁻⁶⁴, int64 `[6·pieces]`:
            for each piece, one for each order statistic. What is missing to 2⁶³ is the probability to descend to the
            next level, or, at the last, to lie beyond it.
    """

    layers: np.ndarray
    edges: tuple[np.ndarray, ...]
    cumulative: tuple[np.ndarray, ...]

    @property
    def levels(self) -> int:
        """Number of levels."""
        return len(self.edges)

    @property
    def scales(self) -> np.ndarray:
        """What a word is multiplied by, by its lowest 9 bits: 2⁻⁶³ times the layer, or 0; float64 `[512]`, exact."""
        scales = np.zeros(2**INDEX_BITS)
        scales[: len(self.layers)] = np.ldexp(self.layers.astype(np.float64), -63 - EDGE_BITS)
        return scales

    def masses(self, level: int) -> list[int]:
        """Returns the probabilities at a level in units of 2⁻⁶⁴, the last one for descending: they sum to 2⁶⁴."""
        sums = [-(2**63), *self.cumulative[level].tolist(), 2**63]
        return [after - before for before, after in itertools.pairwise(sums)]


@functools.cache
def tables() -> Tables:
    """Returns the tables of this package, made by benchmarks/normal_tables.py.

    Example:
        >>> len(tables().layers), tables().levels
        (509, 6)
    """
    with (
        importlib.resources.files("tff_mf.numerics.normals").joinpath("tables.npz").open("rb") as file,
        np.load(file) as arrays,
    ):
        levels = range(sum(name.startswith("edges_") for name in arrays.files))
        return Tables(
            layers=arrays["layers"],
            edges=tuple(arrays[f"edges_{level}"].astype(np.int64) for level in levels),
            cumulative=tuple(arrays[f"cumulative_{level}"] for level in levels),
        )
