"""Language models for next-word prediction: the recurrent one of TFF's task, and a light one."""

import tensorflow as tf
import tensorflow_federated as tff

from .settings import ModelConfig

PADDING = 0
_KERNEL_WORDS = 3


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
