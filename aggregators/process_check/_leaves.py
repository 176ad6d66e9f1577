"""Metrics and state beside the model: whether they tell anything exact about the clients of a round."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tree

from ._probe import Probe, Seen
from ._result import Findings

_REPEATS = 2
# Sums of floats come out a little different each time; what noise adds is larger.
_ROUNDING = 1e-5
# A metric that varies by itself is suspicious if other clients move it this many times as far.
_FAR = 10.0

_REMEDIES = {
    "client_work": "Pass metrics_aggregator=tff_mf.aggregators.withhold_metrics to the algorithm.",
    "aggregator": "Take off model_aggregator what measures, such as tff.learning.add_debug_measurements or "
    "aggregators.count_rejected, or put aggregators.withhold_measurements around it; give clipping and zeroing around "
    "it a constant bound.",
}
_ELSEWHERE = "Change what makes it: model_distributor, server_optimizer_fn or metrics_aggregator."

Cohorts = dict[str, Sequence[Any]]


def check(probe: Probe, cohorts: Cohorts, findings: Findings) -> None:
    """Compares metrics and state of cohorts that differ in one client with those of the first cohort."""
    seen = {}
    for name, cohort in cohorts.items():
        seen[name] = [probe.step(probe.fresh(), cohort) for _ in range(_REPEATS)]
    first, *others = seen
    for name in others:
        _compare(name, seen[first], seen[name], findings)
    findings.made("metrics", "state")


def _compare(what: str, base: Sequence[Seen], changed: Sequence[Seen], findings: Findings) -> None:
    places = {
        "metrics": ([_leaves(each.metrics) for each in base], [_leaves(each.metrics) for each in changed]),
        "state": ([_kept(each.state) for each in base], [_kept(each.state) for each in changed]),
    }
    for place, (before, after) in places.items():
        for path in before[0]:
            verdict = _moved([each[path] for each in before], [each[path] for each in after])
            part = path.split("/", 1)[0]
            remedy = _REMEDIES.get(part, _ELSEWHERE)
            if verdict == "exact":
                findings.failed(place, f"{path} is exact, and moves with {what}.", remedy)
            elif verdict == "far" and place == "metrics":
                findings.unjudged(
                    (place,), f"{path} varies by itself, and moves far beyond that with {what}: is it noised?", remedy
                )


def _kept(state: Any) -> dict[str, Any]:
    return _leaves(state._replace(global_model_weights=()))


def _leaves(structure: Any) -> dict[str, Any]:
    found = tree.flatten_with_path(structure)
    return {"/".join(map(str, path)): leaf for path, leaf in found}


def _moved(before: Sequence[Any], after: Sequence[Any]) -> str | None:
    """Returns `exact` if values differ between cohorts and never within one, `far` if they merely differ much."""
    arrays = [np.asarray(leaf) for leaf in (*before, *after)]
    if any(array.shape != arrays[0].shape for array in arrays) or not np.issubdtype(arrays[0].dtype, np.number):
        same = [len({array.tobytes() for array in part}) == 1 for part in (arrays[:_REPEATS], arrays[_REPEATS:])]
        differ = arrays[0].tobytes() != arrays[-1].tobytes() or arrays[0].shape != arrays[-1].shape
        return "exact" if all(same) and differ else None
    if not arrays[0].size:
        return None
    values = np.stack([array.astype(np.float64).ravel() for array in arrays])
    values = np.nan_to_num(values, nan=1e300, posinf=1e300, neginf=-1e300)
    size = np.maximum(np.max(np.abs(values), axis=0), np.finfo(np.float64).tiny)
    first, second = values[:_REPEATS] / size, values[_REPEATS:] / size
    spread = np.maximum(np.ptp(first, axis=0), np.ptp(second, axis=0))
    gap = np.maximum(np.min(second, axis=0) - np.max(first, axis=0), np.min(first, axis=0) - np.max(second, axis=0))
    if np.any((spread <= _ROUNDING) & (gap > _FAR * _ROUNDING)):
        return "exact"
    return "far" if np.any(gap > _FAR * np.maximum(spread, _ROUNDING)) else None
