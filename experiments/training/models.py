"""Models of next words: TFF's recurrent one, a light one, and the same without needless computation."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from ..runs.settings import RunSettings
from .client_batches import PADDING, pack


def mean_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, counted: tf.Tensor | None = None, *, fused: bool = False
) -> tf.Tensor:
    """Returns the mean loss per word, equal to `tf.keras.losses.SparseCategoricalCrossentropy` to rounding.

    Args:
        logits: `[n, words]`.
        targets: `[n]`, whole numbers below `words`.
        counted: bool `[n]`: which of them the mean is over; all if `None`.
        fused: Whether XLA compiles the gradient, which makes one loop of it; otherwise each place is changed in memory.
    """

    @tf.custom_gradient
    def loss(logits: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        each = tf.reduce_logsumexp(logits, axis=1) - tf.gather(logits, targets, batch_dims=1)
        share = tf.ones_like(each) if counted is None else tf.cast(counted, each.dtype)
        share /= tf.reduce_sum(share)

        def gradient(of_loss: tf.Tensor) -> tf.Tensor:
            # From the logits alone: training needs no losses, and TensorFlow leaves them out.
            return _minus_one(tf.nn.softmax(logits), targets, fused=fused) * (of_loss * share)[:, None]

        return tf.reduce_sum(each * share), gradient

    return loss(logits)


def _minus_one(probabilities: tf.Tensor, targets: tf.Tensor, *, fused: bool) -> tf.Tensor:
    """Returns the probabilities, 1 less for the target of each row."""
    if fused:
        return probabilities - tf.one_hot(targets, probabilities.shape[-1], dtype=probabilities.dtype)
    places = tf.stack([tf.range(tf.size(targets, targets.dtype), dtype=targets.dtype), targets], axis=1)
    return tf.tensor_scatter_nd_sub(probabilities, places, tf.ones_like(probabilities[:, 0]))


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


_KERNEL_WORDS = 3


TffModel = tff.learning.models.FunctionalModel | Callable[[], tff.learning.models.VariableModel]


def build_keras_model(settings: RunSettings, *, extended_vocab_size: int) -> tf.keras.Model:
    """Returns an uncompiled model from words `[batch, length]` to logits `[batch, length, extended_vocab_size]`.

    Args:
        settings: Its kind, its size, and the seed of its initial weights, which are public.
        extended_vocab_size: Words and special tokens together.
    """
    tf.keras.utils.set_random_seed(settings.seed)
    if settings.model == "lstm":
        return tff.simulation.baselines.stackoverflow.word_prediction_models.create_recurrent_model(
            vocab_size=extended_vocab_size, embedding_size=settings.embedding_size, lstm_size=settings.units
        )
    words = tf.keras.layers.Input(shape=(None,), dtype=tf.int64)
    embedded = tf.keras.layers.Embedding(extended_vocab_size, settings.embedding_size)(words)
    hidden = tf.keras.layers.Conv1D(settings.units, _KERNEL_WORDS, padding="causal", activation="relu")(embedded)
    return tf.keras.Model(inputs=words, outputs=tf.keras.layers.Dense(extended_vocab_size)(hidden))


def build_loss() -> tf.keras.losses.Loss:
    """Returns the cross-entropy per word, padding left out."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING)


def build_reference_model(
    kind: str,
    build: Callable[[], tf.keras.Model],
    *,
    input_spec: tuple[tf.TensorSpec, tf.TensorSpec],
) -> TffModel:
    """Returns TFF's own model for training: a functional one where possible, whose rounds take a third less time.

    The recurrent model cannot be one: it masks padding, and TFF's conversion leaves the mask behind.

    Args:
        kind: `lstm` or `conv`.
        build: Makes the Keras model.
        input_spec: Type of a batch.
    """
    if kind == "lstm":
        return lambda: tff.learning.models.from_keras_model(build(), build_loss(), input_spec=input_spec, metrics=[])
    return tff.learning.models.functional_model_from_keras(build(), build_loss(), input_spec=input_spec)


Weights = Sequence[Any]


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
    kind: str,
    initial_weights: Weights,
    *,
    input_spec: tuple[tf.TensorSpec, tf.TensorSpec],
    static_shapes: bool = False,
) -> tff.learning.models.FunctionalModel:
    """Returns a model for TFF with the weights, shapes and order of weights of the Keras model.

    Args:
        kind: `lstm` or `conv`.
        initial_weights: Trainable weights of the Keras model.
        input_spec: Type of a batch; words have a fixed length.
        static_shapes: Whether padding is computed too, so that all shapes follow from a batch's, and XLA can
            compile the model and its gradient.
    """
    forward = {
        ("lstm", False): _packed_lstm,
        ("lstm", True): _masked_lstm,
        ("conv", False): functools.partial(_conv, look_up=tf.gather),
        ("conv", True): functools.partial(_conv, look_up=_looked_up),
    }[kind, static_shapes]

    # Nothing here is for AutoGraph, which takes longer to look than TensorFlow to trace.
    @tf.function(autograph=False)
    def predict(weights: tuple[Weights, Weights], words: tf.Tensor, training: bool) -> Hidden:
        del training
        return forward(weights[0], words)

    return tff.learning.models.FunctionalModel(
        initial_weights=(tuple(initial_weights), ()),
        predict_on_batch_fn=predict,
        loss_fn=tf.autograph.experimental.do_not_convert(_masked_loss if static_shapes else _packed_loss),
        input_spec=input_spec,
    )


def _packed_lstm(weights: Weights, words: tf.Tensor) -> Hidden:
    embedding, kernel, recurrent, bias, *head = weights
    packing = pack(words)
    inputs = tf.gather(embedding, packing.words)
    outputs = packed_lstm(inputs, LstmWeights(kernel, recurrent, bias), packing.rows)
    # Row 0 is the state before the first word.
    return Hidden(place=packing.place, rows=tf.pad(outputs, [[1, 0], [0, 0]]), head=tuple(head))


def _masked_lstm(weights: Weights, words: tf.Tensor) -> Hidden:
    embedding, kernel, recurrent, bias, *head = weights
    by_step = tf.transpose(words)
    inputs = _looked_up(embedding, by_step)
    outputs = masked_lstm(inputs, LstmWeights(kernel, recurrent, bias), tf.not_equal(by_step, PADDING))
    by_sentence = tf.transpose(outputs, [1, 0, 2])
    return Hidden(place=_in_order(words), rows=tf.reshape(by_sentence, [-1, recurrent.shape[0]]), head=tuple(head))


def _conv(weights: Weights, words: tf.Tensor, *, look_up: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Hidden:
    embedding, kernel, bias, *head = weights
    reach, width, filters = kernel.shape
    # Before the first word there is nothing, which is not the word with number 0.
    inputs = tf.pad(look_up(embedding, words), [[0, 0], [reach - 1, 0], [0, 0]])
    windows = tf.concat([inputs[:, step : step + words.shape[1]] for step in range(reach)], axis=2)
    rows = tf.matmul(tf.reshape(windows, [-1, reach * width]), tf.reshape(kernel, [reach * width, filters]))
    return Hidden(place=_in_order(words), rows=tf.nn.relu(rows + bias), head=tuple(head))


def _in_order(words: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.range(tf.size(words)), tf.shape(words))


def _looked_up(embedding: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
    """Returns rows of an embedding, with a product as the gradient: XLA would copy the whole of it for each word."""

    @tf.custom_gradient
    def look_up(embedding: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(of_rows: tf.Tensor) -> tf.Tensor:
            chosen = tf.one_hot(tf.reshape(words, [-1]), embedding.shape[0], dtype=embedding.dtype)
            return tf.matmul(chosen, tf.reshape(of_rows, [-1, embedding.shape[1]]), transpose_a=True)

        return tf.gather(embedding, words), gradient

    return look_up(embedding)


def _packed_loss(hidden: Hidden, targets: tf.Tensor, sample_weight: object = None) -> tf.Tensor:
    del sample_weight
    counted = tf.not_equal(targets, PADDING)
    logits = hidden.logits(tf.gather(hidden.rows, hidden.place[counted]))
    return mean_cross_entropy(logits, targets[counted])


def _masked_loss(hidden: Hidden, targets: tf.Tensor, sample_weight: object = None) -> tf.Tensor:
    del sample_weight
    flat = tf.reshape(targets, [-1])
    # The rows are in order, and all of them are needed.
    logits = hidden.logits(hidden.rows)
    return mean_cross_entropy(logits, flat, tf.not_equal(flat, PADDING), fused=True)
