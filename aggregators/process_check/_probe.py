"""A learning process seen from outside: what a round adds to the model, from a server that has never stepped."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.errors import InputTypeError

_RATE = tff.learning.optimizers.LEARNING_RATE_KEY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What a round shows.

    Attributes:
        change: What it added to the model's trainable weights, float64 `[dimension]`.
        metrics: Its metrics.
        state: The state after it.
    """

    change: np.ndarray
    metrics: Any
    state: Any


class Probe:
    """Runs single rounds of a process, each with the server's optimizer at its start.

    An optimizer that has not stepped yet has no momentum, so that its first step is in proportion to the aggregate,
    for SGD with any momentum. Later rounds of the noise are seen by giving their aggregator's state to such a server.

    Args:
        process: The process.
        server_learning_rate: The rate of the first step; that which the process itself says if `None`.

    Raises:
        InputTypeError: If the process is not put together as TFF's own are.
    """

    def __init__(self, process: tff.learning.templates.LearningProcess, server_learning_rate: float | None) -> None:
        self._process = process
        start = process.initialize()
        missing = [name for name in ("global_model_weights", "aggregator", "finalizer") if not hasattr(start, name)]
        if missing:
            raise InputTypeError(
                f"process has a state without {' and '.join(missing)}: pass what tff.learning.algorithms build, or "
                "tff.learning.templates.compose_learning_process."
            )
        self.weights = _read(process.get_model_weights(start))
        self.rate = _rate(process, start) if server_learning_rate is None else server_learning_rate
        self.dimension = sum(np.size(leaf) for leaf in _trainable(self.weights))

    def fresh(self, factor: float = 1.0) -> Any:
        """Returns a state before the first round, its model the same one each time, times a factor."""
        weights = tf.nest.map_structure(
            lambda leaf: leaf * np.asarray(factor, leaf.dtype) if _is_float(leaf) else leaf, self.weights
        )
        return self._process.set_model_weights(self._process.initialize(), weights)

    def step(self, state: Any, cohort: Sequence[Any]) -> Seen:
        """Returns what a round of a cohort shows."""
        before = _flat(state.global_model_weights)
        output = self._process.next(state, list(cohort))
        change = _flat(output.state.global_model_weights) - before
        return Seen(change=change, metrics=output.metrics, state=output.state)

    def noise(self, rounds: int) -> list[Seen]:
        """Returns what rounds without clients show, one after the other for the aggregator, each the server's first."""
        start, seen = self.fresh(0.0), []
        state = start
        for _ in range(rounds):
            seen.append(self.step(state, []))
            state = start._replace(aggregator=seen[-1].state.aggregator)
        return seen


def _rate(process: tff.learning.templates.LearningProcess, state: Any) -> float | None:
    parameters = process.get_hparams(state)
    found = parameters.get("finalizer", {}) if isinstance(parameters, dict) else {}
    rate = found.get(_RATE) if isinstance(found, dict) else None
    return None if rate is None else float(np.asarray(rate))


def _trainable(weights: Any) -> list[Any]:
    return tf.nest.flatten(getattr(weights, "trainable", weights))


def _flat(weights: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf)).astype(np.float64) for leaf in _trainable(weights)])


def _read(structure: Any) -> Any:
    return tf.nest.map_structure(np.asarray, structure)


def _is_float(leaf: np.ndarray) -> bool:
    return np.issubdtype(leaf.dtype, np.floating)
