"""Runs a bundle in TensorFlow, as its runner does, and its learning process in TFF: both must agree.

Only bundles whose graphs equal those built here again are run, since a graph can do whatever a program can.
"""

import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from ... import aggregators
from ..output import native_output, progress
from ..training import learning_process, task
from . import runner
from ._checks import Refusal, totals
from ._manifest import LITE, Manifest, Tensor, read_manifest
from ._source import deployed_again
from .runner import INITIAL, MANIFEST, Tensors
from .verification import same_model

# Relative to the largest number of a tensor: sums have another order, and TensorFlow Lite has its own kernels.
_TOLERANCE = 1e-5
_LITE_TOLERANCE = 1e-3
# Units of the grid, of a device's update where two sets of kernels round it.
_UNITS = 4
_SCALES = (1.0, 1e2, 1e4, 1e8, np.inf)
_CLIENTS = 3
_NOISE, _KEYS = "__noise__", "__noise__keys"
_WEIGHTS = "__global_model_weights__"
_NORM_ROUNDING = 1e-6

_Examples = dict[str, np.ndarray]
# Of examples and what was sent.
_Work = Callable[[Tensors, Tensors], Tensors]


def run(folder: pathlib.Path, rounds: int) -> list[Refusal]:
    """Returns how the graphs of a bundle deviate from `run.json`; an empty list if they do not.

    The types of every SavedModel and of TFF's forms are checked first, then that the work of devices clips, with models
    that make updates as large as possible. Then the bundle runs: clients, two sums that are merged, and the server's
    update with its own keys. TFF runs the learning process that is built again from `run.json`, the artifact and the
    vocabulary, with the same keys and examples, from the same model. After every round the whole state must be equal up
    to rounding, rows of noise included: this shows that the graphs add the noise of the artifact and divide as
    `run.json` says. On a grid, the rows of noise must be equal to the bit, and the limits of the grid are tried: see
    `limits`.
    """
    progress.step("types")
    manifest, _ = read_manifest(folder)
    settings, privacy, vocabulary = deployed_again(folder)
    stages = runner.Stages(folder, runner.read_manifest(folder)[0])
    found = [*_types(manifest, stages)]
    if found:
        return found
    lite = None if manifest.lite.path is None else lite_work(folder, manifest)
    progress.step("clipping")
    data = _examples(manifest, stages, len(vocabulary), min(rounds, privacy.rounds))
    clipping = _clipping(manifest, stages, lite, data[0][0], settings.clip_norm)
    if clipping:
        return clipping
    progress.step("rounds in TensorFlow")
    states, reason = _plain(manifest, stages, lite, data)
    if reason:
        return [Refusal(file=LITE, reason=reason)]
    exceeded = [] if manifest.grid is None else limits(manifest, stages, states[0])
    if exceeded:
        return exceeded
    keys = next(value for name, value in states[-1].items() if name.endswith(_KEYS))
    again = stages.update(states[0], stages.report(stages.zero()))[0]
    name = next(name for name in again if name.endswith(_KEYS))
    if not privacy.insecure and np.array_equal(again[name][0], keys[0]):
        return [
            Refusal(file=manifest.stages["update"].path, reason="draws the same key twice: the noise is not secret")
        ]
    progress.step("rounds in TFF")
    language_task = task.build_task(settings, vocabulary)
    process, _ = learning_process.build_process(
        settings, privacy, language_task, loop=learning_process.DEVICE_LOOP, repeated_keys=keys
    )
    initial = language_task.initial_weights
    weights = [np.asarray(weight) for weight in (*initial.trainable, *initial.non_trainable)]
    # In the order of the weights.
    if not same_model([value for name, value in states[0].items() if _WEIGHTS in name], weights):
        return [Refusal(file=INITIAL, reason="does not match the initial model generated from the seed in run.json")]
    step = 0.0
    if privacy.grid is not None:
        step = _UNITS * max(1.0, settings.chosen_rate(privacy)) * settings.clip_norm / privacy.grid.largest_norm
    original = _original(process, states[0], data, manifest)
    for number, (after, expected) in enumerate(zip(states[1:], original, strict=True), start=1):
        # On a grid, the noise is integers.
        if difference := _difference(after, expected, _TOLERANCE, step=step, exact=_NOISE if step else None):
            reason = f"round {number} disagrees with the process rebuilt from run.json: {difference}"
            return [Refusal(file=manifest.stages["update"].path, reason=reason)]
    return []


def lite_work(folder: pathlib.Path, manifest: Manifest) -> _Work:
    """Returns a device's work in TensorFlow Lite, called as `Stages.work`, of a bundle that has it."""
    # It logs its delegates as information, whatever the log level is.
    with native_output.without("INFO: "):
        interpreter = tf.lite.Interpreter(str(folder / LITE))
        interpreter.allocate_tensors()
    called = interpreter.get_signature_runner(runner.SIGNATURE)

    def work(examples: Tensors, sent: Tensors) -> Tensors:
        given = {**examples, **sent}
        return called(**{name: np.asarray(given[name]) for name in manifest.stages["work"].inputs})

    return work


def _types(manifest: Manifest, stages: runner.Stages) -> Iterator[Refusal]:
    for described in manifest.stages.values():
        signature = stages.signature(described.path)
        found = {"inputs": signature.structured_input_signature[1], "outputs": signature.structured_outputs}
        for kind, specs in found.items():
            types = {name: Tensor(dtype=spec.dtype.name, shape=spec.shape.as_list()) for name, spec in specs.items()}
            if types != getattr(described, kind):
                yield Refusal(file=described.path, reason=f"has {kind} that differ from {MANIFEST}")
    message = type(tff.framework.serialize_computation(tff.tensorflow.computation(lambda: 0)))
    for name, type_spec in manifest.forms.items():
        path = f"forms/{name}.pb"
        try:
            content = message.FromString((stages.folder / path).read_bytes())
            computation = tff.framework.deserialize_computation(content)
        except Exception as error:
            yield Refusal(file=path, reason=f"is not a computation of TFF: {error}")
            continue
        if str(computation.type_signature) != type_spec:
            yield Refusal(file=path, reason=f"has a type that differs from {MANIFEST}")


def _examples(manifest: Manifest, stages: runner.Stages, words: int, rounds: int) -> list[list[_Examples]]:
    """Returns examples of random words for each round and client."""
    generator = np.random.default_rng(0)
    types = {name: spec for name, spec in stages.described["work"]["inputs"].items() if name.startswith("examples__")}
    count = (manifest.local_data.batch_size or 1) + 1

    def one() -> _Examples:
        return {
            name: generator.integers(1, words + 1, size=(count, *spec["shape"][1:])).astype(spec["dtype"])
            for name, spec in types.items()
        }

    return [[one() for _ in range(_CLIENTS)] for _ in range(rounds)]


def _clipping(
    manifest: Manifest, stages: runner.Stages, lite: _Work | None, examples: _Examples, clip_norm: float
) -> list[Refusal]:
    """Returns which of the device's works exceed the clip norm, for models that are scaled up until they overflow."""
    sent = _arrays(stages.prepare(stages.initialize()))
    works: dict[str, _Work] = {manifest.stages["work"].path: stages.work}
    if lite is not None:
        works[LITE] = lite
    found = []
    for path, work in works.items():
        for scale in _SCALES:
            with np.errstate(invalid="ignore", over="ignore"):
                scaled = {
                    name: value * np.float32(scale) if "__trainable__" in name else value
                    for name, value in sent.items()
                }
            reason = too_long(manifest, _arrays(work(examples, scaled)), clip_norm)
            if reason:
                found.append(Refusal(file=path, reason=f"sends an update {reason}"))
                break
    return found


def _plain(
    manifest: Manifest, stages: runner.Stages, lite: _Work | None, data: list[list[_Examples]]
) -> tuple[list[dict[str, np.ndarray]], str]:
    """Returns the state before each round and after the last, and how TensorFlow Lite deviates, if it does."""
    state: Tensors = stages.initialize()
    states, deviation = [_arrays(state)], ""
    for cohort in data:
        sent = stages.prepare(state)
        sums = [stages.zero(), stages.zero()]
        for index, examples in enumerate(cohort):
            update = stages.work(examples, sent)
            sums[index % 2] = stages.accumulate(sums[index % 2], update)
            if lite is not None and not deviation:
                one, other = (
                    {name: np.asarray(value).astype(np.float64) for name, value in each.items()}
                    for each in (lite(examples, sent), update)
                )
                deviation = _difference(one, other, _LITE_TOLERANCE, step=0.0 if manifest.grid is None else _UNITS)
        state, _ = stages.update(state, stages.report(stages.merge(*sums)))
        states.append(_arrays(state))
        progress.step()
    return states, deviation


def _original(
    process: tff.learning.templates.LearningProcess,
    start: Mapping[str, np.ndarray],
    data: list[list[_Examples]],
    manifest: Manifest,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the state after each round of the process in TFF."""
    names = list(manifest.stages["initialize"].outputs)
    local = manifest.local_data
    with aggregators.resident_context():
        weights = [start[name] for name in names if _WEIGHTS in name]
        state = process.initialize()
        state = process.set_model_weights(state, tff.learning.models.ModelWeights(weights, []))
        for cohort in data:
            datasets = []
            for examples in cohort:
                dataset = tf.data.Dataset.from_tensor_slices(tuple(examples.values()))
                dataset = dataset.repeat(local.client_epochs).take(local.max_examples or -1)
                datasets.append(dataset.batch(local.batch_size))
            state = process.next(state, datasets).state
            leaves = tff.structure.flatten(tff.structure.from_container(state, recursive=True))
            yield dict(zip(names, map(np.asarray, leaves), strict=True))
            progress.step()


def _difference(
    found: Mapping[str, Any],
    expected: Mapping[str, np.ndarray],
    tolerance: float,
    *,
    step: float = 0.0,
    exact: str | None = None,
) -> str:
    """Returns which tensor differs by more than a part of its largest number and a step, or an empty text."""
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


def _arrays(tensors: Tensors) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in tensors.items()}


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
    if not _square(records) <= 4.0**manifest.grid.bits:
        return f"of norm {math.sqrt(_square(records))}, above 2^{manifest.grid.bits}"
    return "" if clients == 1 else f"that counts as {clients} clients"


def limits(manifest: Manifest, stages: runner.Stages, state: Tensors) -> list[Refusal]:
    """Returns which graphs on a grid exceed its limits: a device's bound, its count as one, or the room of a sum."""
    assert manifest.grid is not None
    largest = np.iinfo(manifest.grid.integers).max
    hostile = {name: np.full(spec["shape"], largest, spec["dtype"]) for name, spec in stages.update_types.items()}
    found = stages.accumulate(stages.zero(), hostile)
    *records, clients = (np.asarray(found[name]) for name in totals(manifest))
    wrong = []
    if not _square(records) <= 4.0**manifest.grid.bits or clients != 1:
        wrong.append(("accumulate", "adds more than the grid allows for one device"))
    report = {name: np.asarray(value) for name, value in stages.report(stages.zero()).items()}
    *_, count = report
    report[count] = np.array(manifest.grid.max_clients + 1, report[count].dtype)
    if _releases(stages, state, report):
        wrong.append(("update", f"releases a sum of more than max_clients={manifest.grid.max_clients} clients"))
    return [Refusal(file=manifest.stages[stage].path, reason=reason) for stage, reason in wrong]


def _releases(stages: runner.Stages, state: Tensors, report: Mapping[str, Any]) -> bool:
    try:
        after, _ = stages.update(state, report)
    except tf.errors.InvalidArgumentError:
        return False
    return any(np.isfinite(np.asarray(value)).any() for name, value in after.items() if _WEIGHTS in name)


def _square(values: list[np.ndarray]) -> float:
    return float(sum(np.sum(np.square(value, dtype=np.float64)) for value in values))
