"""The content of a run's `summary.json`: metrics, guarantee, and how the run was trained."""

from collections.abc import Mapping
from typing import Any

import msgspec

import tff_mf

from .preparation import PreparedRun

# What a summary names of the settings, in this order.
_SETTINGS = (
    *("algorithm", "model", "server_optimizer", "server_learning_rate", "server_momentum", "server_warmup"),
    *("server_cooldown", "client_learning_rate", "clip_norm", "adaptive_clipping", "adaptive_learning_rate", "zeroing"),
    *("sampling", "dropout", "seed"),
)


def summarize(
    prepared: PreparedRun,
    *,
    measured: Mapping[str, Any],
    claims: Mapping[str, Any],
    model_sha256: str,
    seconds: float,
) -> dict[str, Any]:
    """Returns the summary of a run that has ended.

    Args:
        prepared: The run.
        measured: The fields that say how good the final model is: `measurement.Measurement.conclude`.
        claims: The fields that state the guarantee: `privacy.summary.privacy_claims`.
        model_sha256: Hash of the file with the final model.
        seconds: How long the rounds took.
    """
    settings = msgspec.to_builtins(prepared.settings)
    return {
        **measured,
        **claims,
        "model_sha256": model_sha256,
        **{name: settings[name] for name in _SETTINGS},
        "parameters": prepared.language_task.parameters,
        "dropped_participations": prepared.dropped_participations,
        "seconds": seconds,
        "tff_mf_version": tff_mf.__version__,
    }
