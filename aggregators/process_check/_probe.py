"""Runs single rounds of a learning process, each as the first step of the server's optimizer."""

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
    """What can be seen of a round.

    Attributes:
        change: The change of the model's trainable weights, float64 `[dimension]`.
        metrics: The round's metrics.
        state: The state after the round.
    """

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

    Raises:
        InputTypeError: If the process does not have the structure of TFF's own.
    """

    def __init__(self, process: tff.learning.templates.LearningProcess, server_learning_rate: float | None) -> None:
        self._process = process
        start = process.initialize()
        missing = [name for name in ("global_model_weights", "aggregator", "finalizer") if not hasattr(start, name)]
        if missing:
            raise InputTypeError(
                f"process has a state without {' and '.join(missing)}: pass one from tff.learning.algorithms or "
                "tff.learning.templates.compose_learning_process."
            )
        self.weights = _read(process.get_model_weights(start))
        self.rate = _rate(process, start) if server_learning_rate is None else server_learning_rate
        self.dimension = sum(np.size(leaf) for leaf in _trainable(self.weights))

    def fresh(self, factor: float = 1.0) -> Any:
        """Returns an initial state with always the same model, times a factor."""
        weights = tf.nest.map_structure(
            lambda leaf: leaf * np.asarray(factor, leaf.dtype) if _is_float(leaf) else leaf, self.weights
        )
        return self._process.set_model_weights(self._process.initialize(), weights)

    def step(self, state: Any, cohort: Sequence[Any]) -> Seen:
        """Runs a round with a cohort."""
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
