"""Whole rounds of federated averaging, as TFF's tutorials have them, on TFF's own synthetic clients."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

ROUNDS, CLIENTS = 2, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What to train on what.

    Attributes:
        name: What it is.
        clients: Returns the clients' datasets.
        model: From the type of a batch to a model.
    """

    name: str
    clients: Callable[[], list[tf.data.Dataset]]
    model: Callable[[Any], tff.learning.models.VariableModel]


def trained(task: Task, loop: str) -> tuple[list[np.ndarray], dict[str, float]]:
    """Returns the model after a few rounds in the current context, and what an evaluation says of it."""
    tf.keras.utils.set_random_seed(3)
    clients = task.clients()
    process, evaluation, weights = _traced(task, loop)
    state = process.set_model_weights(process.initialize(), weights)
    for number in range(ROUNDS):
        cohort = clients[: CLIENTS - number] + [clients[0].take(0)] * number
        state = process.next(state, cohort).state
    found = process.get_model_weights(state)
    evaluated = evaluation.set_model_weights(evaluation.initialize(), found)
    metrics = evaluation.next(evaluated, clients).metrics["client_work"]["eval"]["current_round_metrics"]
    return [np.array(leaf) for leaf in (*found.trainable, *found.non_trainable)], {
        name: float(value) for name, value in metrics.items() if np.ndim(value) == 0
    }


@functools.cache
def _traced(task: Task, loop: str) -> tuple[Any, Any, Any]:
    """Returns a task's process, evaluation and initial weights, which are the same for every context."""
    spec = task.clients()[0].element_spec

    def model_fn() -> tff.learning.models.VariableModel:
        tf.keras.utils.set_random_seed(3)
        return task.model(spec)

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.02),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
        loop_implementation=tff.learning.LoopImplementation[loop],
    )
    weights = tff.learning.models.ModelWeights.from_model(model_fn())
    weights = tf.nest.map_structure(lambda weight: weight.numpy(), weights)
    return process, tff.learning.algorithms.build_fed_eval(model_fn), weights


def _classifier(spec: Any, classes: int) -> tff.learning.models.VariableModel:
    """Returns the model of the tutorial on images: one dense layer, here after whatever makes features flat."""
    features = spec["x"] if isinstance(spec, dict) else spec[0]
    layers = [tf.keras.layers.InputLayer(input_shape=features.shape[1:], dtype=features.dtype)]
    layers += [tf.keras.layers.Lambda(lambda value: tf.cast(value, tf.float32)), tf.keras.layers.Flatten()]
    layers += [tf.keras.layers.Dense(classes, kernel_initializer="glorot_uniform"), tf.keras.layers.Softmax()]
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential(layers),
        input_spec=spec,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )


def _text_model(spec: Any, words: int) -> tff.learning.models.VariableModel:
    layers = [tf.keras.layers.Embedding(words, 4), tf.keras.layers.GRU(8, return_sequences=True)]
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([*layers, tf.keras.layers.Dense(words)]),
        input_spec=spec,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


def emnist_tutorial() -> list[tf.data.Dataset]:
    """Returns the clients of "Federated Learning for Image Classification", preprocessed as there."""

    def batch_format_fn(element: Any) -> Any:
        return collections.OrderedDict(
            x=tf.reshape(element["pixels"], [-1, 784]), y=tf.reshape(element["label"], [-1, 1])
        )

    data = tff.simulation.datasets.emnist.get_synthetic()
    return [
        data.create_tf_dataset_for_client(client)
        .repeat(5)
        .shuffle(100, seed=1)
        .batch(20)
        .map(batch_format_fn)
        .prefetch(10)
        for client in (data.client_ids * CLIENTS)[:CLIENTS]
    ]


def _shakespeare() -> list[tf.data.Dataset]:
    """Returns the clients of "Federated Learning for Text Generation", preprocessed as there."""
    letters = list("dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r")
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(letters, tf.range(len(letters), dtype=tf.int64)), default_value=0
    )

    def to_ids(example: Any) -> tf.Tensor:
        text = tf.reshape(example["snippets"], shape=[1])
        return table.lookup(tf.strings.bytes_split(text).values)

    data = tff.simulation.datasets.shakespeare.get_synthetic()
    return [
        data.create_tf_dataset_for_client(client)
        .map(to_ids)
        .unbatch()
        .batch(11, drop_remainder=True)
        .shuffle(20, seed=2)
        .batch(4, drop_remainder=True)
        .map(lambda chunk: (chunk[:, :-1], chunk[:, 1:]))
        .take(6)
        for client in (data.client_ids * CLIENTS)[:CLIENTS]
    ]


def _baseline(task: Any) -> list[tf.data.Dataset]:
    data = task.datasets.train_data.preprocess(task.datasets.train_preprocess_fn)
    return [data.create_tf_dataset_for_client(client).take(4) for client in (data.client_ids * CLIENTS)[:CLIENTS]]


def _stackoverflow() -> list[tf.data.Dataset]:
    return _baseline(
        tff.simulation.baselines.stackoverflow.create_word_prediction_task(
            tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=8, max_elements=32),
            sequence_length=6,
            vocab_size=20,
            use_synthetic_data=True,
        )
    )


def _cifar100() -> list[tf.data.Dataset]:
    data = tff.simulation.datasets.cifar100.get_synthetic()
    return [
        data.create_tf_dataset_for_client(client)
        .map(lambda element: (tf.cast(element["image"], tf.float32) / 255, element["label"]))
        .shuffle(10, seed=3)
        .batch(3)
        for client in (data.client_ids * CLIENTS)[:CLIENTS]
    ]


def _plain(labels: Any, features: Any, pairs: bool, pipeline: Callable[[tf.data.Dataset], tf.data.Dataset]) -> Any:
    def clients() -> list[tf.data.Dataset]:
        datasets = []
        for seed in range(CLIENTS):
            generator = np.random.default_rng(seed)
            x = (generator.normal(size=(10, 4)) * 3).astype(features)
            y = generator.integers(0, 3, size=(10, 1)).astype(labels)
            dataset = tf.data.Dataset.from_tensor_slices((x, y))
            dataset = dataset.map(lambda x, y: (x + x, y * 1))
            if not pairs:
                dataset = dataset.map(lambda x, y: collections.OrderedDict(x=x, y=y))
            datasets.append(pipeline(dataset))
        return datasets

    return clients


_PIPELINES: dict[str, Callable[[tf.data.Dataset], tf.data.Dataset]] = {
    "batch": lambda dataset: dataset.batch(4),
    "padded_batch": lambda dataset: dataset.padded_batch(4),
    "cache, shuffle, repeat": lambda dataset: dataset.cache().shuffle(10, seed=5).repeat(2).batch(4),
    "batch, map, prefetch": lambda dataset: (
        dataset.batch(4).map(lambda *batch: batch[0] if len(batch) == 1 else batch, num_parallel_calls=2).prefetch(1)
    ),
}


def tasks() -> Iterator[Task]:
    """Yields every task, the tutorial on images first."""
    yield Task(name="EMNIST tutorial", clients=emnist_tutorial, model=lambda spec: _classifier(spec, 10))
    yield Task(name="Shakespeare tutorial", clients=_shakespeare, model=lambda spec: _text_model(spec, 90))
    yield Task(name="StackOverflow baseline", clients=_stackoverflow, model=lambda spec: _text_model(spec, 24))
    yield Task(name="CIFAR-100", clients=_cifar100, model=lambda spec: _classifier(spec, 100))
    for labels in (np.int32, np.int64):
        for features in (np.float32, np.float64, np.float16, np.int32):
            for pairs in (True, False):
                for name, pipeline in _PIPELINES.items():
                    kind = "pairs" if pairs else "dicts"
                    yield Task(
                        name=f"{features.__name__} to {labels.__name__}, {kind}, {name}",
                        clients=_plain(labels, features, pairs, pipeline),
                        model=lambda spec: _classifier(spec, 3),
                    )
