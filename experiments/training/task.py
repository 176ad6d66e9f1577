"""Next-word prediction as TFF's StackOverflow task defines it, with a model of any size, and its measurement."""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base import strict_json
from tff_mf.base.errors import InputValueError

from ..guard import weight_names
from ..runs import metrics
from ..runs.settings import ALL, RunSettings
from ..runs.summary import Quality
from . import client_batches, evaluation, models
from .datasets import sentences
from .datasets.sentences import ClientSentences
from .evaluation import ACCURACY

_stackoverflow = tff.simulation.baselines.stackoverflow

METRICS = evaluation.METRICS
_ALL = 2**20
_HELDOUT, _TEST = "heldout", "test"
Weights = tff.learning.models.ModelWeights
Evaluation = Callable[[Weights], dict[str, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A model, how text becomes its input, and how it is measured.

    Attributes:
        model: The model for TFF.
        initial_weights: The weights that training starts from.
        weight_names: Their names.
        build_evaluator: Makes the evaluator of such models.
        build_batches: Makes what reads the batches of whole cohorts.
    """

    model: models.TffModel
    initial_weights: tff.learning.models.ModelWeights
    weight_names: Sequence[str]
    build_evaluator: Callable[[], evaluation.Evaluator]
    build_batches: Callable[[ClientSentences], client_batches.ClientBatches]

    @property
    def parameters(self) -> int:
        """Number of the model's parameters d."""
        return sum(int(np.size(weight)) for weight in self.initial_weights.trainable)


def build_task(settings: RunSettings, vocabulary: Sequence[str]) -> Task:
    """Returns the task of a run, for the words that its model knows."""
    vocabulary = list(vocabulary[: settings.vocab_size])
    words = tf.TensorSpec([None, evaluation.SEQUENCE_LENGTH], tf.int64)
    build = functools.partial(build_keras_model, settings, vocabulary=vocabulary)
    keras_model = build()
    initial_weights = tff.learning.models.ModelWeights.from_model(keras_model)
    if settings.reference_model:
        model = models.build_reference_model(settings.model, build, input_spec=(words, words))
    else:
        model = models.build_hoisted_model(
            settings.model, [np.asarray(weight) for weight in initial_weights.trainable], input_spec=(words, words)
        )
    return Task(
        model=model,
        initial_weights=initial_weights,
        weight_names=weight_names.in_a_new_graph(lambda: build().trainable_variables),
        build_evaluator=functools.partial(evaluation.Evaluator, settings.model, build, vocabulary),
        build_batches=functools.partial(
            client_batches.ClientBatches,
            word_ids=client_batches.build_word_ids(vocabulary),
            batch_size=settings.batch_size,
            max_examples=settings.max_examples,
            client_epochs=settings.client_epochs,
            seed=settings.seed,
        ),
    )


def build_keras_model(settings: RunSettings, *, vocabulary: Sequence[str]) -> tf.keras.Model:
    """Returns the model that knows the words of a vocabulary, with the weights that training starts from."""
    words = vocabulary[: settings.vocab_size]
    special = _stackoverflow.word_prediction_preprocessing.get_special_tokens(len(words))
    return models.build_keras_model(settings, extended_vocab_size=len(words) + special.get_number_of_special_tokens())


def build_tokenizer(vocabulary: Sequence[str]) -> tff.Computation:
    """Returns the computation from sentences, a text `[n]` with n ≥ 1, to a batch of all of them, as models take it."""
    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=_ALL, shuffle_buffer_size=1)
    preprocess = _stackoverflow.word_prediction_preprocessing.create_preprocess_fn(spec, list(vocabulary))

    @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
    def tokenize(sentences: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        texts = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(tokens=sentences))
        return preprocess(texts).get_single_element()

    return tokenize


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """How a run measures its model.

    Attributes:
        evaluate: Measures a model while the run trains.
        conclude: Measures the final model, once; takes it and the metrics of each evaluated round.
    """

    evaluate: Evaluation
    conclude: Callable[[Weights, Sequence[Mapping[str, float]]], Quality]


def build_measurement(settings: RunSettings, data: pathlib.Path, language_task: Task) -> Measurement:
    """Returns how a run measures its model.

    Validation sentences are the first of the heldout clients, or of the test clients. The latter are then left out of
    the test, as in the papers.
    """
    split = settings.validation_split
    skip = settings.evaluation_examples if split == _TEST else 0
    if next(sentences.chunks(data, _TEST, skip=skip, most=1), None) is None:
        raise InputValueError(
            f"evaluation_examples={skip} leaves no test sentences: the test clients have "
            f"{sentences.number(data, _TEST)}, and with validation_split={_TEST!r} the first of them are for "
            "validation; give fewer, or "
            f"validation_split={_HELDOUT!r}."
        )
    most = None if settings.test_examples == ALL else int(settings.test_examples)
    evaluator = language_task.build_evaluator()
    kept = list(evaluator.tokens(sentences.chunks(data, split, most=settings.evaluation_examples)))

    def evaluate(weights: Weights) -> dict[str, float]:
        return evaluator.measure(_arrays(weights), kept).metrics

    def conclude(weights: Weights, history: Sequence[Mapping[str, float]]) -> Quality:
        # Streamed: a test split may have millions of sentences.
        streamed = evaluator.tokens(sentences.chunks(data, _TEST, skip=skip, most=most))
        tested = evaluator.measure(_arrays(weights), streamed)
        curve = [(int(row[metrics.ROUND]), row[ACCURACY]) for row in history]
        return Quality(
            accuracy=tested.metrics[ACCURACY],
            baseline_accuracy=tested.baseline,
            loss=strict_json.finite(tested.metrics["loss"]),
            test_sentences=tested.sentences,
            validation_accuracy=history[-1][ACCURACY],
            validation_accuracy_smoothed=metrics.smoothed(curve),
            validation_sentences=sum(len(chunk.lengths) for chunk in kept),
            validation_split=split,
        )

    return Measurement(evaluate=evaluate, conclude=conclude)


def _arrays(weights: Weights) -> list[np.ndarray]:
    return [np.asarray(weight) for weight in weights.trainable]
