"""From random words to normals, in integers up to one conversion and one product, by tables.

The tables have layers under the density of |Z|, and pieces of what the layers leave uncovered.
"""

import dataclasses
import functools
import importlib.resources
import itertools
from collections.abc import Callable

import numpy as np

# 2⁻²⁰ is the unit of all edges: 24 bits suffice up to 16.
EDGE_BITS = 20
INDEX_BITS = 9
# A piece takes one of the six order statistics of as many uniforms.
STATISTICS = 6
# Bits of a uniform in a piece, which has at most 15: the product fits into 63.
UNIFORM_BITS = 48
# Positions in a piece are integers in units of 2⁻⁵⁹.
POSITION_BITS = 59
WORDS_OF_A_PIECE = 1 + STATISTICS


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


def from_words(words: np.ndarray, more: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Returns one standard normal for each word.

    Formal guarantee: if all words are independent and uniform over the 64-bit integers, the results are independent,
    and the probability of every cell equals a normal's up to a factor that `rounding_error` states. No operation
    adds a product, so that processors, compilers and TensorFlow all give the same bits.

    Args:
        words: int64 `[dimension]`.
        more: Returns words that were not used before, int64 `[7, count]`, for a level (0, 1, …) and a count. Level 0
            is needed by 0.6 % of the words, the next by one in 10⁹.

    Returns:
        float64 `[dimension]`.

    Example:
        >>> words = np.array([2**62 + 100])
        >>> normals = from_words(words, lambda level, count: np.zeros([7, count], np.int64))
        >>> bool(normals[0] == tables().scales[100] * 2.0**62)
        True
    """
    normals = np.empty(len(words))
    left, negative = Cover(len(words)).write(words, normals)
    descend(normals, left, negative, lambda level, pending: more(level, len(pending)))
    return normals


class Cover:
    """Writes the normals of words that a layer covers, into arrays that are used again: new ones take longer.

    Args:
        size: Number of words of a call, at most.
    """

    def __init__(self, size: int) -> None:
        table = tables()
        self._scales, self._layers = table.scales, len(table.layers)
        self._index, self._normals, self._factors = np.empty(size, np.int64), np.empty(size), np.empty(size)
        self._is_zero = np.empty(size, bool)

    def write(self, words: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Writes the normals, and returns the places that no layer covers, and which of them are negative.

        Example:
            >>> words, out = np.array([2**62 + 100, -1]), np.empty(2)
            >>> Cover(2).write(words, out), bool(out[0] == tables().scales[100] * 2.0**62)
            ((array([1]), array([ True])), True)
        """
        size = len(words)
        index, normals, factors = self._index[:size], self._normals[:size], self._factors[:size]
        np.bitwise_and(words, 2**INDEX_BITS - 1, out=index)
        np.copyto(normals, words)
        np.take(self._scales, index, out=factors, mode="clip")
        np.multiply(normals, factors, out=normals)
        np.copyto(out, normals, casting="same_kind")
        # Fewer than one in a hundred: also, once in 2⁶⁴, the word 0.
        left = np.flatnonzero(np.equal(out, 0, out=self._is_zero[:size]))
        left = left[index[left] >= self._layers]
        return left, words[left] < 0


def descend(
    normals: np.ndarray,
    left: np.ndarray,
    negative: np.ndarray,
    more: Callable[[int, np.ndarray], np.ndarray],
) -> None:
    """Writes the normals of the places that no layer covers, of many parts at once: there are few in each.

    Args:
        normals: Where they are written.
        left: The places.
        negative: Which of the normals are negative.
        more: Returns words, int64 `[7, count]`, for a level and the places that reach it.
    """
    table = tables()
    for level in range(table.levels):
        if not left.size:
            break
        magnitude, descends = _of_pieces(more(level, left), table, level)
        normals[left] = np.where(negative, -magnitude, magnitude)
        left, negative = left[descends], negative[descends]


def _of_pieces(words: np.ndarray, table: Tables, level: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns |z| of what no layer covers, float64 `[count]`, and whether it is left to the next level.

    It is then the end of the level, which is the result if there is no other level.
    """
    edges, cumulative = table.edges[level], table.cumulative[level]
    # In order, searches are several times as fast.
    item, order = np.empty(words.shape[1], np.int64), np.argsort(words[0])
    item[order] = np.searchsorted(cumulative, words[0, order], side="right")
    piece, statistic = item // STATISTICS, item % STATISTICS
    ordered = np.sort(words[1:], axis=0)[statistic, np.arange(words.shape[1])]
    uniform = (ordered >> (64 - UNIFORM_BITS)) + 2 ** (UNIFORM_BITS - 1)
    begin, end = edges[piece], edges[np.minimum(piece + 1, len(edges) - 1)]
    offset = ((end - begin) * uniform) >> (EDGE_BITS + UNIFORM_BITS - POSITION_BITS)
    position = (begin << (POSITION_BITS - EDGE_BITS)) + offset
    return np.ldexp(position.astype(np.float64), -POSITION_BITS), item == len(cumulative)
