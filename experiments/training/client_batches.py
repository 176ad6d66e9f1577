"""The batches of a cohort's clients, as TFF's preprocessing makes them: read ahead, together, and without padding."""

import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent import futures
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from .datasets.sentences import ClientSentences

_T = TypeVar("_T")
_stackoverflow = tff.simulation.baselines.stackoverflow
SEQUENCE_LENGTH = _stackoverflow.DEFAULT_SEQUENCE_LENGTH
PADDING = 0
Batch = tuple[np.ndarray, np.ndarray]


def read_ahead(chunks: Iterable[_T]) -> Generator[_T, None, None]:
    """Yields chunks, of which the next is read in a thread meanwhile: none of them may be `None`.

    One thread reads and closes them, as connections to SQLite need it; it has ended when this generator is closed. An
    error of reading is raised when its chunk is due.

    Args:
        chunks: Iterated over in the thread, one chunk ahead.
    """
    source = iter(chunks)
    with futures.ThreadPoolExecutor(1) as thread:
        try:
            coming = thread.submit(next, source, None)
            while (chunk := coming.result()) is not None:
                coming = thread.submit(next, source, None)
                yield chunk
        finally:
            if isinstance(source, Generator):
                thread.submit(source.close).result()


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
        found = split.with_values(tf.cast(table.lookup(split.values) + 1, tf.int32))
        lengths = tf.cast(found.row_lengths(), tf.int32)
        padded = found.to_tensor(default_value=special.padding, shape=[None, SEQUENCE_LENGTH])
        # One beyond the last column of a sentence that fills all of them: no end of sentence then.
        ended = padded + tf.one_hot(lengths, SEQUENCE_LENGTH, on_value=special.end_of_sentence, dtype=tf.int32)
        begin = tf.fill([tf.size(texts), 1], special.beginning_of_sentence)
        return tf.concat([begin, ended], axis=1), tf.minimum(lengths + 1, SEQUENCE_LENGTH)

    return word_ids


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


class ClientBatches:
    """The batches of clients, by their names.

    A client's sentences are those that TFF's preprocessing with the same seed trains on, in the same order, in the same
    batches: shuffled in a buffer of `max_examples`, repeated, and cut after `max_examples`.
    The numbers are fields of `RunSettings`, and `word_ids` is from `build_word_ids`.
    """

    def __init__(
        self,
        sentences: ClientSentences,
        word_ids: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
        *,
        batch_size: int,
        max_examples: int,
        client_epochs: int,
        seed: int,
    ) -> None:
        self._sentences, self._word_ids = sentences, word_ids
        self._batch_size, self._most = batch_size, max_examples
        self._order = functools.cache(_order(max_examples, client_epochs, seed))

    def of(self, clients: Sequence[str]) -> list[list[Batch]]:
        """Returns the batches of each client: words and the words after them, int64 `[sentences, 20]` each."""
        # A full buffer, and as many sentences again, take its place: later ones cannot be among the first.
        found = self._sentences.of(clients, most=2 * self._most)
        chosen = [[examples[index] for index in self._order(len(examples))] for examples in found]
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

    def order(sentences: int) -> Sequence[int]:
        return shuffled(sentences).numpy().tolist() if sentences else []

    return order
