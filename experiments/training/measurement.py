"""Which sentences a run measures its model on: validation sentences while it trains, test sentences once at the end."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_mf import strict_json
from tff_mf.errors import InputValueError

from ..configuration.settings import ALL, TrainingSettings
from ..datasets import sentences
from ..run_folder import metrics
from .evaluation import ACCURACY
from .task import Task

_HELDOUT, _TEST = "heldout", "test"

Weights = tff.learning.models.ModelWeights
Evaluation = Callable[[Weights], dict[str, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """How a run measures its model.

    Attributes:
        evaluate: Measures a model while the run trains.
        conclude: Measures the final model, once; takes it and the metrics of each evaluated round, and returns the
            fields of a summary.
    """

    evaluate: Evaluation
    conclude: Callable[[Weights, Sequence[Mapping[str, float]]], dict[str, Any]]


def build_measurement(settings: TrainingSettings, data: pathlib.Path, language_task: Task) -> Measurement:
    """Returns how a run measures its model.

    Validation sentences are the first of the heldout clients, or of the test clients. The latter are then left out of
    the test, as in the papers.

    Args:
        settings: The run's settings.
        data: File in StackOverflow's format.
        language_task: The model.

    Raises:
        InputValueError: If validation leaves no test sentences.
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

    def conclude(weights: Weights, history: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        # Streamed: a test split may have millions of sentences.
        streamed = evaluator.tokens(sentences.chunks(data, _TEST, skip=skip, most=most))
        tested = evaluator.measure(_arrays(weights), streamed)
        curve = [(int(row[metrics.ROUND]), row[ACCURACY]) for row in history]
        return {
            "accuracy": tested.metrics[ACCURACY],
            "loss": strict_json.finite(tested.metrics["loss"]),
            "test_sentences": tested.sentences,
            "validation_accuracy": history[-1][ACCURACY],
            "validation_accuracy_smoothed": metrics.smoothed(curve),
            "validation_sentences": sum(len(chunk.lengths) for chunk in kept),
            "validation_split": split,
        }

    return Measurement(evaluate=evaluate, conclude=conclude)


def _arrays(weights: Weights) -> list[np.ndarray]:
    return [np.asarray(weight) for weight in weights.trainable]
