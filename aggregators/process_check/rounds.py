"""Rounds of the process that is checked: without clients, and with clients that are made up."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_mf.base.errors import InputTypeError

_RATE = tff.learning.optimizers.LEARNING_RATE_KEY
_TIMES = 8
_FACTOR = 100.0
# A change of the model stands out from noise by this many standard deviations.
_DEVIATIONS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What can be seen of a round: the change of the trainable weights, float64 `[dimension]`, metrics and state."""

    change: np.ndarray
    metrics: Any
    state: Any


class Probe:
    """Runs single rounds of a process, each with the server's optimizer in its initial state.

    An optimizer that has not stepped yet has no momentum, so that its first step is proportional to the aggregate, for
    SGD with any momentum. Later rounds of the noise are observed by combining the aggregator's later state with it.

    Args:
        process: The process.
        server_learning_rate: The rate of the first step; if `None`, the one in the process's `get_hparams`.
    """

    def __init__(
        self, process: tff.learning.templates.LearningProcess, server_learning_rate: float | None = None
    ) -> None:
        self._process = process
        start = process.initialize()
        missing = [name for name in ("global_model_weights", "aggregator", "finalizer") if not hasattr(start, name)]
        if missing:
            raise InputTypeError(
                f"process has a state without {' and '.join(missing)}: pass one from tff.learning.algorithms or "
                "tff.learning.templates.compose_learning_process."
            )
        self.weights = tf.nest.map_structure(np.asarray, process.get_model_weights(start))
        self.rate = _rate(process, start) if server_learning_rate is None else server_learning_rate
        self.dimension = sum(np.size(leaf) for leaf in _trainable(self.weights))

    def fresh(self, factor: float = 1.0) -> Any:
        """Returns an initial state with always the same model, times a factor."""
        weights = tf.nest.map_structure(
            lambda leaf: leaf * np.asarray(factor, leaf.dtype) if np.issubdtype(leaf.dtype, np.floating) else leaf,
            self.weights,
        )
        return self._process.set_model_weights(self._process.initialize(), weights)

    def step(self, state: Any, cohort: Sequence[Any]) -> Seen:
        before = _flat(state.global_model_weights)
        output = self._process.next(state, list(cohort))
        change = _flat(output.state.global_model_weights) - before
        return Seen(change=change, metrics=output.metrics, state=output.state)

    def noise(self, rounds: int) -> list[Seen]:
        """Runs rounds without clients: successive for the aggregator, each the first for the server's optimizer."""
        start, seen = self.fresh(0.0), []
        state = start
        for _ in range(rounds):
            seen.append(self.step(state, []))
            state = start._replace(aggregator=seen[-1].state.aggregator)
        return seen


def _rate(process: tff.learning.templates.LearningProcess, state: Any) -> float | None:
    parameters = process.get_hparams(state)
    of_server = parameters.get("finalizer", {}) if isinstance(parameters, dict) else {}
    rate = of_server.get(_RATE) if isinstance(of_server, dict) else None
    return None if rate is None else float(np.asarray(rate))


def _trainable(weights: Any) -> list[Any]:
    return tf.nest.flatten(getattr(weights, "trainable", weights))


def _flat(weights: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf)).astype(np.float64) for leaf in _trainable(weights)])


def scaled(client: Any, factor: float) -> Any | None:
    """Returns a client with the first batch of an example, its floating-point numbers times a factor, or `None`.

    Only one batch, since a client that takes several steps on such numbers would overflow, which makes its update zero.
    It is `None` if there are no such numbers.
    """

    def changed(leaf: Any) -> Any:
        return leaf * tf.cast(factor, leaf.dtype) if leaf.dtype.is_floating else leaf

    if isinstance(client, tf.data.Dataset):
        has_floats = any(spec.dtype.is_floating for spec in tf.nest.flatten(client.element_spec))
        return _over(client.take(1), changed) if has_floats else None
    if isinstance(client, list) and client:
        batch = tree.map_structure(tf.convert_to_tensor, client[0])
        has_floats = any(leaf.dtype.is_floating for leaf in tree.flatten(batch))
        return [tree.map_structure(lambda leaf: changed(leaf).numpy(), batch)] if has_floats else None
    return None


def enlarged(client: Any, times: int) -> Any | None:
    """Returns a client with each batch repeated `times` times, or `None` if the size of batches is fixed."""
    if not isinstance(client, tf.data.Dataset):
        return None
    free = all(spec.shape.rank and spec.shape[0] is None for spec in tf.nest.flatten(client.element_spec))
    return _over(client, lambda leaf: tf.concat([leaf] * times, axis=0)) if free else None


def _over(dataset: tf.data.Dataset, change: Callable[[Any], Any]) -> tf.data.Dataset:
    """Returns a data set with each tensor changed, as constants: it contains no `map`."""
    parts = [tf.data.Dataset.from_tensors(tf.nest.map_structure(change, element)) for element in dataset]
    return functools.reduce(tf.data.Dataset.concatenate, parts)


def neighbours(clients: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Returns a cohort, and cohorts that differ from it in one client, by a description of the difference."""
    first, rest = clients[0], clients[1:]
    cohorts = {"nothing": clients, "the number of clients": rest, "one client's data": [*rest, rest[0]]}
    if isinstance(first, tf.data.Dataset):
        cohorts["one client's examples"] = [first.repeat(_TIMES), *rest]
    elif isinstance(first, list):
        cohorts["one client's examples"] = [first * _TIMES, *rest]
    if (extreme := scaled(first, _FACTOR)) is not None:
        cohorts["one client's hostile data"] = [extreme, *rest]
    if (invalid := scaled(first, np.nan)) is not None:
        cohorts["one client's NaN"] = [invalid, *rest]
    return cohorts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
    """What a cohort of identical clients adds to the model: how far without noise, NaN if it is not finite."""

    size: float
    noise_stddev: float
    dimension: int

    @property
    def stands_out(self) -> bool:
        """Whether the change is larger than noise could be."""
        variance = self.noise_stddev**2
        deviation = math.sqrt(2 * self.size**2 * variance + self.dimension * variance**2)
        return self.size**2 > _DEVIATIONS * deviation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """A client whose update is meant to be long: its data, or the model's weights, times a factor."""

    example: Any
    scale: float | None = None
    factor: float = 1.0

    def move(self, probe: Probe, count: int) -> Move:
        """Returns what `count` such clients add to the model; its size is NaN if the model is not finite.

        The noise of two rounds is independent, so that the inner product of their changes is free of it on average.
        """
        cohort = [self.example if self.scale is None else scaled(self.example, self.scale)] * count
        first, second = (probe.step(probe.fresh(self.factor), cohort).change for _ in range(2))
        product = float(first @ second)
        size = math.sqrt(max(0.0, product)) if math.isfinite(product) else math.nan
        noise = float(np.sqrt(np.mean((first - second) ** 2) / 2))
        return Move(size=size, noise_stddev=noise, dimension=first.size)


def attempts(clients: Sequence[Any]) -> Iterator[Attempt]:
    """Yields clients with longer and longer updates, from larger data or for a model with larger weights."""
    example = clients[0]
    for scale in (10.0, 100.0, 1000.0) if scaled(example, 1.0) is not None else ():
        yield Attempt(example=example, scale=scale)
    for factor in (1.0, 10.0, 100.0):
        yield Attempt(example=example, factor=factor)
