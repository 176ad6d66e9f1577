"""TensorFlow's Philox words and the normals of a key, without TensorFlow."""

import functools
from collections.abc import Callable

import numpy as np

from tff_mf.base import validation
from tff_mf.numerics.normals._arithmetic import WORDS_OF_A_PIECE, Cover, descend

# Coordinates that are drawn together. It decides which words a coordinate gets, and so is part of the algorithm.
PART = 2**18
# A counter of 64 bits has one range for the first words, and one for each level.
LEVEL_BITS = 61
# A block of the generator, which is one step of its counter, has two words of 64 bits.
WORDS_OF_A_BLOCK = 2
# Blocks that a level reserves for each coordinate.
BLOCKS_OF_A_PIECE = -(-WORDS_OF_A_PIECE // WORDS_OF_A_BLOCK)

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_INCREMENTS = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_CACHED = 2**13
# Words that are drawn, and become normals, at once: more take longer, as they leave the cache.
_COVERED = 2**15
# TensorFlow's own constants, which turn a seed into a key and a counter.
_SCRAMBLING_KEY = np.array([0x3EC8F720, 0x02461E29], np.uint64)


def draw(key: np.ndarray, dimension: int) -> np.ndarray:
    """Returns the standard normals of a key, the same as from `tff_mf.noise.tensorflow` in TensorFlow, bit for bit.

    Formal guarantee: as for `from_words`, with the words of Philox 4x32-10 in place of random ones. No word is used
    twice: first words and levels have disjoint ranges of the counter.

    Args:
        key: int64 `[2]`.
        dimension: Number of coordinates.

    Returns:
        float64 `[dimension]`.

    Raises:
        InputValueError: If `dimension` is below 1.

    Example:
        >>> draw(np.array([1, 2]), 3).shape
        (3,)
    """
    row = np.empty(validation.whole("dimension", dimension))
    write(functools.partial(words, key), 0, row, part=PART)
    return row


def write(drawn: Callable[[int, int], np.ndarray], begin: int, out: np.ndarray, *, part: int) -> None:
    """Writes the standard normals of coordinates, for any generator with a counter.

    Formal guarantee: as for `from_words` for the words that `drawn` returns. No word is used twice, neither in a call
    nor in two calls without a coordinate in common. A coordinate's normal depends on `part`, and not on where calls
    begin and end.

    Args:
        drawn: Returns words from a block of the counter on, int64 `[count]`, two in a block: `words` of a key. The
            next call may overwrite them.
        begin: First coordinate, a multiple of `part`.
        out: The normals, float64 `[count]`, or float32.
        part: Coordinates that draw words of their levels together, even.

    Example:
        >>> key, row = np.array([1, 2]), np.empty(3)
        >>> write(functools.partial(words, key), 0, row, part=PART)
        >>> bool(np.all(row == draw(key, 3)))
        True
    """
    cover, places, signs = Cover(min(_COVERED, len(out))), [], []
    for first in range(0, len(out), _COVERED):
        row = out[first : first + _COVERED]
        left, negative = cover.write(drawn((begin + first) // WORDS_OF_A_BLOCK, len(row)), row)
        places.append(first + left)
        signs.append(negative)

    def more(level: int, left: np.ndarray) -> np.ndarray:
        counts = np.bincount(left // part)
        words = np.empty((WORDS_OF_A_PIECE, len(left)), np.int64)
        end = 0
        for index, count in enumerate(counts):
            if count:
                block = ((level + 1) << LEVEL_BITS) + (begin + index * part) * BLOCKS_OF_A_PIECE
                end += count
                words[:, end - count : end] = drawn(block, WORDS_OF_A_PIECE * int(count)).reshape(WORDS_OF_A_PIECE, -1)
        return words

    descend(out, np.concatenate(places), np.concatenate(signs), more)


def words(key: np.ndarray, block: int, count: int) -> np.ndarray:
    """Returns words of TensorFlow's stateless Philox generator for a seed, from a block of its counter on.

    Source: Salmon et al. (2011), Philox 4x32-10, and TensorFlow's `StatelessRandomGetKeyCounter`.

    Args:
        key: The seed, int64 `[2]`.
        block: First value of the lower half of the counter.
        count: Number of words.

    Returns:
        int64 `[count]`.

    Example:
        >>> words(np.array([1, 2]), 5, 2).tolist() == words(np.array([1, 2]), 4, 4)[2:].tolist()
        True
    """
    seed = np.asarray(key, np.int64).view(np.uint64)
    mixed = _philox(_SCRAMBLING_KEY, np.stack([seed & _LOW, seed >> _HALF], axis=-1).reshape(4, 1))[:, 0]
    blocks = np.uint64(block) + np.arange(-(-count // WORDS_OF_A_BLOCK), dtype=np.uint64)
    high = np.broadcast_to(mixed[2:, np.newaxis], (2, len(blocks)))
    output = _philox(mixed[:2], np.concatenate([[blocks & _LOW, blocks >> _HALF], high]))
    joined = output[0::2] | output[1::2] << _HALF
    return joined.T.reshape(-1)[:count].view(np.int64)


def _philox(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """Returns the outputs of ten rounds; key uint64 `[2]` and counter uint64 `[4, count]`, with 32 bits each."""
    outputs = np.array(counter, np.uint64)
    # Parts that stay in the cache.
    for begin in range(0, outputs.shape[1], _CACHED):
        _ten_rounds(key, *outputs[:, begin : begin + _CACHED])
    return outputs


def _ten_rounds(key: np.ndarray, one: np.ndarray, two: np.ndarray, three: np.ndarray, four: np.ndarray) -> None:
    left, right = np.empty_like(one), np.empty_like(one)
    for _ in range(10):
        np.multiply(one, _MULTIPLIERS[0], out=left)
        np.multiply(three, _MULTIPLIERS[1], out=right)
        for wide, other, word, out, low in ((right, two, key[0], one, two), (left, four, key[1], three, four)):
            np.right_shift(wide, _HALF, out=out)
            np.bitwise_xor(out, other, out=out)
            np.bitwise_xor(out, word, out=out)
            np.bitwise_and(wide, _LOW, out=low)
        key = (key + _INCREMENTS) & _LOW
