"""Next-word prediction as TFF's StackOverflow task defines it, with a model of any size."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from . import models

_stackoverflow = tff.simulation.baselines.stackoverflow
_keras_metrics = tff.simulation.baselines.keras_metrics

SEQUENCE_LENGTH = _stackoverflow.DEFAULT_SEQUENCE_LENGTH
METRICS = ("loss", "accuracy", "accuracy_without_out_of_vocab", "accuracy_without_out_of_vocab_or_end_of_sentence")
ACCURACY = METRICS[-1]
_BATCH = 64
_SHARDS = 2
_ALL = 2**20

Preprocess = Callable[[tf.data.Dataset], tf.data.Dataset]
Evaluation = Callable[[tff.learning.models.ModelWeights], dict[str, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A model, how text becomes its input, and how it is measured.

    Attributes:
        model: The model for TFF.
        measured_model: The same model with the metrics of TFF's task, for evaluation.
        initial_weights: The weights that training starts from.
        preprocess_train: From a client's sentences to its batches.
        preprocess_evaluation: From sentences to batches, in order.
    """

    model: models.TffModel
    measured_model: models.TffModel
    initial_weights: tff.learning.models.ModelWeights
    preprocess_train: Preprocess
    preprocess_evaluation: Preprocess

    @property
    def parameters(self) -> int:
        """Number of the model's parameters d."""
        return sum(int(np.size(weight)) for weight in self.initial_weights.trainable)

    def build_evaluation(self, sentences: tf.data.Dataset) -> Evaluation:
        """Returns a function from a model's weights to its loss per word and masked accuracies on `sentences`."""
        words, targets = (np.concatenate(part) for part in zip(*self._batches(sentences), strict=True))
        evaluation = self._evaluation

        def evaluate(weights: tff.learning.models.ModelWeights) -> dict[str, float]:
            parts = [
                tf.data.Dataset.from_tensor_slices((words[part::_SHARDS], targets[part::_SHARDS])).batch(_BATCH)
                for part in range(_SHARDS)
            ]
            state = evaluation.set_model_weights(evaluation.initialize(), weights)
            metrics = evaluation.next(state, parts).metrics["client_work"]["eval"]["current_round_metrics"]
            return {name: float(value) for name, value in metrics.items() if name in METRICS}

        return evaluate

    @functools.cached_property
    def _evaluation(self) -> tff.learning.templates.LearningProcess:
        # One for all sets of sentences: TFF takes seconds to trace it.
        return tff.learning.algorithms.build_fed_eval(self.measured_model)

    def _batches(self, sentences: tf.data.Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return self.preprocess_evaluation(sentences).as_numpy_iterator()


def build_task(
    config: models.ModelConfig,
    *,
    vocabulary: Sequence[str],
    batch_size: int,
    max_examples: int,
    client_epochs: int,
    seed: int,
) -> Task:
    """Returns the task for a vocabulary.

    Args:
        config: Size of the model.
        vocabulary: Words, the most frequent first.
        batch_size: Sentences a batch of a client.
        max_examples: Sentences a client uses at most in one round.
        client_epochs: Passes over its sentences that a client makes in one round.
        seed: Seed of the initial weights.
    """
    vocabulary = list(vocabulary[: config.vocab_size])
    preprocessing = _stackoverflow.word_prediction_preprocessing
    special = preprocessing.get_special_tokens(len(vocabulary))
    client_spec = tff.simulation.baselines.ClientSpec(
        num_epochs=client_epochs, batch_size=batch_size, max_elements=max_examples, shuffle_buffer_size=max_examples
    )
    evaluation_spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=_BATCH, shuffle_buffer_size=1)

    padding = [special.padding]
    unknown = padding + special.out_of_vocab
    masks = dict(zip(METRICS[1:], (padding, unknown, [*unknown, special.end_of_sentence]), strict=True))

    metrics: models.MetricConstructors = collections.OrderedDict(
        loss=lambda: tf.keras.metrics.SparseCategoricalCrossentropy(
            METRICS[0], from_logits=True, ignore_class=special.padding
        )
    )
    for name, masked in masks.items():
        metrics[name] = functools.partial(_keras_metrics.MaskedCategoricalAccuracy, name=name, masked_tokens=masked)
    words = tf.TensorSpec([None, SEQUENCE_LENGTH], tf.int64)
    build = functools.partial(build_keras_model, config, vocabulary=vocabulary, seed=seed)
    keras_model = build()
    return Task(
        model=models.build_tff_model(config, build, input_spec=(words, words)),
        measured_model=models.build_tff_model(config, build, input_spec=(words, words), metrics=metrics),
        initial_weights=tff.learning.models.ModelWeights.from_model(keras_model),
        preprocess_train=_lean(preprocessing.create_preprocess_fn(client_spec, vocabulary)),
        preprocess_evaluation=preprocessing.create_preprocess_fn(evaluation_spec, vocabulary),
    )


def build_keras_model(config: models.ModelConfig, *, vocabulary: Sequence[str], seed: int) -> tf.keras.Model:
    """Returns the model that knows the words of a vocabulary, with the weights that training starts from."""
    words = vocabulary[: config.vocab_size]
    special = _stackoverflow.word_prediction_preprocessing.get_special_tokens(len(words))
    return models.build_keras_model(
        config, extended_vocab_size=len(words) + special.get_number_of_special_tokens(), seed=seed
    )


def build_tokenizer(vocabulary: Sequence[str]) -> tff.Computation:
    """Returns the computation from sentences, a text `[n]` with n ≥ 1, to a batch of all of them, as models take it."""
    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=_ALL, shuffle_buffer_size=1)
    preprocess = _stackoverflow.word_prediction_preprocessing.create_preprocess_fn(spec, list(vocabulary))

    @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
    def tokenize(sentences: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        texts = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(tokens=sentences))
        return preprocess(texts).get_single_element()

    return tokenize


def _lean(preprocess: Preprocess) -> Preprocess:
    """Spares each client's few batches what TensorFlow spends on tuning long pipelines: a quarter of a round."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return lambda dataset: preprocess(dataset).with_options(options)
