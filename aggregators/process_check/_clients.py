"""Cohorts of made-up clients: what they hold, what they attempt, and where it may show."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from . import _noise
from ._probe import Findings, Probe

_TIMES = 8
_FACTOR = 100.0


def scaled(client: Any, factor: float) -> Any | None:
    """Returns a client with the first batch of an example, its floating-point numbers times a factor, or `None`.

    Only one batch, since a client that takes several steps on such numbers would overflow, which makes its update zero.
    """
    return _mapped(client, lambda leaf: leaf * tf.cast(factor, leaf.dtype))


def poisoned(client: Any) -> Any | None:
    """Returns a client whose floating-point numbers are NaN, or `None` if the example has none."""
    return _mapped(client, lambda leaf: leaf * tf.cast(np.nan, leaf.dtype))


def enlarged(client: Any, times: int) -> Any | None:
    """Returns a client with each batch repeated `times` times, or `None` if the size of batches is fixed."""
    if not isinstance(client, tf.data.Dataset):
        return None
    free = all(spec.shape.rank and spec.shape[0] is None for spec in tf.nest.flatten(client.element_spec))
    return _over(client, lambda leaf: tf.concat([leaf] * times, axis=0)) if free else None


def repeated(client: Any, times: int) -> Any | None:
    """Returns a client with its data repeated `times` times, or `None` if it is neither a data set nor a list."""
    if isinstance(client, tf.data.Dataset):
        return client.repeat(times)
    return client * times if isinstance(client, list) else None


def neighbours(clients: Sequence[Any], hostile: Any) -> dict[str, Sequence[Any]]:
    """Returns a cohort, and cohorts that differ from it in one client, by a description of the difference."""
    first, rest = clients[0], clients[1:]
    found = {"nothing": clients, "the number of clients": rest, "one client's data": [*rest, rest[0]]}
    larger, invalid = repeated(first, _TIMES), poisoned(first)
    extreme = scaled(first, _FACTOR) if hostile is None else hostile
    if larger is not None:
        found["one client's examples"] = [larger, *rest]
    if extreme is not None:
        found["one client's hostile data"] = [extreme, *rest]
    if invalid is not None:
        found["one client's NaN"] = [invalid, *rest]
    return found


def _mapped(client: Any, change: Callable[[Any], Any]) -> Any | None:
    def each(leaf: Any) -> Any:
        return change(leaf) if leaf.dtype.is_floating else leaf

    if isinstance(client, tf.data.Dataset):
        has_floats = any(spec.dtype.is_floating for spec in tf.nest.flatten(client.element_spec))
        return _over(client.take(1), each) if has_floats else None
    if isinstance(client, list) and client:
        batch = tree.map_structure(tf.convert_to_tensor, client[0])
        has_floats = any(leaf.dtype.is_floating for leaf in tree.flatten(batch))
        return [tree.map_structure(lambda leaf: each(leaf).numpy(), batch)] if has_floats else None
    return None


def _over(dataset: tf.data.Dataset, change: Callable[[Any], Any]) -> tf.data.Dataset:
    """Returns a data set with each tensor changed, as constants: it contains no `map`."""
    parts = [tf.data.Dataset.from_tensors(tf.nest.map_structure(change, element)) for element in dataset]
    return functools.reduce(tf.data.Dataset.concatenate, parts)


# A change of the model stands out from noise by so many standard deviations.
_DEVIATIONS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
    """What a cohort of identical clients adds to the model: how far without noise, NaN if it is not finite."""

    size: float
    noise_stddev: float
    dimension: int

    @property
    def stands_out(self) -> bool:
        """Whether the change is larger than noise could be."""
        variance = self.noise_stddev**2
        deviation = math.sqrt(2 * self.size**2 * variance + self.dimension * variance**2)
        return self.size**2 > _DEVIATIONS * deviation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """A client whose update is meant to be long: its data, or the model's weights, times a factor."""

    example: Any
    scale: float | None = None
    factor: float = 1.0

    @property
    def client(self) -> Any:
        return self.example if self.scale is None else scaled(self.example, self.scale)

    def move(self, probe: Probe, count: int) -> Move:
        """Returns what `count` such clients add to the model; its size is NaN if the model is not finite.

        The noise of two rounds is independent, so that the inner product of their changes is free of it on average.
        """
        cohort = [self.client] * count
        first, second = (probe.step(probe.fresh(self.factor), cohort).change for _ in range(2))
        product = float(first @ second)
        size = math.sqrt(max(0.0, product)) if math.isfinite(product) else math.nan
        noise = float(np.sqrt(np.mean((first - second) ** 2) / 2))
        return Move(size=size, noise_stddev=noise, dimension=first.size)


def attempts(clients: Sequence[Any], hostile: Any) -> Iterator[Attempt]:
    """Yields clients with longer and longer updates, from larger data or for a model with larger weights."""
    given = clients[0] if hostile is None else hostile
    if hostile is not None:
        yield Attempt(example=hostile)
    for scale in (10.0, 100.0, 1000.0) if scaled(given, 1.0) is not None else ():
        yield Attempt(example=given, scale=scale)
    for factor in (1.0, 10.0, 100.0):
        yield Attempt(example=given, factor=factor)


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


def check_leaves(probe: Probe, cohorts: Cohorts, fingerprint: str, findings: Findings) -> None:
    """Compares metrics and state of cohorts that differ in one client with the first cohort's.

    Everything but the trainable weights must be bit-identical in each round of each cohort. Only the state of the noise
    and of the server's optimizer may vary by itself.
    """
    # One initial state for all rounds: what it draws, such as the seed of a rotation, does not depend on clients.
    start = probe.fresh()
    noise = _noise.check(_kept(start), fingerprint, findings)
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
