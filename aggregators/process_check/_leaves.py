"""Metrics and state beside the model: whether they tell anything about the clients of a round."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree

from . import _releases
from ._probe import Probe
from ._result import Findings

_REPEATS = 2
# Sums of floats come out a little different each time; what noise adds is larger.
_ROUNDING = 1e-5
# What moves this many times as far as it comes out different by itself is exact.
_FAR = 10.0

# The server's optimizer sees the released aggregate alone, so that its state may be as random as that is.
_AFTER_THE_RELEASE = "finalizer/"

_MEASURED = (
    "Take off model_aggregator what measures, such as tff.learning.add_debug_measurements or "
    "aggregators.count_rejected, or put aggregators.withhold_measurements around it; give clipping and zeroing around "
    "it a constant bound."
)
_REMEDIES = {
    "metrics": {
        "client_work": "Pass metrics_aggregator=tff_mf.aggregators.withhold_metrics to the algorithm.",
        "aggregator": _MEASURED,
    },
    "state": {
        "client_work": "Train with a client_work that keeps nothing of clients, as build_unweighted_fed_avg does: "
        "full_gradient_aggregator of build_unweighted_mime_lite sums clients' gradients a second time.",
        "aggregator": _MEASURED,
        "global_model_weights": "Leave the non-trainable weights as they are: release no statistics of clients, such "
        "as those of BatchNormalization, and use GroupNormalization.",
        "finalizer": "Change what makes it: server_optimizer_fn.",
    },
}
_ELSEWHERE = "Change what makes it: model_distributor, server_optimizer_fn or metrics_aggregator."

Cohorts = dict[str, Sequence[Any]]


def check(probe: Probe, cohorts: Cohorts, fingerprint: str, findings: Findings) -> None:
    """Compares metrics and state of cohorts that differ in one client with those of the first cohort.

    The trainable weights apart, all must be the same to the last bit in each round of each cohort. What noise is
    expected in, that of the aggregator's own state and of the server's optimizer, may vary by itself.

    Args:
        probe: The process.
        cohorts: The first cohort, and those that differ from it in one client, by what that is.
        fingerprint: That of the claimed noise.
        findings: What was found is noted here.
    """
    # One start for all rounds: what is drawn with it, such as seeds of a rotation, tells nothing of clients.
    start = probe.fresh()
    noise = _releases.check(_kept(start), fingerprint, findings)
    random = (_AFTER_THE_RELEASE, *(f"{path}/" for path in noise))
    seen = {}
    for name, cohort in cohorts.items():
        seen[name] = [probe.step(start, cohort) for _ in range(_REPEATS)]
    metrics = {name: [by_path(each.metrics) for each in rounds] for name, rounds in seen.items()}
    states = {name: [_kept(each.state) for each in rounds] for name, rounds in seen.items()}
    _judge("metrics", metrics, (), findings)
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
        findings.failed(place, f"{_named(paths)} is exact, and moves with {names}.", _remedy(place, part))
    for part, paths in varying.items():
        text = f"{_named(paths)} varies by itself beside the model's noise: it may hold something exact about clients."
        findings.unjudged((place,), text, _remedy(place, part))


def _named(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"


def _remedy(place: str, part: str) -> str:
    return _REMEDIES[place].get(part, _ELSEWHERE)


def _kept(state: Any) -> dict[str, Any]:
    weights = state.global_model_weights
    return by_path(state._replace(global_model_weights=getattr(weights, "non_trainable", ())))


def by_path(structure: Any) -> dict[str, Any]:
    """Returns the leaves of a structure, by their paths."""
    found = tree.flatten_with_path(structure)
    return {"/".join(map(str, path)): leaf for path, leaf in found}


def _same(arrays: Sequence[np.ndarray]) -> bool:
    return len({(array.shape, array.tobytes()) for array in arrays}) == 1


def _moved_exactly(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> bool:
    """Returns whether values differ between cohorts and never within one, but for rounding."""
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
