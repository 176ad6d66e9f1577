"""The time of a model's training and evaluation on this machine, measured on a few batches."""

import time
from collections.abc import Callable, Sequence

import tensorflow as tf

# At exit it ends TFF's context, which would report an error by itself.
from ... import aggregators as aggregators
from ..runs.settings import RunSettings
from ..training import evaluation, models, task
from ._estimate import ModelTimes

_EVALUATION_BATCH = 64
_WARMUP = 2
_REPEATS = 5


def measure(candidates: Sequence[RunSettings]) -> ModelTimes:
    """Returns the times of the model with the most parameters: the least of a few repetitions.

    Args:
        candidates: Settings of models, and of a client's batch.
    """
    settings = max(candidates, key=lambda each: (each.dimension, each.batch_size))
    batch, words = settings.batch_size, settings.vocab_size
    model = task.build_keras_model(settings, vocabulary=[f"w{number}" for number in range(words)])
    loss = models.build_loss()

    @tf.function
    def train(words: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = loss(words, model(words, training=True))
        for weight, gradient in zip(
            model.trainable_variables, tape.gradient(value, model.trainable_variables), strict=True
        ):
            # Rate 0: the time of a step, and the weights stay as they are.
            weight.assign_sub(0.0 * tf.convert_to_tensor(gradient))

    @tf.function
    def evaluate(words: tf.Tensor) -> tf.Tensor:
        return loss(words, model(words, training=False))

    seconds = _least_seconds(lambda: train(_sentences(batch, words)))
    evaluated = _least_seconds(lambda: evaluate(_sentences(_EVALUATION_BATCH, words))) / _EVALUATION_BATCH
    count = sum(weight.shape.num_elements() for weight in model.trainable_variables)
    return ModelTimes(
        parameters=count,
        train=seconds,
        evaluate=evaluated,
        words=f"Measured on this machine: {1000 * seconds:.0f} ms for a step on a batch of {batch} sentences with the "
        f"largest model, {settings.model} with {count:,} parameters (the least of {_REPEATS}, without TFF).",
    )


def _sentences(count: int, words: int) -> tf.Tensor:
    return tf.random.stateless_uniform(
        [count, evaluation.SEQUENCE_LENGTH], seed=[0, 0], minval=1, maxval=words, dtype=tf.int64
    )


def _least_seconds(step: Callable[[], object]) -> float:
    times = []
    for _ in range(_WARMUP + _REPEATS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times[_WARMUP:])
