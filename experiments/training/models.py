"""Keras models for next-word prediction: the recurrent one of TFF's task, and a light one."""

from collections.abc import Callable

import tensorflow as tf
import tensorflow_federated as tff

from ..configuration.settings import ModelConfig
from .packing import PADDING

_KERNEL_WORDS = 3


TffModel = tff.learning.models.FunctionalModel | Callable[[], tff.learning.models.VariableModel]


def build_keras_model(config: ModelConfig, *, extended_vocab_size: int, seed: int) -> tf.keras.Model:
    """Returns an uncompiled model from words `[batch, length]` to logits `[batch, length, extended_vocab_size]`.

    Args:
        config: Size of the model.
        extended_vocab_size: Words and special tokens together.
        seed: Seed of the initial weights, which are public.
    """
    tf.keras.utils.set_random_seed(seed)
    if config.architecture == "lstm":
        return tff.simulation.baselines.stackoverflow.word_prediction_models.create_recurrent_model(
            vocab_size=extended_vocab_size, embedding_size=config.embedding_size, lstm_size=config.units
        )
    words = tf.keras.layers.Input(shape=(None,), dtype=tf.int64)
    embedded = tf.keras.layers.Embedding(extended_vocab_size, config.embedding_size)(words)
    hidden = tf.keras.layers.Conv1D(config.units, _KERNEL_WORDS, padding="causal", activation="relu")(embedded)
    return tf.keras.Model(inputs=words, outputs=tf.keras.layers.Dense(extended_vocab_size)(hidden))


def build_loss() -> tf.keras.losses.Loss:
    """Returns the cross-entropy per word, padding left out."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING)


def build_reference_model(
    config: ModelConfig,
    build: Callable[[], tf.keras.Model],
    *,
    input_spec: tuple[tf.TensorSpec, tf.TensorSpec],
) -> TffModel:
    """Returns TFF's own model for training: a functional one where possible, whose rounds take a third less time.

    The recurrent model cannot be one: it masks padding, and TFF's conversion leaves the mask behind.

    Args:
        config: Size of the model.
        build: Makes the Keras model.
        input_spec: Type of a batch.
    """
    if config.architecture == "lstm":
        return lambda: tff.learning.models.from_keras_model(build(), build_loss(), input_spec=input_spec, metrics=[])
    return tff.learning.models.functional_model_from_keras(build(), build_loss(), input_spec=input_spec)
