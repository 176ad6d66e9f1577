"""Checks whether metrics, or state other than the model, reveal anything about the clients of a round."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree

from . import _releases
from ._probe import Probe
from ._result import Findings

_REPEATS = 2
# Sums of floats differ slightly from run to run; noise is larger.
_ROUNDING = 1e-5
# A value that moves this many times as far as rounding does is exact.
_FAR = 10.0

# The server's optimizer sees only the released aggregate, so that its state may be as random.
_AFTER_THE_RELEASE = "finalizer/"

# Metrics of these parts may be computed from clients, except what TFF's `DifferentiallyPrivateFactory` derives from the
# state of its query.
_BESIDE_THE_RELEASE = ("aggregator", "client_work")
_QUERY = "dp_query_metrics"

_MEASURED = (
    "Remove factories that measure, such as tff.learning.add_debug_measurements or aggregators.count_rejected, from "
    "model_aggregator, or wrap it in aggregators.withhold_measurements; give clipping and zeroing around it a constant "
    "bound."
)
_REMEDIES = {
    "metrics": {
        "client_work": "Pass metrics_aggregator=tff_mf.aggregators.withhold_metrics to the algorithm.",
        "aggregator": _MEASURED,
    },
    "state": {
        "client_work": "Train with a client_work that keeps nothing about clients, such as "
        "build_unweighted_fed_avg's: full_gradient_aggregator of build_unweighted_mime_lite sums clients' gradients a "
        "second time.",
        "aggregator": _MEASURED,
        "global_model_weights": "Keep the non-trainable weights constant: release no statistics of clients, such as "
        "BatchNormalization's; use GroupNormalization.",
        "finalizer": "Change the argument that creates it: server_optimizer_fn.",
    },
}
_ELSEWHERE = "Change the argument that creates it: model_distributor, server_optimizer_fn or metrics_aggregator."

Cohorts = dict[str, Sequence[Any]]


def check(probe: Probe, cohorts: Cohorts, fingerprint: str, findings: Findings) -> None:
    """Compares metrics and state of cohorts that differ in one client with the first cohort's.

    Everything but the trainable weights must be bit-identical in each round of each cohort. Only the state of the noise
    and of the server's optimizer may vary by itself.

    Args:
        probe: The process.
        cohorts: The first cohort, and those that differ from it in one client, by a description of the difference.
        fingerprint: Fingerprint of the claimed noise.
        findings: Receives the findings.
    """
    # One initial state for all rounds: what it draws, such as the seed of a rotation, does not depend on clients.
    start = probe.fresh()
    noise = _releases.check(_kept(start), fingerprint, findings)
    random = (_AFTER_THE_RELEASE, *(f"{path}/" for path in noise))
    seen = {}
    for name, cohort in cohorts.items():
        seen[name] = [probe.step(start, cohort) for _ in range(_REPEATS)]
    metrics = {name: [by_path(each.metrics) for each in rounds] for name, rounds in seen.items()}
    states = {name: [_kept(each.state) for each in rounds] for name, rounds in seen.items()}
    _judge("metrics", metrics, (), findings)
    _measured(metrics, findings)
    _judge("state", states, random, findings)
    findings.made("metrics", "state")


def _judge(
    place: str, seen: Mapping[str, Sequence[Mapping[str, Any]]], random: tuple[str, ...], findings: Findings
) -> None:
    first, *others = seen
    exact, varying = {}, {}
    for path in seen[first][0]:
        values = {name: [np.asarray(leaves[path]) for leaves in rounds] for name, rounds in seen.items()}
        if _same([value for rounds in values.values() for value in rounds]):
            continue
        moving = [name for name in others if _moved_exactly(values[first], values[name])]
        part = path.split("/", 1)[0]
        if moving:
            exact.setdefault((part, ", ".join(moving)), []).append(path)
        elif not path.startswith(random):
            varying.setdefault(part, []).append(path)
    for (part, names), paths in exact.items():
        findings.failed(place, f"{_named(paths)} is exact, and changes with {names}.", _remedy(place, part))
    for part, paths in varying.items():
        text = f"{_named(paths)} varies by itself, apart from the noise: it may contain something exact about clients."
        findings.unjudged((place,), text, _remedy(place, part))


def _measured(metrics: Mapping[str, Sequence[Mapping[str, Any]]], findings: Findings) -> None:
    """Adds a finding for metrics that did not change, but that something other than the noised query measures."""
    paths = {path for rounds in metrics.values() for leaves in rounds for path in leaves}
    parts = {path: path.split("/") for path in sorted(paths)}
    others = [path for path, part in parts.items() if part[0] in _BESIDE_THE_RELEASE and _QUERY not in part]
    for part in dict.fromkeys(parts[path][0] for path in others):
        measured = [path for path in others if parts[path][0] == part]
        text = f"{_named(measured)} is measured beside the noised query: it may contain something exact about clients."
        findings.unjudged(("metrics",), text, _remedy("metrics", part))


def _named(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"


def _remedy(place: str, part: str) -> str:
    return _REMEDIES[place].get(part, _ELSEWHERE)


def _kept(state: Any) -> dict[str, Any]:
    weights = state.global_model_weights
    return by_path(state._replace(global_model_weights=getattr(weights, "non_trainable", ())))


def by_path(structure: Any) -> dict[str, Any]:
    """Returns the leaves of a structure by their paths."""
    found = tree.flatten_with_path(structure)
    return {"/".join(map(str, path)): leaf for path, leaf in found}


def _same(arrays: Sequence[np.ndarray]) -> bool:
    return len({(array.shape, array.tobytes()) for array in arrays}) == 1


def _moved_exactly(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> bool:
    """Returns whether values differ between cohorts but, up to rounding, not within one."""
    arrays = [*before, *after]
    if any(array.shape != arrays[0].shape for array in arrays) or not np.issubdtype(arrays[0].dtype, np.number):
        return _same(before) and _same(after) and not _same(arrays)
    if not arrays[0].size:
        return False
    values = np.stack([array.astype(np.float64).ravel() for array in arrays])
    values = np.nan_to_num(values, nan=1e300, posinf=1e300, neginf=-1e300)
    size = np.maximum(np.max(np.abs(values), axis=0), np.finfo(np.float64).tiny)
    first, second = values[: len(before)] / size, values[len(before) :] / size
    spread = np.maximum(np.ptp(first, axis=0), np.ptp(second, axis=0))
    gap = np.maximum(np.min(second, axis=0) - np.max(first, axis=0), np.min(first, axis=0) - np.max(second, axis=0))
    return bool(np.any((spread <= _ROUNDING) & (gap > _FAR * _ROUNDING)))
