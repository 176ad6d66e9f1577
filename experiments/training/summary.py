"""The content of a run's `summary.json`: metrics, guarantee, and how the run was trained."""

from collections.abc import Mapping
from typing import Any

import tff_mf

from .preparation import PreparedRun
from .task import ACCURACY

# What a summary names of the settings, in this order.
_SETTINGS = (
    *("algorithm", "model", "server_optimizer", "server_learning_rate", "server_momentum", "server_warmup"),
    *("server_cooldown", "client_learning_rate", "clip_norm", "adaptive_clipping", "adaptive_learning_rate", "zeroing"),
    *("sampling", "dropout", "seed"),
)


def summarize(
    prepared: PreparedRun,
    *,
    evaluated: Mapping[str, float],
    validated: Mapping[str, float],
    claims: Mapping[str, Any],
    model_sha256: str,
    seconds: float,
) -> dict[str, Any]:
    """Returns the summary of a run that has ended.

    Args:
        prepared: The run.
        evaluated: Metrics of the final model on test clients.
        validated: Metrics of the final model on validation clients.
        claims: The fields that state the guarantee: `privacy.summary.privacy_claims`.
        model_sha256: Hash of the file with the final model.
        seconds: How long the rounds took.
    """
    settings = prepared.settings.to_dict()
    return {
        "accuracy": evaluated[ACCURACY],
        "loss": evaluated["loss"],
        "validation_accuracy": validated[ACCURACY],
        **claims,
        "model_sha256": model_sha256,
        **{name: settings[name] for name in _SETTINGS if name in settings},
        "parameters": prepared.language_task.parameters,
        "dropped_participations": prepared.dropped_participations,
        "seconds": seconds,
        "tff_mf_version": tff_mf.__version__,
    }
