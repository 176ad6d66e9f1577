"""The batches of a cohort's clients, as TFF's preprocessing makes them, read together.

TFF's preprocessing is a pipeline for each client, which is compiled for each client of each round: that takes longer
than the training of a small model. Here the words of all sentences of a cohort are looked up in one call.
"""

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from ..datasets.sentences import ClientSentences

Batch = tuple[np.ndarray, np.ndarray]


class ClientBatches:
    """The batches of clients, by their names.

    A client's sentences are those that TFF's preprocessing with the same seed trains on, in the same order, in the same
    batches: shuffled in a buffer of `max_examples`, repeated, and cut after `max_examples`.

    Args:
        sentences: The clients' sentences.
        word_ids: From serialized examples to words; see `word_ids.build_word_ids`.
        batch_size: Sentences in a batch.
        max_examples: Sentences that a client uses at most.
        client_epochs: Passes over its sentences.
        seed: Seed of the order.
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
        """Returns the batches of each client: words and the words after them, int64 `[sentences, 20]` each.

        Raises:
            InputValueError: If the data set is damaged.
        """
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
