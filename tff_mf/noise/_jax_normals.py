"""Standard normals of a key in JAX: in float32, and exact ones as in `tff_mf.numerics.normals`, bit for bit.

The generator is Philox 4x32-10 in integers, as TensorFlow has it: no key of `jax.random` has 128 bits.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tff_mf.numerics import normals

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_INCREMENTS = 0x9E3779B9, 0xBB67AE85
# TensorFlow's own constants, which turn a seed into a key and a counter.
_SCRAMBLING_KEY = 0x3EC8F720, 0x02461E29
# Coordinates that are computed together, so that they stay in the cache.
_PART = 2**16
# A part of this many coordinates leaves 0.6 % to the levels; more than twice that is drawn with probability e⁻⁵⁰⁰.
_LEFT_OF_A_PART = 2 * 3 * normals.PART // 2**normals.INDEX_BITS

Halves = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


@functools.partial(jax.jit, static_argnums=1)
def standard_normal(key: jax.Array, dimension: int) -> jax.Array:
    """Returns the standard Gaussian row of a key, float32 `[dimension]`, by Philox and Box and Muller's method.

    Args:
        key: uint32 `[4]`.
        dimension: Number of coordinates.

    Example:
        >>> standard_normal(jnp.array([1, 0, 2, 0], jnp.uint32), 3).shape
        (3,)
    """
    generator = _Generator(key)

    def part(begin: jax.Array, size: int) -> jax.Array:
        block = begin.astype(jnp.uint32) // 4 + jnp.arange(-(-size // 4), dtype=jnp.uint32)
        drawn = generator.blocks(block, jnp.zeros_like(block))
        pairs = [_joined(*_box_muller(*drawn[:2])), _joined(*_box_muller(*drawn[2:]))]
        with jax.enable_x64(True):
            return jax.lax.bitcast_convert_type(jnp.stack(pairs, axis=1), jnp.float32).reshape(-1)[:size]

    return _by_parts(part, dimension, _PART, jnp.float32)


@functools.partial(jax.jit, static_argnums=1)
def exact_normal(key: jax.Array, dimension: int) -> jax.Array:
    """Returns the standard normals of a key, float64 `[dimension]`: the same as `tff_mf.numerics.normals.draw` gives.

    Formal guarantee: as for `tff_mf.numerics.normals.draw`, since all bits are equal: no operation adds a product.

    Args:
        key: uint32 `[4]`.
        dimension: Number of coordinates.
    """
    generator, tables = _Generator(key), normals.tables()
    part = functools.partial(_exact_part, generator, tables)
    return _by_parts(part, dimension, normals.PART, jnp.float64)


def _by_parts(part: Callable[[jax.Array, int], jax.Array], dimension: int, size: int, number: Any) -> jax.Array:
    """Returns the row whose coordinates from `begin` on are `part(begin, size)`, part by part."""
    whole, rest = divmod(dimension, size)
    counter = jnp.uint64 if jax.config.read("jax_enable_x64") else jnp.uint32

    def write(index: jax.Array, row: jax.Array) -> jax.Array:
        begin = index.astype(counter) * counter(size)
        return jax.lax.dynamic_update_slice(row, part(begin, size), [begin])

    row = jnp.zeros([dimension], number)
    if whole:
        row = jax.lax.fori_loop(0, whole, write, row)
    begin = whole * size
    return jax.lax.dynamic_update_slice(row, part(jnp.asarray(begin, counter), rest), [begin]) if rest else row


class _Generator:
    """TensorFlow's Philox generator of a key, which reads blocks of four words of 32 bits from any place on."""

    def __init__(self, key: jax.Array) -> None:
        scrambling = [jnp.uint32(word) for word in _SCRAMBLING_KEY]
        mixed = _philox(scrambling, tuple(key))
        self._key, self._high = mixed[:2], mixed[2:]

    def blocks(self, low: jax.Array, high: jax.Array) -> Halves:
        """Returns the words of blocks whose numbers have these halves, uint32 `[count]` each."""
        return _philox(self._key, (low, high, *(jnp.broadcast_to(half, low.shape) for half in self._high)))

    def words(self, block: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the two int64 words of blocks, uint64 `[count]`."""
        drawn = self.blocks(block.astype(jnp.uint32), (block >> 32).astype(jnp.uint32))
        first, second = (drawn[at].astype(jnp.uint64) | drawn[at + 1].astype(jnp.uint64) << 32 for at in (0, 2))
        return jax.lax.bitcast_convert_type(first, jnp.int64), jax.lax.bitcast_convert_type(second, jnp.int64)


def _philox(key: tuple[jax.Array, ...] | list[jax.Array], counter: Halves) -> Halves:
    """Returns the outputs of ten rounds. Source: Salmon et al. (2011)."""

    def one_round(_: int, carried: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        (first, second), (one, two, three, four) = carried[:2], carried[2:]
        left, right = _product(one, _MULTIPLIERS[0]), _product(three, _MULTIPLIERS[1])
        mixed = right[0] ^ two ^ first, right[1], left[0] ^ four ^ second, left[1]
        return (first + jnp.uint32(_INCREMENTS[0]), second + jnp.uint32(_INCREMENTS[1]), *mixed)

    # A loop: four outputs of one expression would be computed four times.
    return jax.lax.fori_loop(0, 10, one_round, (*key, *counter), unroll=2)[2:]


def _product(value: jax.Array, factor: int) -> tuple[jax.Array, jax.Array]:
    """Returns the upper and the lower half of a product of 32 bits each."""
    with jax.enable_x64(True):
        wide = value.astype(jnp.uint64) * jnp.uint64(factor)
        return (wide >> 32).astype(jnp.uint32), wide.astype(jnp.uint32)


def _joined(first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns pairs of float32 as numbers of 64 bits: compilers order single ones one by one, which takes longer."""
    with jax.enable_x64(True):
        low, high = (jax.lax.bitcast_convert_type(row, jnp.uint32).astype(jnp.uint64) for row in (first, second))
        return low | high << 32


def _box_muller(radius: jax.Array, angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    uniform = (radius & jnp.uint32(2**23 - 1)).astype(jnp.float32) * 2.0**-23
    length = jnp.sqrt(-2 * jnp.log(jnp.maximum(uniform, jnp.float32(1e-7))))
    sine, cosine = _sine_and_cosine(angle & jnp.uint32(2**23 - 1))
    return sine * length, cosine * length


def _sine_and_cosine(turned: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns sine and cosine of angles in units of 2⁻²³ turns, within 2⁻²³ and faster than a compiler's.

    The nearest quarter is taken away in integers; for the rest, at most π/4, Taylor's series are cut off at 2⁻²⁵.
    """
    quarter = turned + jnp.uint32(2**20) >> 21
    rest = (turned - (quarter << 21)).astype(jnp.int32).astype(jnp.float32) * jnp.float32(2 * np.pi * 2.0**-23)
    square = rest * rest
    sine = rest * (1 + square * (-1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square * (1 / 362880)))))
    cosine = 1 + square * (-1 / 2 + square * (1 / 24 + square * (-1 / 720 + square * (1 / 40320))))
    sine, cosine = (jnp.where(quarter % 2 == 1, *pair) for pair in ((cosine, sine), (sine, cosine)))
    return jnp.where(quarter & 2 != 0, -sine, sine), jnp.where(quarter + 1 & 2 != 0, -cosine, cosine)


def _exact_part(generator: _Generator, tables: normals.Tables, begin: jax.Array, size: int) -> jax.Array:
    """Returns the normals of the coordinates from `begin` on, float64 `[size]`."""
    begin = begin.astype(jnp.uint64)
    block = begin // normals.WORDS_OF_A_BLOCK + jnp.arange(-(-size // normals.WORDS_OF_A_BLOCK), dtype=jnp.uint64)
    words = jnp.stack(generator.words(block), axis=1).reshape(-1)[:size]
    index = words & (2**normals.INDEX_BITS - 1)
    covered = words.astype(jnp.float64) * jnp.asarray(tables.scales)[index]
    is_left = index >= len(tables.layers)

    def with_room(room: int) -> jax.Array:
        """Returns the normals if at most `room` words are left to the levels."""
        places = jnp.flatnonzero(is_left, size=room, fill_value=size)
        magnitude = _of_levels(generator, tables, begin, places < size)
        signed = jnp.where(words[places] < 0, -magnitude, magnitude)
        return covered.at[places].set(signed, mode="drop")

    room = min(size, _LEFT_OF_A_PART)
    if room == size:
        return with_room(size)
    return jax.lax.cond(is_left.sum() <= room, lambda: with_room(room), lambda: with_room(size))


def _of_levels(generator: _Generator, tables: normals.Tables, begin: jax.Array, pending: jax.Array) -> jax.Array:
    """Returns |z| of the words that no layer covers, level by level: see `numerics.normals._arithmetic`."""
    longest = max(map(len, tables.edges))
    edges = jnp.asarray(np.stack([np.pad(row, (0, longest - len(row)), "edge") for row in tables.edges]))
    masses = [len(row) for row in tables.cumulative]
    cumulative = jnp.asarray(
        np.stack([np.pad(row, (0, max(masses) - len(row)), constant_values=2**63 - 1) for row in tables.cumulative])
    )
    ends = jnp.asarray([len(row) - 1 for row in tables.edges])

    def one_level(carried: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        level, pending, magnitudes = carried
        # Words of the pending ones follow each other, so that their places depend on how many there are.
        place, count = jnp.cumsum(pending) - 1, pending.sum()
        flat = (jnp.arange(normals.WORDS_OF_A_PIECE)[:, np.newaxis] * count + place).astype(jnp.uint64)
        block = (level.astype(jnp.uint64) + 1 << normals.LEVEL_BITS) + begin * normals.BLOCKS_OF_A_PIECE + flat // 2
        words = jnp.where(flat % 2 == 0, *generator.words(block))
        item = jnp.searchsorted(cumulative[level], words[0], side="right")
        item = jnp.minimum(item, jnp.asarray(masses)[level])
        piece, statistic = item // normals.STATISTICS, item % normals.STATISTICS
        chosen = jnp.take_along_axis(jnp.sort(words[1:], axis=0), statistic[np.newaxis], axis=0)[0]
        uniform = (chosen >> 64 - normals.UNIFORM_BITS) + 2 ** (normals.UNIFORM_BITS - 1)
        first = edges[level, piece]
        length = edges[level, jnp.minimum(piece + 1, ends[level])] - first
        offset = length * uniform >> normals.EDGE_BITS + normals.UNIFORM_BITS - normals.POSITION_BITS
        position = (first << normals.POSITION_BITS - normals.EDGE_BITS) + offset
        magnitudes = jnp.where(pending, position.astype(jnp.float64) * 2.0**-normals.POSITION_BITS, magnitudes)
        return level + 1, pending & (item == jnp.asarray(masses)[level]), magnitudes

    start = jnp.zeros([], jnp.int64), pending, jnp.zeros(pending.shape)
    return jax.lax.while_loop(lambda carried: (carried[0] < tables.levels) & carried[1].any(), one_level, start)[2]
