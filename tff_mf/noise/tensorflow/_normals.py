"""Standard normals of a key in TensorFlow: in float32, and exact ones as in `tff_mf.numerics.normals`, bit for bit."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tff_mf.numerics import normals

_PHILOX = 1
# Knuth, volume 3, section 5.3.4.
_NETWORK = ((1, 2), (4, 5), (0, 2), (3, 5), (0, 1), (3, 4), (2, 5), (0, 3), (1, 4), (2, 4), (1, 3), (2, 3))

# Gets the normals of a part, float64 `[size]`, and its bounds; returns one tensor `[size]` for each dtype.
UsePart = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, ...]]


def standard_normal(key: tf.Tensor, dimension: int) -> tf.Tensor:
    """Returns the standard Gaussian row of a key, float32 `[dimension]`, by Philox."""
    return tf.random.stateless_normal([dimension], seed=key, dtype=tf.float32, alg="philox")


def exact_normal(key: tf.Tensor, dimension: int) -> tf.Tensor:
    """Returns the standard normals of a key, float64 `[dimension]`: the same as `tff_mf.numerics.normals.draw` gives.

    Formal guarantee: coordinates are independent, and the probability of every cell is that of a normal up to the
    factor of `numerics.normals.rounding_error`, if Philox's words are independent and uniform
    (docs/proofs.md). That is about values that are rounded to a grid, not about the float64 values
    themselves, which give clients away. The graph optimizer does not change a bit: no operation adds a product. XLA
    refuses to compile the sampler.

    Args:
        key: int64 `[2]`.
        dimension: Number of coordinates.

    Example:
        >>> key = tf.constant([1, 2], tf.int64)
        >>> bool(np.all(exact_normal(key, 1000) == normals.draw(key.numpy(), 1000)))
        True
    """
    return in_parts(key, dimension, lambda part, begin, end: (part,), [tf.float64])[0]


def in_parts(key: tf.Tensor, dimension: int, use: UsePart, dtypes: list[tf.DType]) -> list[tf.Tensor]:
    """Returns what `use` makes of the normals of a key, one part after another, so that they stay in the cache.

    Args:
        key: int64 `[2]`.
        dimension: Number of coordinates.
        use: Gets the normals of the coordinates from `begin` to `end`, float64, with `begin` and `end`, int32 `[]`;
            returns as many tensors `[end - begin]` as there are `dtypes`.
        dtypes: Types of the results.

    Returns:
        One tensor `[dimension]` for each type.

    Example:
        >>> def rounded(part, begin, end):
        ...     return (tf.cast(tf.floor(1024 * part + 0.5), tf.int64),)
        >>> in_parts(tf.constant([1, 2], tf.int64), 1000, rounded, [tf.int64])[0].shape
        TensorShape([1000])
    """
    constants, generator = _Constants(normals.tables()), _Generator(key)
    return by_parts(
        dimension, normals.PART, lambda begin, end: use(_part(constants, generator, begin, end), begin, end), dtypes
    )


def by_parts(
    dimension: int, size: int, use: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Tensor]], dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """Returns the rows whose coordinates from `begin` to `end` are what `use` returns, part by part of one size."""
    count = -(-dimension // size)
    if count == 1:
        return [tf.ensure_shape(row, [dimension]) for row in use(tf.constant(0), tf.constant(dimension))]

    def one_part(index: tf.Tensor, arrays: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
        begin = index * size
        rows = use(begin, tf.minimum(begin + size, dimension))
        return index + 1, [array.write(index, row) for array, row in zip(arrays, rows, strict=True)]

    arrays = [tf.TensorArray(dtype, count, infer_shape=False, element_shape=[None]) for dtype in dtypes]
    # Two: what one part needs is read while another is computed.
    _, arrays = tf.while_loop(lambda index, _: index < count, one_part, [tf.constant(0), arrays], parallel_iterations=2)
    return [tf.ensure_shape(array.concat(), [dimension]) for array in arrays]


class _Constants:
    """The tables as tensors, levels one after another."""

    def __init__(self, table: normals.Tables) -> None:
        self.covered = len(table.layers)
        self.levels = table.levels
        self.scales = tf.constant(table.scales)
        self.edges = tf.constant(np.concatenate(table.edges))
        self.cumulative = tf.constant(np.concatenate(table.cumulative))
        self.first_edge = tf.constant(np.cumsum([0, *map(len, table.edges)]))
        self.first_mass = tf.constant(np.cumsum([0, *map(len, table.cumulative)]))


class _Generator:
    """TensorFlow's Philox generator of a key, which reads words from any block on."""

    def __init__(self, key: tf.Tensor) -> None:
        self._key, self._counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=key)

    def words(self, block: tf.Tensor, shape: list[tf.Tensor | int]) -> tf.Tensor:
        """Returns int64 words of a shape; `block`, int64 `[]`, is read as unsigned."""
        counter = self._counter + tf.stack([tf.cast(block, tf.uint64), tf.zeros([], tf.uint64)])
        return tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=shape, key=self._key, counter=counter, alg=_PHILOX, dtype=tf.int64
        )


def _part(constants: _Constants, generator: _Generator, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Returns the normals of the coordinates from `begin` to `end`, float64."""
    first = tf.cast(begin, tf.int64)
    words = generator.words(first // normals.WORDS_OF_A_BLOCK, [end - begin])
    covered, is_left = _covered(words, constants)
    left = tf.where(is_left)

    def one_level(level: tf.Tensor, pending: tf.Tensor, magnitudes: tf.Tensor) -> tuple[tf.Tensor, ...]:
        block = tf.bitwise.left_shift(level + 1, normals.LEVEL_BITS) + first * normals.BLOCKS_OF_A_PIECE
        drawn = generator.words(block, [normals.WORDS_OF_A_PIECE, tf.shape(pending)[0]])
        drawn_magnitudes, descends = _of_pieces(drawn, constants, level)
        magnitudes = tf.tensor_scatter_nd_update(magnitudes, pending, drawn_magnitudes)
        return level + 1, tf.boolean_mask(pending, descends), magnitudes

    count = tf.shape(left, tf.int64)[0]
    _, _, magnitudes = tf.while_loop(
        lambda level, pending, _: (level < constants.levels) & (tf.size(pending) > 0),
        one_level,
        [tf.zeros([], tf.int64), tf.range(count)[:, tf.newaxis], tf.zeros([count], tf.float64)],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 1]), tf.TensorShape([None])],
        parallel_iterations=1,
    )
    signed = tf.where(tf.gather_nd(words, left) < 0, -magnitudes, magnitudes)
    return tf.tensor_scatter_nd_update(covered, left, signed)


def _covered(words: tf.Tensor, constants: _Constants) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the normals of words, and which of them no layer covers: these are 0."""
    index = tf.bitwise.bitwise_and(words, 2**normals.INDEX_BITS - 1)
    # Faster than `tf.gather`, which copies single numbers as if they were slices.
    scales = tf.gather_nd(constants.scales, index[:, tf.newaxis])
    return tf.cast(words, tf.float64) * scales, index >= constants.covered


def _of_pieces(words: tf.Tensor, constants: _Constants, level: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns |z| of what no layer covers, and whether it is left to the next level: see `tff_mf.numerics.normals`."""
    cumulative = constants.cumulative[constants.first_mass[level] : constants.first_mass[level + 1]]
    item = tf.searchsorted(cumulative, words[0], side="right", out_type=tf.int64)
    piece, statistic = item // normals.STATISTICS, item % normals.STATISTICS
    ordered = tf.stack(_sorted(tf.unstack(words[1:], num=normals.STATISTICS)))
    chosen = tf.gather_nd(ordered, tf.stack([statistic, tf.range(tf.size(item, tf.int64))], axis=1))
    uniform = tf.bitwise.right_shift(chosen, 64 - normals.UNIFORM_BITS) + 2 ** (normals.UNIFORM_BITS - 1)
    edges = constants.edges[constants.first_edge[level] : constants.first_edge[level + 1]]
    begin = tf.gather(edges, piece)
    length = tf.gather(edges, tf.minimum(piece + 1, tf.size(edges, tf.int64) - 1)) - begin
    unit = normals.EDGE_BITS + normals.UNIFORM_BITS - normals.POSITION_BITS
    offset = tf.bitwise.right_shift(length * uniform, unit)
    position = tf.bitwise.left_shift(begin, normals.POSITION_BITS - normals.EDGE_BITS) + offset
    return tf.cast(position, tf.float64) * 2.0**-normals.POSITION_BITS, item >= tf.size(cumulative, tf.int64)


def _sorted(rows: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns six rows in order, column by column, by the network of 12 comparators."""
    for low, high in _NETWORK:
        rows[low], rows[high] = tf.minimum(rows[low], rows[high]), tf.maximum(rows[low], rows[high])
    return rows
