"""Next-word prediction as TFF's StackOverflow task defines it: models of any size, batches, measures, and process."""

import collections
import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf.base import strict_json, validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning.by_name import RAMP_FLOOR

from .. import aggregators
from .data import TEST, TRAIN, chunks, client_ids, first_examples, number_of_sentences
from .guard.fed_avg import learning_process
from .guard.inputs import SIMULATION_LOOP, Clients, WeightNames, names_in_a_new_graph
from .runs import results
from .runs.results import ACCURACY, Quality
from .runs.settings import ALL, KERNEL_WORDS, RunSettings

_stackoverflow = tff.simulation.baselines.stackoverflow
SEQUENCE_LENGTH = _stackoverflow.DEFAULT_SEQUENCE_LENGTH
PADDING = 0
METRICS = ("loss", "accuracy", "accuracy_without_out_of_vocab", ACCURACY)
# Words of a batch: more need memory (of the logits, four bytes a word of the vocabulary), fewer need time.
_WORDS = {"conv": 2048, "lstm": 4096}
# Logits at once: 4 MB, which stay in a processor's cache from the product to the softmax.
_LOGITS = 2**20
_MOST_SENTENCES = 2**20

Weights = Sequence[Any]
Batch = tuple[np.ndarray, np.ndarray]


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
            places = tf.stack([tf.range(tf.size(targets, targets.dtype), dtype=targets.dtype), targets], axis=1)
            softmax = tf.tensor_scatter_nd_sub(tf.nn.softmax(logits), places, tf.ones_like(losses))
            return softmax * (of_loss * weights)[:, None]

        return tf.reduce_sum(losses * weights), gradient

    return loss(logits)


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


class _Step(NamedTuple):
    """What the gradient of a step needs, each `[rows, units]`: gates, the cell, its tanh, and the output."""

    gates: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]
    cell: tf.Tensor
    squashed: tf.Tensor
    output: tf.Tensor


def packed_lstm(inputs: tf.Tensor, weights: Weights, rows: tf.Tensor) -> tf.Tensor:
    """Returns the outputs of the layer for inputs in the order of `pack`.

    Args:
        inputs: `[n, inputs]`.
        weights: Those of `tf.keras.layers.LSTM`, in its order of gates (input, forget, cell, output): W, `[inputs,
            4·units]`, U, `[units, 4·units]`, and b, `[4·units]`.
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


def build_keras_model(settings: RunSettings, *, vocabulary: Sequence[str]) -> tf.keras.Model:
    """Returns the uncompiled model that knows the words of a vocabulary, with the weights that training starts from.

    It takes words `[batch, length]`, and returns logits `[batch, length, words]`, special ones included.
    """
    known = len(vocabulary[: settings.vocab_size])
    special = _stackoverflow.word_prediction_preprocessing.get_special_tokens(known)
    extended = known + special.get_number_of_special_tokens()
    tf.keras.utils.set_random_seed(settings.seed)
    if settings.model == "lstm":
        return _stackoverflow.word_prediction_models.create_recurrent_model(
            vocab_size=extended, embedding_size=settings.embedding_size, lstm_size=settings.units
        )
    words = tf.keras.layers.Input(shape=(None,), dtype=tf.int64)
    embedded = tf.keras.layers.Embedding(extended, settings.embedding_size)(words)
    hidden = tf.keras.layers.Conv1D(settings.units, KERNEL_WORDS, padding="causal", activation="relu")(embedded)
    return tf.keras.Model(inputs=words, outputs=tf.keras.layers.Dense(extended)(hidden))


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
    outputs = packed_lstm(inputs, (kernel, recurrent, bias), packing.rows)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A model, and what it starts from.

    Attributes:
        model: The model for TFF.
        initial_weights: The weights that training starts from.
        weights: Their names, and how many parameters they have.
    """

    model: tff.learning.models.FunctionalModel
    initial_weights: tff.learning.models.ModelWeights
    weights: WeightNames


def build_task(settings: RunSettings, vocabulary: Sequence[str]) -> Task:
    """Returns the task of a run, for the words that its model knows."""
    words = tf.TensorSpec([None, SEQUENCE_LENGTH], tf.int64)
    initial = tff.learning.models.ModelWeights.from_model(build_keras_model(settings, vocabulary=vocabulary))
    arrays = [np.asarray(weight) for weight in initial.trainable]
    names = names_in_a_new_graph(lambda: build_keras_model(settings, vocabulary=vocabulary).trainable_variables)
    return Task(
        model=build_hoisted_model(settings.model, arrays, input_spec=(words, words)),
        initial_weights=initial,
        weights=WeightNames(dimension=sum(map(np.size, arrays)), trainable=names, non_trainable=[]),
    )


def build_tokenizer(vocabulary: Sequence[str]) -> tff.Computation:
    """Returns the computation from sentences, a text `[n]` with n ≥ 1, to a batch of all of them, as models take it."""
    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=_MOST_SENTENCES, shuffle_buffer_size=1)
    preprocess = _stackoverflow.word_prediction_preprocessing.create_preprocess_fn(spec, list(vocabulary))

    @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
    def tokenize(sentences: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        texts = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(tokens=sentences))
        return preprocess(texts).get_single_element()

    return tokenize


def build_word_ids(vocabulary: Sequence[str]) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns the function from serialized examples to their words, as TFF's preprocessing numbers them.

    It takes a string tensor `[sentences]` and returns words, int32 `[sentences, 21]` (beginning of sentence, at most 20
    words, end of sentence if there is room, padding), and how many of them are to be predicted, int32 `[sentences]`.
    """
    special = _stackoverflow.word_prediction_preprocessing.get_special_tokens(len(vocabulary))
    initial = tf.lookup.KeyValueTensorInitializer(list(vocabulary), tf.range(len(vocabulary), dtype=tf.int64))
    table = tf.lookup.StaticVocabularyTable(initial, num_oov_buckets=len(special.out_of_vocab))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def word_ids(examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        texts = tf.io.parse_example(examples, {"tokens": tf.io.FixedLenFeature([], tf.string)})["tokens"]
        split = tf.strings.split(texts, sep=" ")[:, :SEQUENCE_LENGTH]
        numbers = split.with_values(tf.cast(table.lookup(split.values) + 1, tf.int32))
        lengths = tf.cast(numbers.row_lengths(), tf.int32)
        padded = numbers.to_tensor(default_value=special.padding, shape=[None, SEQUENCE_LENGTH])
        # One beyond the last column of a sentence that fills all of them: no end of sentence then.
        ended = padded + tf.one_hot(lengths, SEQUENCE_LENGTH, on_value=special.end_of_sentence, dtype=tf.int32)
        begin = tf.fill([tf.size(texts), 1], special.beginning_of_sentence)
        return tf.concat([begin, ended], axis=1), tf.minimum(lengths + 1, SEQUENCE_LENGTH)

    return word_ids


class ClientBatches(Clients):
    """The clients that train, whose batches are read from a file in StackOverflow's format.

    A client's sentences are those that TFF's preprocessing with the same seed trains on, in the same order, in the same
    batches: shuffled in a buffer of `max_examples`, repeated, and cut after `max_examples`.

    Args:
        settings: The settings of the run.
        data: The file.
        vocabulary: The words that the model knows.
    """

    def __init__(self, settings: RunSettings, data: pathlib.Path, vocabulary: Sequence[str]) -> None:
        words = tff.TensorType(np.int64, [None, SEQUENCE_LENGTH])
        super().__init__(client_ids(data, TRAIN), tff.StructWithPythonType([words, words], tuple))
        self._data, self._word_ids = data, build_word_ids(vocabulary)
        self._batch_size, self._most = settings.batch_size, settings.max_examples
        self._order = functools.cache(_order(settings.max_examples, settings.client_epochs, settings.seed))

    def read(self, clients: Sequence[str]) -> list[list[Batch]]:
        """Returns the batches of each client: words and the words after them, int64 `[sentences, 20]` each."""
        # A full buffer, and as many sentences again, take its place: later ones cannot be among the first.
        examples = first_examples(self._data, TRAIN, clients, most=2 * self._most)
        chosen = [[own[index] for index in self._order(len(own))] for own in examples]
        words, _ = self._word_ids(tf.constant(list(itertools.chain(*chosen)), tf.string))
        rows = words.numpy().astype(np.int64)
        ends = list(itertools.accumulate(map(len, chosen), initial=0))
        return [self._batches(rows[start:end]) for start, end in itertools.pairwise(ends)]

    def _batches(self, rows: np.ndarray) -> list[Batch]:
        parts = (rows[start : start + self._batch_size] for start in range(0, len(rows), self._batch_size))
        return [(part[:, :-1], part[:, 1:]) for part in parts]


def _order(max_examples: int, client_epochs: int, seed: int) -> Callable[[int], Sequence[int]]:
    """Returns the function from a client's number of sentences to the indices of those that it trains on, in order."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def shuffled(sentences: tf.Tensor) -> tf.Tensor:
        # The seed of this graph, from which TensorFlow takes the seed of its first random operation, as in the graph of
        # TFF's preprocessing.
        tf.random.set_seed(seed)
        indices = tf.data.Dataset.range(sentences)
        if max_examples > 1:
            indices = indices.shuffle(max_examples)
        taken = indices.repeat(client_epochs).take(max_examples).batch(max_examples)
        return taken.with_options(options).get_single_element()

    return lambda sentences: shuffled(sentences).numpy().tolist() if sentences else []


class Tokens(NamedTuple):
    """Some sentences as a model takes them.

    Attributes:
        words: int32 `[sentences, 21]`: beginning of sentence, at most 20 words, end of sentence if there is room,
            padding.
        lengths: int32 `[sentences]`: how many words are to be predicted, 1 to 20.
    """

    words: np.ndarray
    lengths: np.ndarray


class Measured(NamedTuple):
    """What a model reached on some sentences.

    Attributes:
        metrics: Loss per word and accuracies, by the names of `METRICS`; 0 where no word counts, as in Keras.
        sentences: How many sentences these were.
        baseline: The last of the accuracies if the prediction were always their most frequent word.
    """

    metrics: dict[str, float]
    sentences: int
    baseline: float


class Evaluator:
    """Evaluates a run's model: the loss per word and the accuracies of TFF's StackOverflow task, which mask padding.

    Sentences are sorted by length, in batches of one length each, so that no padding is computed. Sums are exact for
    accuracies (TFF's are float32, and lose words beyond 2^24), and float64 for the loss.

    Validation sentences are the first of the heldout clients, or of the test clients. The latter are then left out of
    the test, as in the papers.

    Args:
        settings: The settings of the run.
        data: A file in StackOverflow's format.
        vocabulary: The words that the model knows.
    """

    def __init__(self, settings: RunSettings, data: pathlib.Path, vocabulary: Sequence[str]) -> None:
        number = number_of_sentences(data, TEST)
        if settings.validation_split == TEST and number <= settings.evaluation_examples:
            raise InputValueError(
                f"evaluation_examples={settings.evaluation_examples} leaves no test sentences: the test clients have "
                f"{number}, and with validation_split='test' the first of them are for validation; give fewer."
            )
        self._settings, self._data = settings, data
        special = _stackoverflow.word_prediction_preprocessing.get_special_tokens(len(vocabulary))
        self._tokenize = build_word_ids(vocabulary)
        self._model = build_keras_model(settings, vocabulary=vocabulary)
        # Padding is 0, the words of the vocabulary follow, and special tokens are last.
        self._vocabulary = slice(1, len(vocabulary) + 1)
        self._counts = _counter(self._model, special)
        self._validation = list(self.tokens(settings.validation_split, most=settings.evaluation_examples))

    def tokens(self, split: str, *, skip: int = 0, most: int | None = None) -> Iterator[Tokens]:
        """Yields sentences of a split as words, some thousand at a time, as TFF's preprocessing makes them."""
        for chunk in chunks(self._data, split, skip=skip, most=most):
            words, lengths = self._tokenize(tf.constant(chunk))
            yield Tokens(words.numpy(), lengths.numpy())

    def validate(self, weights: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns the metrics of a model of the run while it trains."""
        return self.measure(weights, self._validation).metrics

    def conclude(self, weights: Sequence[np.ndarray], history: Sequence[Mapping[str, float]]) -> Quality:
        """Returns how good the final model is, given the metrics of each evaluated round."""
        split, all_examples = self._settings.validation_split, self._settings.test_examples
        skip = self._settings.evaluation_examples if split == TEST else 0
        most = None if all_examples == ALL else int(all_examples)
        # Streamed: a test split may have millions of sentences.
        tested = self.measure(weights, self.tokens(TEST, skip=skip, most=most))
        curve = [(int(row[results.ROUND]), row[ACCURACY]) for row in history]
        return Quality(
            accuracy=tested.metrics[ACCURACY],
            baseline_accuracy=tested.baseline,
            loss=strict_json.finite(tested.metrics["loss"]),
            test_sentences=tested.sentences,
            validation_accuracy=history[-1][ACCURACY],
            validation_accuracy_smoothed=results.smoothed(curve),
            validation_sentences=sum(len(chunk.lengths) for chunk in self._validation),
            validation_split=split,
        )

    def measure(self, weights: Sequence[np.ndarray], chunks: Iterable[Tokens]) -> Measured:
        """Returns what a model reaches.

        Args:
            weights: Its trainable weights, in Keras' order.
            chunks: Sentences; each chunk is sorted by itself.
        """
        for variable, weight in zip(self._model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        sentences, total, used = 0, np.zeros(7), np.zeros(self._vocabulary.stop, np.int64)
        for chunk in chunks:
            sentences += len(chunk.lengths)
            used += np.bincount(chunk.words[:, 1:].ravel(), minlength=len(used))[: len(used)]
            # Collected before they are read, so that TensorFlow need not wait for Python.
            counts = [self._counts(batch) for batch in _batches(chunk, _WORDS[self._settings.model])]
            total += np.sum([of_batch.numpy() for of_batch in counts], axis=0)
        sums, words = total[:4], total[[4, 4, 5, 6]]
        values = np.divide(sums, words, out=np.zeros(4), where=words > 0)
        often = used[self._vocabulary]
        return Measured(
            metrics=dict(zip(METRICS, map(float, values), strict=True)),
            sentences=sentences,
            baseline=float(often.max(initial=0) / max(1, often.sum())),
        )


def _batches(chunk: Tokens, words: int) -> Iterator[np.ndarray]:
    """Yields the sentences of a chunk in batches of one length, with the word after each: int32 `[n, length + 1]`."""
    for length in range(1, SEQUENCE_LENGTH + 1):
        sentences = chunk.words[chunk.lengths == length, : length + 1]
        at_once = max(1, words // length)
        for start in range(0, len(sentences), at_once):
            yield sentences[start : start + at_once]


def _counter(model: tf.keras.Model, special: Any) -> Callable[[np.ndarray], tf.Tensor]:
    """Returns the function from a batch to its sum of losses, its three numbers of hits, and of words that count."""
    last = model.layers[-1]
    hidden_of = tf.keras.Model(inputs=model.inputs, outputs=last.input)
    at_once = max(1, _LOGITS // last.units)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def counts(batch: tf.Tensor) -> tf.Tensor:
        hidden = hidden_of(batch[:, :-1], training=False)
        hidden = tf.reshape(hidden, [-1, hidden.shape[-1]])
        targets = tf.reshape(batch[:, 1:], [-1])
        kernel, bias = tf.convert_to_tensor(last.kernel), tf.convert_to_tensor(last.bias)
        total = tf.zeros([7], tf.float64)
        for start in tf.range(0, tf.size(targets), at_once):
            logits = tf.nn.bias_add(tf.matmul(hidden[start : start + at_once], kernel), bias)
            total += _sums(logits, targets[start : start + at_once], special)
        return total

    return counts


def _sums(logits: tf.Tensor, targets: tf.Tensor, special: Any) -> tf.Tensor:
    """Returns the sum of the losses, the three numbers of hits, and of words that count: float64 `[7]`."""
    losses = -tf.gather(tf.nn.log_softmax(logits), targets, batch_dims=1)
    hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), targets)
    in_vocabulary = tf.reduce_all([targets != token for token in special.out_of_vocab], axis=0)
    counted = [tf.ones_like(in_vocabulary), in_vocabulary, in_vocabulary & (targets != special.end_of_sentence)]
    numbers = [tf.math.count_nonzero(words) for words in (*(hits & words for words in counted), *counted)]
    loss = tf.reduce_sum(tf.cast(losses, tf.float64))
    return tf.stack([loss, *(tf.cast(number, tf.float64) for number in numbers)])


def build_process(
    settings: RunSettings,
    privacy: tff_mf.Plan,
    language_task: Task,
    *,
    loop: tff.learning.LoopImplementation = SIMULATION_LOOP,
) -> tuple[tff.learning.templates.LearningProcess, aggregators.MFAggregationFactory]:
    """Returns the learning process of a run, and the aggregator in it that adds the noise.

    With `fed-sgd` a client's update is the mean gradient over its examples, at the model as it was sent; it is clipped,
    summed and noised as the updates of `fed-avg` are.

    Args:
        settings: How to train, with numbers for words: `RunSettings.resolved`.
        privacy: The mechanism and its noise.
        language_task: The model.
        loop: How a client iterates over its batches: `SIMULATION_LOOP`, or `DEVICE_LOOP` of `guard.inputs` for graphs.
            Both give the same model, up to rounding.
    """
    mean = aggregators.MFAggregationFactory.of_plan(privacy)
    optimizers = {"server_optimizer_fn": server_optimizer(settings, privacy)}
    if settings.algorithm == "fed-avg":
        optimizers["client_optimizer_fn"] = tff.learning.optimizers.build_sgdm(settings.client_learning_rate)
    adding: tff.aggregators.UnweightedAggregationFactory = mean
    if settings.zeroing is not None:
        # A constant bound: TFF's adaptive one follows the clients' updates without noise.
        zeroing = tff.aggregators.zeroing_factory(settings.zeroing, mean, norm_order=math.inf)
        # Its measurements are exact counts of zeroed clients.
        adding = aggregators.withhold_measurements(zeroing)
    return learning_process(language_task.model, adding, loop, optimizers), mean


def server_optimizer(settings: RunSettings, privacy: tff_mf.Plan) -> tff.learning.optimizers.Optimizer:
    """Returns the server's optimizer of a run, with the rates of its rounds."""
    highest = validation.positive("server_learning_rate", settings.server_learning_rate)
    if settings.server_optimizer == "dp-ftrl":
        return aggregators.build_dp_ftrl(highest, settings.server_momentum, restart_every=privacy.restart_every)
    rounds = privacy.rounds
    warmup, cooldown = settings.server_warmup * rounds, settings.server_cooldown * rounds

    def rate(step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rising = step / warmup if warmup else 1.0
        falling = (rounds - step) / cooldown if cooldown else 1.0
        ramp = tf.clip_by_value(tf.minimum(rising, falling), 0.0, 1.0)
        return highest * (RAMP_FLOOR + (1 - RAMP_FLOOR) * ramp)

    return tff.learning.optimizers.schedule_learning_rate(
        tff.learning.optimizers.build_sgdm(highest, settings.server_momentum), rate
    )
