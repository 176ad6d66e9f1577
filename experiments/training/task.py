"""Next-word prediction as TFF's StackOverflow task defines it, with a model of any size."""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from ..guard.models import names_in_a_new_graph
from ..runs.settings import RunSettings
from . import client_batches, models

_stackoverflow = tff.simulation.baselines.stackoverflow
_ALL = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A model, and what it starts from.

    Attributes:
        model: The model for TFF.
        initial_weights: The weights that training starts from.
        weight_names: Their names.
    """

    model: tff.learning.models.FunctionalModel
    initial_weights: tff.learning.models.ModelWeights
    weight_names: Sequence[str]

    @property
    def parameters(self) -> int:
        """Number of the model's parameters d."""
        return sum(int(np.size(weight)) for weight in self.initial_weights.trainable)


def build_task(settings: RunSettings, vocabulary: Sequence[str]) -> Task:
    """Returns the task of a run, for the words that its model knows."""
    words = tf.TensorSpec([None, client_batches.SEQUENCE_LENGTH], tf.int64)
    initial = tff.learning.models.ModelWeights.from_model(build_keras_model(settings, vocabulary=vocabulary))
    arrays = [np.asarray(weight) for weight in initial.trainable]
    return Task(
        model=models.build_hoisted_model(settings.model, arrays, input_spec=(words, words)),
        initial_weights=initial,
        weight_names=names_in_a_new_graph(
            lambda: build_keras_model(settings, vocabulary=vocabulary).trainable_variables
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
