"""Integer noise of trees: the sums of n over the last complete blocks of 2^h rounds, one row of memory per level."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_mf.mechanisms import Tree, tree_factors
from tff_mf.noise import _counter
from tff_mf.noise._grid import GridStream, Past, Tensors, no_past, whole
from tff_mf.noise._in_order import parts_in_order, sum_in_order
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._rows import weighted_sums


class TreeGridStream(GridStream[Tree]):
    """L_t = Σ_h w_h(t)·I_h for the sums I_h of n over the last complete block of 2^h rounds, which are integers.

    An estimate of a node by the vanilla and the online decoder is the difference of two prefix sums of noise, and so
    the sum of n over the rounds of the node.
    """

    @property
    def row_count(self) -> int:
        return _counter.row_count(self.mechanism.rounds)

    def rows_in_use(self, step: tf.Tensor) -> tf.Tensor:
        return _counter.in_use(step, self.row_count)

    def after(self, row: tf.Tensor, state: NoiseState, computed: Tensors) -> Tensors:
        def completed(height: int) -> Tensors:
            if not 0 < height < self.row_count:
                # A whole tree has no row: no later round needs its sum.
                return _counter.put(state.rows, height, row)
            # Of whole numbers: exact in any order.
            (total,) = weighted_sums(tf.ones([1, 1 + height], tf.float64), (row, *state.rows[:height]))
            return _counter.put(state.rows, height, total)

        return _counter.carry(state.round, self.row_count, completed) if state.rows else ()

    def _sum(self, weights: Sequence[float | tf.Tensor], rows: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns Σ_h weights[h]·rows[h]."""
        return sum_in_order(weights, rows) if rows else tf.zeros([self.dimension], tf.float64)


class VanillaTreeGridStream(TreeGridStream):
    """L_t = Σ_{h<H} I_h in a round that completes nodes up to height H: integers, without any error."""

    def past(self, state: NoiseState) -> tuple[Past, Tensors]:
        (past,) = _counter.carry(
            state.round, self.row_count, lambda height: (self._sum([1.0] * height, state.rows[:height]),)
        )
        return whole(past), ()


class OnlineTreeGridStream(TreeGridStream):
    """L_t = Σ_{h<H} (1 − share_h)·I_h, with the shares of `tree_factors.online_decoder`."""

    def relative_scale(self, state: NoiseState) -> tf.Tensor:
        scales = [tree_factors.online_step(height)[0] for height in range(self.row_count + 1)]
        return tf.gather(tf.constant(scales, tf.float64), _counter.height(state.round))

    def past(self, state: NoiseState) -> tuple[Past, Tensors]:
        def completed(height: int) -> Tensors:
            _, weights = tree_factors.online_step(height)
            return (self._sum(weights, state.rows[:height]),)

        (past,) = _counter.carry(state.round, self.row_count, completed)
        return whole(past), ()


class FullTreeGridStream(TreeGridStream):
    """From the root to the leaf of the round: in the right half of a block, L ← L + coupling·(I + m·L).

    I is the sum of n over the m rounds of the left half, and I + m·L the sum without the terms of larger blocks, which
    enter each of these rounds in the same way: see `FullTreeStream`. The weights w_h follow as numbers.
    """

    def relative_scale(self, state: NoiseState) -> tf.Tensor:
        alpha, _ = self._path(state.round)
        return tree_factors.ROUND_UP / tf.sqrt(1 + alpha)

    def past(self, state: NoiseState) -> tuple[Past, Tensors]:
        _, couplings = self._path(state.round)
        weights: list[tf.Tensor] = []
        for height, coupling in zip(range(self.row_count, 0, -1), couplings, strict=True):
            growth = 1 + coupling * 2.0 ** (height - 1)
            weights = [*(growth * weight for weight in weights), coupling]
        return parts_in_order(weights[::-1], state.rows) if state.rows else no_past, ()

    def _path(self, step: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns α of the round's leaf, and the coupling at each height, the largest first: 0 in a left half."""
        alpha, couplings = tf.zeros([], tf.float64), []
        for height in range(self.row_count, 0, -1):
            left, right, coupling = tree_factors.full_split(height, alpha)
            # Not ==, which compares objects in the graphs that TFF traces.
            in_right = tf.equal(tf.bitwise.right_shift(step, height - 1) % 2, 1)
            # The height of the round's tree is the highest bit in which `rounds` and the round differ.
            in_tree = tf.bitwise.right_shift(tf.bitwise.bitwise_xor(step, self.mechanism.rounds), height) > 0
            couplings.append(tf.where(in_tree & in_right, coupling, 0.0))
            alpha = tf.where(in_tree, tf.where(in_right, right, left), alpha)
        return alpha, couplings


_STREAMS: dict[str, type[TreeGridStream]] = {
    "full": FullTreeGridStream,
    "online": OnlineTreeGridStream,
    "vanilla": VanillaTreeGridStream,
}


def build_tree_grid_stream(mechanism: Tree, **arguments: Any) -> TreeGridStream:
    """Returns the stream of a tree; arguments as of `GridStream`."""
    return _STREAMS[mechanism.variant](mechanism, **arguments)
