"""Noise of the full tree (pseudo-inverse decoder, "full Honaker"): one row of memory per level."""

import tensorflow as tf

from tff_mf.mechanisms import Tree, tree_factors
from tff_mf.noise import _counter
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._rows import weighted_sums
from tff_mf.noise._stream import NoiseStream


class FullTreeStream(NoiseStream[Tree]):
    """Rows of F(h, α)⁻¹ of `tree_factors.full_split`, computed from the root to the leaf of the round.

    In the right half of a block of F⁻¹, the rounds of the left half enter every row in the same way: by the coupling
    times their sum. Row h of the memory is that sum for the last complete block of 2^h rounds, computed with the
    inverse of the block alone, without the terms of larger blocks. A round that completes a block adds the rows of the
    blocks inside it, each minus its coupling term: a share of (2^h − 1)·g remains.
    """

    @property
    def row_count(self) -> int:
        return _counter.row_count(self.mechanism.rounds)

    def rows_in_use(self, step: tf.Tensor) -> tf.Tensor:
        return _counter.in_use(step, self.row_count)

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        if not state.rows:
            return noise, ()
        row, total = weighted_sums(self._weights(state.round), (noise, *state.rows))
        return row, _counter.carry(state.round, self.row_count, lambda height: _counter.put(state.rows, height, total))

    def _weights(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the weights of the new noise and of each row in the round's row, and in the block that it completes.

        float32 `[2, 1 + rows]`. Computed in float64, because a tree has no parameters that a cast could have rounded.
        """
        alpha, couplings, shares = tf.zeros([], tf.float64), [], []
        carry = _counter.height(step)
        for height in range(self.row_count, 0, -1):
            left, right, coupling = tree_factors.full_split(height, alpha)
            # Not ==, which compares objects in the graphs that TFF traces.
            in_right = tf.equal(tf.bitwise.right_shift(step, height - 1) % 2, 1)
            # The height of the round's tree is the highest bit in which `rounds` and the round differ.
            in_tree = tf.bitwise.right_shift(tf.bitwise.bitwise_xor(step, self.mechanism.rounds), height) > 0
            couplings.append(tf.where(in_tree & in_right, -coupling, 0.0))
            shares.append(tf.where(height <= carry, left / right, 0.0))
            alpha = tf.where(in_tree, tf.where(in_right, right, left), alpha)
        scale = 1 / tf.sqrt(1 + alpha)
        return tf.cast(tf.stack([[scale, *reversed(couplings)], [scale, *reversed(shares)]]), tf.float32)
