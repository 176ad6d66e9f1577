"""Measures a model on any number of sentences: the metrics of TFF's task, without padding and without TFF's worker."""

import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base import strict_json
from tff_mf.base.errors import InputValueError

from ..data import TEST, chunks, number_of_sentences
from ..runs import metrics
from ..runs.metrics import Quality
from ..runs.settings import ALL, RunSettings
from . import task
from .client_batches import SEQUENCE_LENGTH, build_word_ids

_stackoverflow = tff.simulation.baselines.stackoverflow

METRICS = ("loss", "accuracy", "accuracy_without_out_of_vocab", "accuracy_without_out_of_vocab_or_end_of_sentence")
ACCURACY = METRICS[-1]
# Words of a batch: more need memory (of the logits, four bytes a word of the vocabulary), fewer need time.
_WORDS = {"conv": 2048, "lstm": 4096}
# Logits at once: 4 MB, which stay in a processor's cache from the product to the softmax.
_LOGITS = 2**20
# Smaller probabilities lose digits in float32.
_LEAST_PROBABILITY = 1e-30


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
        self._model = task.build_keras_model(settings, vocabulary=vocabulary)
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
        curve = [(int(row[metrics.ROUND]), row[ACCURACY]) for row in history]
        return Quality(
            accuracy=tested.metrics[ACCURACY],
            baseline_accuracy=tested.baseline,
            loss=strict_json.finite(tested.metrics["loss"]),
            test_sentences=tested.sentences,
            validation_accuracy=history[-1][ACCURACY],
            validation_accuracy_smoothed=metrics.smoothed(curve),
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
    largest = tf.reduce_max(logits, axis=1)
    losses = _losses(logits, targets, largest)
    hits = _hits(logits, targets, tf.gather(logits, targets, batch_dims=1) >= largest)
    in_vocabulary = tf.reduce_all([targets != token for token in special.out_of_vocab], axis=0)
    counted = [tf.ones_like(in_vocabulary), in_vocabulary, in_vocabulary & (targets != special.end_of_sentence)]
    numbers = [tf.math.count_nonzero(words) for words in (*(hits & words for words in counted), *counted)]
    loss = tf.reduce_sum(tf.cast(losses, tf.float64))
    return tf.stack([loss, *(tf.cast(number, tf.float64) for number in numbers)])


def _losses(logits: tf.Tensor, targets: tf.Tensor, largest: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropies, `[words]`; `largest` is the largest logit of each word."""
    of_target = tf.gather(tf.nn.softmax(logits), targets, batch_dims=1)

    def accurate() -> tf.Tensor:
        sums = tf.reduce_sum(tf.exp(logits - largest[:, None]), axis=1)
        return largest + tf.math.log(sums) - tf.gather(logits, targets, batch_dims=1)

    # A softmax is one operation and one pass over all logits; exponentials and sums are several.
    return tf.cond(tf.reduce_all(of_target > _LEAST_PROBABILITY), lambda: -tf.math.log(of_target), accurate)


def _hits(logits: tf.Tensor, targets: tf.Tensor, candidates: tf.Tensor) -> tf.Tensor:
    """Returns where the target is the first of the largest logits, which is what an accuracy counts.

    Only candidates, whose logit is a largest one, need the argmax, which takes longer than all else.
    """
    rows = tf.where(candidates)
    guessed = tf.argmax(tf.gather_nd(logits, rows), axis=1, output_type=tf.int32)
    right = tf.cast(guessed == tf.gather_nd(targets, rows), tf.int32)
    return tf.scatter_nd(rows, right, tf.shape(targets, tf.int64)) > 0
