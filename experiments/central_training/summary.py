"""What a central training states when it has ended: results, guarantee, and what the guarantee does not cover."""

from collections.abc import Mapping
from typing import Any

import msgspec

import tff_mf
from tff_mf.base import strict_json

from ..runs.folders import versions
from .data_sets import ImageData
from .preparation import PreparedTraining

_NOT_COVERED = (
    "The validation and the test part are not protected: their accuracy is exact.",
    "Choosing settings by repeated training on the same examples is not covered.",
)
_SECRET_BATCHES = "ε is amplified: it holds as long as nobody learns which examples were in a batch, or how many."


def guarantee_of(prepared: PreparedTraining) -> dict[str, Any]:
    """Returns the guarantee of a training as figures, for a JSON file.

    Formal guarantee: `epsilon` is the ε of `prepared`, and `sensitivity` the sensitivity of
    `mechanism.cast_to_float32()`, the C that the noise has. With sampling, `epsilon` is amplified and has no ρ; figures
    that end in `_without_amplification` hold for batches that are known. What is infinite is `None`, and so is every ε
    if none can be stated.
    """
    configuration, order, mechanism = prepared.configuration, prepared.order, prepared.mechanism
    plain = order.guarantee(mechanism, noise_multiplier=prepared.noise_multiplier)
    amplified = configuration.sampling_settings.is_secret
    schema = order.participation
    return {
        "epsilon": strict_json.finite(prepared.epsilon),
        "delta": configuration.delta,
        "zcdp_rho": None if amplified else strict_json.finite(plain.zcdp_rho),
        "adjacency": plain.adjacency,
        "unit": "example",
        "examples": order.examples,
        "sampling": msgspec.to_builtins(configuration.sampling_settings),
        "batch_size": order.batch_size,
        "rounds": order.rounds,
        "min_sep": schema.min_sep,
        "max_participations": schema.max_participations,
        "mechanism": mechanism.kind,
        "sensitivity": tff_mf.sensitivity(mechanism.cast_to_float32(), order.rounds, schema),
        "noise_multiplier": prepared.noise_multiplier,
        "clip_norm": configuration.clip_norm,
        "epsilon_without_amplification": strict_json.finite(max(prepared.epsilon, plain.epsilon(configuration.delta))),
        "zcdp_rho_without_amplification": strict_json.finite(plain.zcdp_rho),
        "not_covered": [*([_SECRET_BATCHES] if amplified else []), *_NOT_COVERED],
    }


def summarize(
    prepared: PreparedTraining, data: ImageData, *, validation: Mapping[str, float], test: Mapping[str, float]
) -> dict[str, Any]:
    """Returns the content of `summary.json`.

    Args:
        prepared: The training.
        data: The parts of its data set.
        validation: Metrics of the trained model on the validation part.
        test: Those on the test split.
    """
    configuration = prepared.configuration
    return {
        "dataset": configuration.dataset,
        "network": configuration.network or configuration.source.network,
        "test_accuracy": _number(test.get("accuracy")),
        "test_loss": _number(test.get("loss")),
        "test_examples": len(data.test[1]),
        "validation_accuracy": _number(validation.get("accuracy")),
        "validation_examples": len(data.validation[1]),
        "statement": prepared.statement,
        **guarantee_of(prepared),
        "versions": versions(),
    }


def _number(value: float | None) -> float | None:
    """Returns a metric as JSON can hold it: a diverged model's metric is not a number."""
    return value if value is not None and -float("inf") < value < float("inf") else None
