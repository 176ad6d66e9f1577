"""Runs a bundle in TensorFlow, as its runner does, and its learning process in TFF: both must agree.

Only bundles whose graphs equal those built here again are run, since a graph can do whatever a program can.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from ... import aggregators
from ..output import progress
from ..training import learning_process
from . import _grid_rounds
from ._initial import same_model
from ._manifest import Manifest, read_manifest
from ._results import Refusal
from ._source import deployed_again
from .names import INITIAL, MANIFEST
from .stages import Stages, Tensors

# Relative to the largest number of a tensor: sums have another order, and TensorFlow Lite has its own kernels.
_TOLERANCE = 1e-5
_LITE_TOLERANCE = 1e-3
# Units of the grid, of a device's update where two sets of kernels round it.
_UNITS = 4
_SCALES = (1.0, 1e2, 1e4, 1e8, np.inf)
_CLIENTS = 3
_NOISE, _KEYS = "__noise__", "__noise__keys"
_WEIGHTS = "__global_model_weights__"

_Examples = dict[str, np.ndarray]


def run(folder: pathlib.Path, rounds: int) -> list[Refusal]:
    """Returns how the graphs of a bundle deviate from `run.json`; an empty list if they do not.

    The types of every SavedModel and of TFF's forms are checked first, then that the work of devices clips, with models
    that make updates as large as possible. Then the bundle runs: clients, two sums that are merged, and the server's
    update with its own keys. The learning process is built again from `run.json`, the artifact and the vocabulary; it
    must start from the same model, and TFF runs it with the same keys and examples. After every round the whole state
    must be equal up to rounding, rows of noise included: this shows that the graphs add the noise of the artifact and
    divide as `run.json` says. On a grid, the rows of noise must be equal to the bit, and the limits of the grid are
    tried: see `_grid_rounds.limits`.

    Args:
        folder: A copy of the bundle that does not change meanwhile.
        rounds: Rounds to run.

    Raises:
        InputError: If `run.json`, the artifact or the vocabulary cannot be read.
    """
    progress.step("types")
    manifest, _ = read_manifest(folder)
    settings, privacy, vocabulary = deployed_again(folder)
    stages = Stages(folder)
    found = [*_types(folder, manifest, stages)]
    if found:
        return found
    progress.step("clipping")
    data = _examples(manifest, len(vocabulary), min(rounds, privacy.rounds))
    clipping = _clipping(manifest, stages, data[0][0], settings.clip_norm)
    if clipping:
        return clipping
    progress.step("rounds in TensorFlow")
    states, lite = _plain(manifest, stages, data)
    if lite:
        return [Refusal(file=manifest.lite["path"], reason=lite)]
    limits = [] if manifest.grid is None else _grid_rounds.limits(manifest, stages, states[0])
    if limits:
        return limits
    keys = next(value for name, value in states[-1].items() if name.endswith(_KEYS))
    again = stages.update(states[0], stages.report(stages.zero()))[0]
    name = next(name for name in again if name.endswith(_KEYS))
    if not privacy.insecure and np.array_equal(again[name][0], keys[0]):
        return [
            Refusal(file=manifest.stages["update"]["path"], reason="draws the same key twice: the noise is not secret")
        ]
    progress.step("rounds in TFF")
    language_task = learning_process.build_task(settings, vocabulary)
    process, _ = learning_process.build_process(
        settings, privacy, language_task, loop=learning_process.DEVICE_LOOP, repeated_keys=keys
    )
    if not _starts_from(states[0], language_task.initial_weights):
        return [Refusal(file=INITIAL, reason="does not match the initial model generated from the seed in run.json")]
    step = 0.0
    if privacy.grid is not None:
        step = _UNITS * max(1.0, settings.server_learning_rate) * settings.clip_norm / privacy.grid.largest_norm
    reason = _compared(states, _original(process, states[0], data, manifest), step)
    return [Refusal(file=manifest.stages["update"]["path"], reason=reason)] if reason else []


def _starts_from(state: Mapping[str, np.ndarray], weights: tff.learning.models.ModelWeights) -> bool:
    """Returns whether a state has this model; its tensors are in the order of the weights."""
    found = [value for name, value in state.items() if _WEIGHTS in name]
    expected = [np.asarray(weight) for weight in (*weights.trainable, *weights.non_trainable)]
    return same_model(found, expected)


def _types(folder: pathlib.Path, manifest: Manifest, stages: Stages) -> Iterator[Refusal]:
    for stage, described in manifest.stages.items():
        taken, given = stages.types(stage)
        for kind, found in (("inputs", taken), ("outputs", given)):
            if found != described[kind]:
                yield Refusal(file=described["path"], reason=f"has {kind} that differ from {MANIFEST}")
    for name, type_spec in manifest.forms.items():
        path = f"forms/{name}.pb"
        try:
            computation = _deserialized((folder / path).read_bytes())
        except Exception as error:
            yield Refusal(file=path, reason=f"is not a computation of TFF: {error}")
            continue
        if str(computation.type_signature) != type_spec:
            yield Refusal(file=path, reason=f"has a type that differs from {MANIFEST}")


def _deserialized(content: bytes) -> tff.Computation:
    message = type(tff.framework.serialize_computation(tff.tensorflow.computation(lambda: 0)))
    return tff.framework.deserialize_computation(message.FromString(content))


def _examples(manifest: Manifest, words: int, rounds: int) -> list[list[_Examples]]:
    """Returns examples of random words for each round and client."""
    generator = np.random.default_rng(0)
    types = {name: spec for name, spec in manifest.stages["work"]["inputs"].items() if name.startswith("examples__")}
    count = (manifest.local_data["batch_size"] or 1) + 1

    def one() -> _Examples:
        return {
            name: generator.integers(1, words + 1, size=(count, *spec["shape"][1:])).astype(spec["dtype"])
            for name, spec in types.items()
        }

    return [[one() for _ in range(_CLIENTS)] for _ in range(rounds)]


def _clipping(manifest: Manifest, stages: Stages, examples: _Examples, clip_norm: float) -> list[Refusal]:
    """Returns which of the device's works exceed the clip norm, for models that are scaled up until they overflow."""
    sent = _arrays(stages.prepare(stages.initialize()))
    works = {manifest.stages["work"]["path"]: stages.work}
    if manifest.lite["path"]:
        works[manifest.lite["path"]] = stages.lite_work
    found = []
    for path, work in works.items():
        for scale in _SCALES:
            with np.errstate(invalid="ignore", over="ignore"):
                scaled = {
                    name: value * np.float32(scale) if "__trainable__" in name else value
                    for name, value in sent.items()
                }
            reason = _grid_rounds.too_long(manifest, _arrays(work(examples, scaled)), clip_norm)
            if reason:
                found.append(Refusal(file=path, reason=f"sends an update {reason}"))
                break
    return found


def _plain(manifest: Manifest, stages: Stages, data: list[list[_Examples]]) -> tuple[list[dict[str, np.ndarray]], str]:
    """Returns the state before each round and after the last, and how TensorFlow Lite deviates, if it does."""
    state: Tensors = stages.initialize()
    states, lite = [_arrays(state)], ""
    for cohort in data:
        sent = stages.prepare(state)
        sums = [stages.zero(), stages.zero()]
        for index, examples in enumerate(cohort):
            update = stages.work(examples, sent)
            sums[index % 2] = stages.accumulate(sums[index % 2], update)
            if manifest.lite["path"] and not lite:
                one, other = (_floats(_arrays(each)) for each in (stages.lite_work(examples, sent), update))
                lite = _difference(one, other, _LITE_TOLERANCE, step=0.0 if manifest.grid is None else _UNITS)
        state, _ = stages.update(state, stages.report(stages.merge(*sums)))
        states.append(_arrays(state))
        progress.step()
    return states, lite


def _original(
    process: tff.learning.templates.LearningProcess,
    start: Mapping[str, np.ndarray],
    data: list[list[_Examples]],
    manifest: Manifest,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the state after each round of the process in TFF."""
    names = list(manifest.stages["initialize"]["outputs"])
    local = manifest.local_data
    with aggregators.resident_context():
        weights = [start[name] for name in names if _WEIGHTS in name]
        state = process.initialize()
        state = process.set_model_weights(state, tff.learning.models.ModelWeights(weights, []))
        for cohort in data:
            datasets = []
            for examples in cohort:
                dataset = tf.data.Dataset.from_tensor_slices(tuple(examples.values()))
                dataset = dataset.repeat(local["client_epochs"]).take(local["max_examples"] or -1)
                datasets.append(dataset.batch(local["batch_size"]))
            state = process.next(state, datasets).state
            leaves = tff.structure.flatten(tff.structure.from_container(state, recursive=True))
            yield dict(zip(names, map(np.asarray, leaves), strict=True))
            progress.step()


def _compared(states: list[dict[str, np.ndarray]], original: Iterator[dict[str, np.ndarray]], step: float) -> str:
    for number, (found, expected) in enumerate(zip(states[1:], original, strict=True), start=1):
        # On a grid, the noise is integers.
        difference = _difference(found, expected, _TOLERANCE, step=step, exact=_NOISE if step else None)
        if difference:
            return f"round {number} disagrees with the process rebuilt from run.json: {difference}"
    return ""


def _difference(
    found: Mapping[str, Any],
    expected: Mapping[str, np.ndarray],
    tolerance: float,
    *,
    step: float = 0.0,
    exact: str | None = None,
) -> str:
    """Returns which tensor differs by more than a part of its largest number and a step, or an empty text.

    Args:
        found: The tensors.
        expected: What they should be; integers must be equal.
        tolerance: The part.
        step: What rounding to a grid can add.
        exact: Part of the names of tensors that must be equal to the bit.
    """
    for name, value in expected.items():
        other = np.asarray(found[name])
        if value.dtype.kind != "f" or (exact is not None and exact in name):
            same = np.array_equal(other, value)
        else:
            most = tolerance * max(1e-6, float(np.abs(value).max(initial=0))) + step
            same = other.shape == value.shape and bool(np.all(np.abs(other - value) <= most))
        if not same:
            return f"{name} differs"
    return ""


def _floats(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float64) for name, value in tensors.items()}


def _arrays(tensors: Tensors) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in tensors.items()}
