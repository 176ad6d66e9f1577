"""Runs the graphs of a bundle at the limits of its grid: records that are too long, and sums of too many clients."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ._grid import totals
from ._manifest import Manifest
from ._results import Refusal
from .stages import Stages, Tensors

_WEIGHTS = "__global_model_weights__"
_NORM_ROUNDING = 1e-6


def too_long(manifest: Manifest, update: Mapping[str, np.ndarray], clip_norm: float) -> str:
    """Returns how a device's update exceeds its bound, or an empty text.

    Formal guarantee: on a grid, it does not only if the sum of the squares of its integers is at most 4^bits exactly
    (see `tff_mf.queries.clipping.within`), and it counts as one client.
    """
    records = list(update.values())
    if manifest.grid is None:
        norm = math.sqrt(_square(records))
        # In this form, NaN is refused too.
        return "" if norm <= clip_norm * (1 + _NORM_ROUNDING) else f"of norm {norm}, above clip_norm={clip_norm}"
    *records, clients = records
    if not _square(records) <= 4.0 ** manifest.grid["bits"]:
        return f"of norm {math.sqrt(_square(records))}, above 2^{manifest.grid['bits']}"
    return "" if clients == 1 else f"that counts as {clients} clients"


def limits(manifest: Manifest, stages: Stages, state: Tensors) -> list[Refusal]:
    """Returns which graphs on a grid exceed its limits: a device's bound, its count as one, or the room of a sum.

    Args:
        manifest: The manifest of the bundle, with a grid.
        stages: The bundle's stages.
        state: A state of the server.
    """
    assert manifest.grid is not None
    largest = np.iinfo(manifest.grid["integers"]).max
    hostile = {
        name: np.full(spec["shape"], largest, spec["dtype"])
        for name, spec in manifest.stages["work"]["outputs"].items()
    }
    found = stages.accumulate(stages.zero(), hostile)
    *records, clients = (np.asarray(found[name]) for name in totals(manifest))
    wrong = []
    if not _square(records) <= 4.0 ** manifest.grid["bits"] or clients != 1:
        wrong.append(("accumulate", "adds more than the grid allows for one device"))
    report = {name: np.asarray(value) for name, value in stages.report(stages.zero()).items()}
    *_, count = report
    report[count] = np.array(manifest.grid["max_clients"] + 1, report[count].dtype)
    if _releases(stages, state, report):
        wrong.append(("update", f"releases a sum of more than max_clients={manifest.grid['max_clients']} clients"))
    return [Refusal(file=manifest.stages[stage]["path"], reason=reason) for stage, reason in wrong]


def _releases(stages: Stages, state: Tensors, report: Mapping[str, Any]) -> bool:
    try:
        after, _ = stages.update(state, report)
    except tf.errors.InvalidArgumentError:
        return False
    return any(np.isfinite(np.asarray(value)).any() for name, value in after.items() if _WEIGHTS in name)


def _square(values: list[np.ndarray]) -> float:
    return float(sum(np.sum(np.square(value, dtype=np.float64)) for value in values))
