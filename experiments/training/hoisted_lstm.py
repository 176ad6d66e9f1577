"""An LSTM layer whose products are hoisted out of its recurrence: one for all inputs, and one for each gradient.

Of a step there remains h·U, and of its gradient dG·Uᵀ. A layer of Keras multiplies the inputs of each step by
themselves, and adds up a gradient of all weights in each step.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf


class LstmWeights(NamedTuple):
    """The weights of `tf.keras.layers.LSTM`, in its order of gates: input, forget, cell, output.

    Attributes:
        kernel: W, `[inputs, 4·units]`.
        recurrent: U, `[units, 4·units]`.
        bias: b, `[4·units]`.
    """

    kernel: tf.Tensor
    recurrent: tf.Tensor
    bias: tf.Tensor


class _Step(NamedTuple):
    """What the gradient of a step needs, each `[rows, units]`: gates, the cell, its tanh, and the output."""

    gates: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
    cell: tf.Tensor
    squashed: tf.Tensor
    output: tf.Tensor


def packed_lstm(inputs: tf.Tensor, weights: LstmWeights, rows: tf.Tensor) -> tf.Tensor:
    """Returns the outputs of the layer for inputs in the order of `packing.pack`.

    Args:
        inputs: `[n, inputs]`.
        weights: The weights.
        rows: int32 `[length]`: sentences that have each step.

    Returns:
        `[n, units]`, in the same order.
    """
    return _hoisted(inputs, weights, _Steps(sizes=tf.unstack(rows), kept=None))


def masked_lstm(inputs: tf.Tensor, weights: LstmWeights, mask: tf.Tensor) -> tf.Tensor:
    """Returns the outputs of the layer for padded inputs; all shapes are static, so that XLA can compile it.

    Args:
        inputs: `[length, sentences, inputs]`.
        weights: The weights.
        mask: bool `[length, sentences]`: whether a step is taken; otherwise state and output stay as they are.

    Returns:
        `[length, sentences, units]`.
    """
    length = mask.shape[0]
    kept = [step[:, None] for step in tf.unstack(mask, length)]
    flat = tf.reshape(inputs, [-1, inputs.shape[-1]])
    outputs = _hoisted(flat, weights, _Steps(sizes=length, kept=kept))
    return tf.reshape(outputs, [length, -1, weights.recurrent.shape[0]])


class _Steps(NamedTuple):
    """How steps follow each other: sizes that shrink, or equal ones (their number) with a mask `[rows, 1]` for each."""

    sizes: list[tf.Tensor] | int
    kept: list[tf.Tensor] | None

    def first(self, step: int, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the rows of the step before that go on."""
        return tensor if isinstance(self.sizes, int) else tensor[: self.sizes[step]]

    def back(self, step: int, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the gradient of all rows of a step, of which those that go on have the gradient `tensor`."""
        if isinstance(self.sizes, int):
            return tensor
        return tf.pad(tensor, [[0, self.sizes[step] - self.sizes[step + 1]], [0, 0]])

    def where(self, step: int, one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        return one if self.kept is None else tf.where(self.kept[step], one, other)


def _hoisted(inputs: tf.Tensor, weights: LstmWeights, steps: _Steps) -> tf.Tensor:
    @tf.custom_gradient
    def layer(
        inputs: tf.Tensor, kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, ...]]]:
        taken = _forward(tf.split(tf.matmul(inputs, kernel) + bias, steps.sizes), recurrent, steps)
        outputs = [step.output for step in taken]

        def gradient(of_outputs: tf.Tensor) -> tuple[tf.Tensor, ...]:
            of_gates = _backward(taken, tf.split(of_outputs, steps.sizes), recurrent, steps)
            flat = tf.concat(of_gates, axis=0)
            # There is nothing before the first step; `tf.concat` needs at least one part.
            before = [outputs[0][:0], *(steps.first(number, output) for number, output in enumerate(outputs[:-1], 1))]
            of_later = tf.concat([of_gates[0][:0], *of_gates[1:]], axis=0)
            return (
                tf.matmul(flat, _transposed(kernel)),
                tf.matmul(inputs, flat, transpose_a=True),
                tf.matmul(tf.concat(before, axis=0), of_later, transpose_a=True),
                tf.reduce_sum(flat, axis=0),
            )

        return tf.concat(outputs, axis=0), gradient

    return layer(inputs, *weights)


def _forward(of_inputs: Sequence[tf.Tensor], recurrent: tf.Tensor, steps: _Steps) -> list[_Step]:
    taken: list[_Step] = []
    for number, total in enumerate(of_inputs):
        if taken:
            cell_before, output_before = (steps.first(number, tensor) for tensor in (taken[-1].cell, taken[-1].output))
            total += tf.matmul(output_before, recurrent)
        else:
            # The state before the first step is 0.
            cell_before = output_before = tf.zeros_like(total[:, : recurrent.shape[0]])
        into, forget, new, out = tf.split(total, 4, axis=1)
        gates = (tf.sigmoid(into), tf.sigmoid(forget), tf.tanh(new), tf.sigmoid(out))
        cell = gates[1] * cell_before + gates[0] * gates[2]
        squashed = tf.tanh(cell)
        output = steps.where(number, gates[3] * squashed, output_before)
        taken.append(_Step(gates=gates, cell=steps.where(number, cell, cell_before), squashed=squashed, output=output))
    return taken


def _backward(
    taken: Sequence[_Step], of_outputs: Sequence[tf.Tensor], recurrent: tf.Tensor, steps: _Steps
) -> list[tf.Tensor]:
    """Returns the gradient of the gates' sums of each step, `[rows, 4·units]`."""
    transposed = _transposed(recurrent)
    found: list[tf.Tensor] = []
    of_output, of_cell = of_outputs[-1], tf.zeros_like(taken[-1].cell)
    for number in reversed(range(len(taken))):
        (into, forget, new, out), _, squashed, _ = taken[number]
        cell_before = steps.first(number, taken[number - 1].cell) if number else tf.zeros_like(squashed)
        inner = of_cell + of_output * out * (1.0 - squashed * squashed)
        sums = tf.concat(
            [
                inner * new * into * (1.0 - into),
                inner * cell_before * forget * (1.0 - forget),
                inner * into * (1.0 - new * new),
                of_output * squashed * out * (1.0 - out),
            ],
            axis=1,
        )
        sums = steps.where(number, sums, tf.zeros_like(sums))
        found.insert(0, sums)
        if number:
            through = tf.matmul(sums, transposed)
            if steps.kept is not None:
                through += tf.where(steps.kept[number], tf.zeros_like(of_output), of_output)
            of_cell = steps.back(number - 1, steps.where(number, inner * forget, of_cell))
            of_output = of_outputs[number - 1] + steps.back(number - 1, through)
    return found


def _transposed(matrix: tf.Tensor) -> tf.Tensor:
    """Returns the transpose as a matrix of its own.

    TensorFlow would fold a plain one into each product that uses it, and such a product takes more than twice the time.
    """
    rows, columns = matrix.shape
    return tf.reshape(tf.transpose(matrix[None], [0, 2, 1]), [columns, rows])
