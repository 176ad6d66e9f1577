"""The batches of clients' sentences, as TFF's preprocessing makes them: of a whole cohort at once."""

import functools
import itertools
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from ..data import TRAIN, client_ids, first_examples
from ..guard.client_data import Clients
from ..runs.settings import RunSettings

_stackoverflow = tff.simulation.baselines.stackoverflow
SEQUENCE_LENGTH = _stackoverflow.DEFAULT_SEQUENCE_LENGTH
Batch = tuple[np.ndarray, np.ndarray]


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
