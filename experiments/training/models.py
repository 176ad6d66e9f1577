"""Models of next words: TFF's recurrent one, a light one, and the same without needless computation for clients."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from ..runs.settings import KERNEL_WORDS, RunSettings

Weights = Sequence[Any]
PADDING = 0


def mean_cross_entropy(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns the mean loss per word, equal to `tf.keras.losses.SparseCategoricalCrossentropy` to rounding.

    Args:
        logits: `[n, words]`.
        targets: `[n]`, whole numbers below `words`.
    """

    @tf.custom_gradient
    def loss(logits: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        losses = tf.reduce_logsumexp(logits, axis=1) - tf.gather(logits, targets, batch_dims=1)
        weights = tf.ones_like(losses)
        weights /= tf.reduce_sum(weights)

        def gradient(of_loss: tf.Tensor) -> tf.Tensor:
            # From the logits alone: training needs no losses, and TensorFlow leaves them out.
            return _minus_one(tf.nn.softmax(logits), targets) * (of_loss * weights)[:, None]

        return tf.reduce_sum(losses * weights), gradient

    return loss(logits)


def _minus_one(probabilities: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns the probabilities, 1 less for the target of each row."""
    places = tf.stack([tf.range(tf.size(targets, targets.dtype), dtype=targets.dtype), targets], axis=1)
    return tf.tensor_scatter_nd_sub(probabilities, places, tf.ones_like(probabilities[:, 0]))


class Packing(NamedTuple):
    """Where the words of a batch are in its packed order: by step, and within a step by sentence, the longest first.

    The sentences that have a step are therefore the first rows of the step before it. A step of a sentence is one of
    its real words: a recurrent layer that masks padding passes over it, wherever it is.

    Attributes:
        rows: int32 `[length]`: how many sentences have each step; no more than have the step before it.
        words: `[n]`: the real words, packed.
        place: int32 `[sentences, length]`: the number of real words before a sentence's place or at it is c; its row in
            the packed order is the row of the last of them, plus 1; 0 if c is 0.
    """

    rows: tf.Tensor
    words: tf.Tensor
    place: tf.Tensor


def pack(words: tf.Tensor) -> Packing:
    """Returns the packed order of words, `[sentences, length]`."""
    # Operators of equality compare objects where TFF builds its graphs.
    real = tf.not_equal(words, PADDING)
    counts = tf.cumsum(tf.cast(real, tf.int32), axis=1)
    lengths = counts[:, -1]
    rank = tf.argsort(tf.argsort(lengths, direction="DESCENDING", stable=True))
    rows = tf.math.count_nonzero(lengths > tf.range(words.shape[1])[:, None], axis=1, dtype=tf.int32)
    of_step = tf.cumsum(rows, exclusive=True)
    place = tf.where(counts > 0, tf.gather(of_step, tf.maximum(counts - 1, 0)) + rank[:, None] + 1, 0)
    packed = tf.scatter_nd(place[real][:, None] - 1, words[real], [tf.reduce_sum(lengths)])
    return Packing(rows=rows, words=packed, place=place)


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
    """Returns the outputs of the layer for inputs in the order of `pack`.

    Args:
        inputs: `[n, inputs]`.
        weights: The weights.
        rows: int32 `[length]`: sentences that have each step.

    Returns:
        `[n, units]`, in the same order.
    """
    sizes = tf.unstack(rows)

    @tf.custom_gradient
    def layer(
        inputs: tf.Tensor, kernel: tf.Tensor, recurrent: tf.Tensor, bias: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, ...]]]:
        taken = _forward(tf.split(tf.matmul(inputs, kernel) + bias, sizes), recurrent, sizes)
        outputs = [step.output for step in taken]

        def gradient(of_outputs: tf.Tensor) -> tuple[tf.Tensor, ...]:
            of_gates = _backward(taken, tf.split(of_outputs, sizes), recurrent, sizes)
            flat = tf.concat(of_gates, axis=0)
            # There is nothing before the first step; `tf.concat` needs at least one part.
            before = [outputs[0][:0], *(output[:size] for output, size in zip(outputs, sizes[1:], strict=False))]
            of_later = tf.concat([of_gates[0][:0], *of_gates[1:]], axis=0)
            return (
                tf.matmul(flat, _transposed(kernel)),
                tf.matmul(inputs, flat, transpose_a=True),
                tf.matmul(tf.concat(before, axis=0), of_later, transpose_a=True),
                tf.reduce_sum(flat, axis=0),
            )

        return tf.concat(outputs, axis=0), gradient

    return layer(inputs, *weights)


def _forward(of_inputs: Sequence[tf.Tensor], recurrent: tf.Tensor, sizes: Sequence[tf.Tensor]) -> list[_Step]:
    taken: list[_Step] = []
    for total, size in zip(of_inputs, sizes, strict=True):
        if taken:
            cell_before = taken[-1].cell[:size]
            total += tf.matmul(taken[-1].output[:size], recurrent)
        else:
            # The state before the first step is 0.
            cell_before = tf.zeros_like(total[:, : recurrent.shape[0]])
        into, forget, new, out = tf.split(total, 4, axis=1)
        gates = (tf.sigmoid(into), tf.sigmoid(forget), tf.tanh(new), tf.sigmoid(out))
        cell = gates[1] * cell_before + gates[0] * gates[2]
        squashed = tf.tanh(cell)
        taken.append(_Step(gates=gates, cell=cell, squashed=squashed, output=gates[3] * squashed))
    return taken


def _backward(
    taken: Sequence[_Step], of_outputs: Sequence[tf.Tensor], recurrent: tf.Tensor, sizes: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns the gradient of the gates' sums of each step, `[rows, 4·units]`."""
    transposed = _transposed(recurrent)
    of_gates: list[tf.Tensor] = []
    of_output, of_cell = of_outputs[-1], tf.zeros_like(taken[-1].cell)
    for number in reversed(range(len(taken))):
        (into, forget, new, out), _, squashed, _ = taken[number]
        cell_before = taken[number - 1].cell[: sizes[number]] if number else tf.zeros_like(squashed)
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
        of_gates.insert(0, sums)
        if number:
            # Sentences that end before this step have no gradient from it.
            ended = [[0, sizes[number - 1] - sizes[number]], [0, 0]]
            of_cell = tf.pad(inner * forget, ended)
            of_output = of_outputs[number - 1] + tf.pad(tf.matmul(sums, transposed), ended)
    return of_gates


def _transposed(matrix: tf.Tensor) -> tf.Tensor:
    """Returns the transpose as a matrix of its own.

    TensorFlow would fold a plain one into each product that uses it, and such a product takes more than twice the time.
    """
    rows, columns = matrix.shape
    return tf.reshape(tf.transpose(matrix[None], [0, 2, 1]), [columns, rows])


def build_keras_model(settings: RunSettings, *, extended_vocab_size: int) -> tf.keras.Model:
    """Returns an uncompiled model from words `[batch, length]` to logits `[batch, length, extended_vocab_size]`."""
    tf.keras.utils.set_random_seed(settings.seed)
    if settings.model == "lstm":
        return tff.simulation.baselines.stackoverflow.word_prediction_models.create_recurrent_model(
            vocab_size=extended_vocab_size, embedding_size=settings.embedding_size, lstm_size=settings.units
        )
    words = tf.keras.layers.Input(shape=(None,), dtype=tf.int64)
    embedded = tf.keras.layers.Embedding(extended_vocab_size, settings.embedding_size)(words)
    hidden = tf.keras.layers.Conv1D(settings.units, KERNEL_WORDS, padding="causal", activation="relu")(embedded)
    return tf.keras.Model(inputs=words, outputs=tf.keras.layers.Dense(extended_vocab_size)(hidden))


class Hidden(NamedTuple):
    """What a model knows of each place of a batch before the logits, which are computed where the loss needs them.

    Attributes:
        place: int32 `[sentences, length]`: row of `rows` of each place. It is first because TFF counts its sentences.
        rows: `[n, width]`: what the last layer takes.
        head: Weights of the last layer, and of the projection before it if there is one.
    """

    place: tf.Tensor
    rows: tf.Tensor
    head: tuple[tf.Tensor, ...]

    def logits(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the logits, `[n, words]`, of rows of `self.rows`."""
        for kernel, bias in zip(self.head[::2], self.head[1::2], strict=True):
            rows = tf.matmul(rows, kernel) + bias
        return rows


def build_hoisted_model(
    kind: str, initial_weights: Weights, *, input_spec: tuple[tf.TensorSpec, tf.TensorSpec]
) -> tff.learning.models.FunctionalModel:
    """Returns a model for TFF with the weights, shapes and order of weights of the Keras model.

    Args:
        kind: `lstm` or `conv`.
        initial_weights: Trainable weights of the Keras model.
        input_spec: Type of a batch; words have a fixed length.
    """
    forward = {"lstm": _lstm, "conv": _conv}[kind]

    # Nothing here is for AutoGraph, which takes longer to look than TensorFlow to trace.
    @tf.function(autograph=False)
    def predict(weights: tuple[Weights, Weights], words: tf.Tensor, training: bool) -> Hidden:
        del training
        return forward(weights[0], words)

    return tff.learning.models.FunctionalModel(
        initial_weights=(tuple(initial_weights), ()),
        predict_on_batch_fn=predict,
        loss_fn=tf.autograph.experimental.do_not_convert(_loss),
        input_spec=input_spec,
    )


def _lstm(weights: Weights, words: tf.Tensor) -> Hidden:
    embedding, kernel, recurrent, bias, *head = weights
    packing = pack(words)
    inputs = tf.gather(embedding, packing.words)
    outputs = packed_lstm(inputs, LstmWeights(kernel, recurrent, bias), packing.rows)
    # Row 0 is the state before the first word.
    return Hidden(place=packing.place, rows=tf.pad(outputs, [[1, 0], [0, 0]]), head=tuple(head))


def _conv(weights: Weights, words: tf.Tensor) -> Hidden:
    embedding, kernel, bias, *head = weights
    reach, width, filters = kernel.shape
    # Before the first word there is nothing, which is not the word with number 0.
    inputs = tf.pad(tf.gather(embedding, words), [[0, 0], [reach - 1, 0], [0, 0]])
    windows = tf.concat([inputs[:, step : step + words.shape[1]] for step in range(reach)], axis=2)
    rows = tf.matmul(tf.reshape(windows, [-1, reach * width]), tf.reshape(kernel, [reach * width, filters]))
    in_order = tf.reshape(tf.range(tf.size(words)), tf.shape(words))
    return Hidden(place=in_order, rows=tf.nn.relu(rows + bias), head=tuple(head))


def _loss(hidden: Hidden, targets: tf.Tensor, sample_weight: object = None) -> tf.Tensor:
    del sample_weight
    counted = tf.not_equal(targets, PADDING)
    logits = hidden.logits(tf.gather(hidden.rows, hidden.place[counted]))
    return mean_cross_entropy(logits, targets[counted])
