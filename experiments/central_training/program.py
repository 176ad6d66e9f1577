"""One central training in a folder: epochs, checkpoints, metrics, and the summary."""

import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

import tff_mf
from tff_mf.base import checkpoint_files, strict_json, validation
from tff_mf.base.errors import InputValueError

from ..output import files
from ..output.typed import Record
from ..runs import folders, layers, metrics, server_loop
from ..runs.folders import versions
from ..runs.names import CALIBRATED, CHECKPOINTS, MECHANISM, METRICS, SETTINGS_TOML, SUMMARY
from ..runs.rules import Rules
from ..runs.words import Reason
from ..sampling.settings import SamplingSettings
from . import preparation
from .data_sets import Examples, ImageData
from .preparation import PreparedTraining

if TYPE_CHECKING:
    import tensorflow as tf

    from tff_mf import keras

WEIGHTS = "model.weights.h5"
_EVALUATED_AT_ONCE = 500


class CentralGuarantee(Record, kw_only=True):
    """What a central training guarantees to each example; what is infinite, or may not be stated, is `None`.

    Attributes:
        epsilon: ε at `delta`, amplified if batches are secret.
        delta: δ.
        zcdp_rho: ρ; `None` too of an amplified ε.
        adjacency: "zero-out" or "replace-one".
        unit: What is protected.
        examples: Number of examples that are trained on.
        sampling: How batches are drawn.
        batch_size: Number of examples in a batch.
        rounds: Number of rounds.
        min_sep: b of the participation schema.
        max_participations: Its k.
        mechanism: The kind of the mechanism.
        sensitivity: Of C as it runs.
        noise_multiplier: σ.
        clip_norm: Clip norm of one example.
        epsilon_without_amplification: ε to whoever knows the batches.
        zcdp_rho_without_amplification: ρ to whoever knows the batches.
        amplified: Whether batches are secret.
        reasons: Why no ε is stated.
    """

    epsilon: float | None
    delta: float
    zcdp_rho: float | None
    adjacency: str
    unit: str
    examples: int
    sampling: SamplingSettings
    batch_size: int
    rounds: int
    min_sep: int
    max_participations: int
    mechanism: str
    sensitivity: float
    noise_multiplier: float
    clip_norm: float
    epsilon_without_amplification: float | None
    zcdp_rho_without_amplification: float | None
    amplified: bool
    reasons: Sequence[Reason]


class CentralSummary(CentralGuarantee, kw_only=True):
    """The content of `summary.json`; an accuracy or a loss of a model that diverged is `None`.

    Attributes:
        dataset: The data set.
        network: The network.
        test_accuracy: On test examples.
        test_loss: Likewise.
        test_examples: Number of test examples.
        validation_accuracy: On the examples that were split off; `None` too without them.
        validation_examples: Their number.
        versions: Of the packages that ran.
    """

    dataset: str
    network: str
    test_accuracy: float | None
    test_loss: float | None
    test_examples: int
    validation_accuracy: float | None
    validation_examples: int
    versions: dict[str, str]


def run(
    prepared: PreparedTraining,
    data: ImageData,
    folder: pathlib.Path,
    on_epoch: Callable[[int, Mapping[str, float]], None] = lambda epoch, found: None,
    *,
    resume: bool = False,
) -> CentralSummary:
    """Trains, or goes on from the checkpoint in the folder, and returns the content of `summary.json`.

    First σ, the mechanism and the settings are written, with which the run can be resumed. After each epoch a
    checkpoint is written, and then a row of `metrics.csv`: loss and accuracy on the validation part, if there is one.
    The test split is evaluated once, at the end. At the end the weights are written, and the checkpoint, which has the
    keys of the noise, is removed.

    Formal guarantee: as for `tff_mf.keras.Training`, for the training part of the data; weights, metrics and summary
    are computed from what it covers. As for `ServerLoop`, of which an epoch is a round: no epoch of which anything was
    written is ever run again. The validation and the test part are not protected.

    Args:
        prepared: The parts of the training.
        data: The parts of its data set.
        folder: Its folder, made if it does not exist.
        on_epoch: Called after each epoch with its number and its metrics.
        resume: Whether the folder has a run that was stopped; otherwise it must be empty.
    """
    files.make_writable(folder)
    with files.alone(folder):
        if not resume:
            folders.check_empty(folder)
        keep(prepared, folder)
        model = preparation.compiled_network(prepared.settings)
        with _loop(prepared, folder) as loop:
            _train(prepared, model, data, loop, on_epoch)
        found = summarize(
            prepared, data, validation=evaluated(model, data.validation), test=evaluated(model, data.test)
        )
        _write_weights(model, folder)
        files.write_atomically(
            folder / SUMMARY,
            json.dumps(msgspec.to_builtins(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        )
        # With the keys in it, the noise could be removed from the models.
        checkpoint_files.remove_all(folder / CHECKPOINTS)
        return found


def _train(
    prepared: PreparedTraining,
    model: "tf.keras.Sequential",
    data: ImageData,
    loop: server_loop.ServerLoop,
    on_epoch: Callable[[int, Mapping[str, float]], None],
) -> None:
    """Trains the epochs that are left."""
    from tff_mf import keras

    training = keras.Training(
        model,
        *data.train,
        order=prepared.order,
        mechanism=prepared.mechanism,
        clip_norm=prepared.settings.clip_norm,
        noise_multiplier=prepared.noise_multiplier,
    )
    folder, begun = loop.folder, time.monotonic()
    states = _States(folder / CHECKPOINTS, training)
    rows: list[Mapping[str, object]] = [*metrics.read_metrics(folder / METRICS).rows]

    def released() -> dict[str, float]:
        """Writes the row of the newest model, and returns its metrics."""
        found = evaluated(model, data.validation)
        # How long secret batches take depends on how many examples they have.
        secret = prepared.settings.sampling_settings.is_secret
        seconds = 0.0 if secret else round(time.monotonic() - begun, 1)
        rows.append({metrics.ROUND: training.rounds, metrics.SECONDS: seconds, **found})
        metrics.write_metrics(folder / METRICS, rows)
        return found

    # The final weights are published with the last epoch.
    published = loop.rounds if (folder / WEIGHTS).exists() else len(rows)
    last = loop.resume(states, published=published, every_round=True)
    if last:
        states.restore(last)
    if len(rows) < last:
        # The run was stopped after the checkpoint and before the row of its model.
        released()
    for epoch in range(last + 1, loop.rounds + 1):
        # Which examples are in a batch, a fixed order tells everybody, and a secret one nobody.
        loop.begin(())
        training.fit(epochs=1)
        loop.finish(training)
        on_epoch(epoch, released())
    if not loop.has_ended:
        loop.record_end()


def _loop(
    prepared: PreparedTraining, folder: pathlib.Path
) -> contextlib.AbstractContextManager[server_loop.ServerLoop]:
    """Returns the loop of a training, whose rounds are its epochs: after each, the model is released once."""
    order = prepared.order
    rules = Rules(
        rounds=-(-order.rounds // order.epoch_rounds),
        # The order of the examples keeps it.
        schema=None,
        divisor=order.batch_size,
        clip_norm=prepared.settings.clip_norm,
        restart_every=None,
    )
    return server_loop.open_loop(folder, rules=rules, bound_to=folder / SETTINGS_TOML, ended=True)


class _States:
    """The states of a training after its epochs, of which only the newest is kept. A `Storage` of the loop."""

    def __init__(self, folder: pathlib.Path, training: "keras.Training") -> None:
        self._folder, self._training = folder, training
        checkpoint_files.make_private(folder)

    def rounds(self) -> list[int]:
        """Returns the epochs after which the state was saved and is there, in order."""
        return checkpoint_files.saved_rounds(self._folder)

    def save(self, round_number: int, state: "keras.Training", about: Mapping[str, Any]) -> None:
        """Saves the training after an epoch, with facts about it, and deletes the earlier states."""
        state.save(self._path(round_number), about=about)
        for old in self.rounds()[:-1]:
            self._path(old).unlink()

    def about(self, round_number: int) -> Mapping[str, Any]:
        """Returns the facts that were saved with a state."""
        path = self._path(round_number)
        about = checkpoint_files.read(path)[1].get("about")
        if not about:
            raise InputValueError(
                f"checkpoint={str(path)!r} is of no training that tff-mf train-central began: put the run's own "
                "checkpoint back."
            )
        return about

    def restore(self, round_number: int) -> None:
        """Continues from a state."""
        self._training.restore(self._path(round_number))

    def _path(self, round_number: int) -> pathlib.Path:
        return checkpoint_files.path_of(self._folder, round_number)


def resumable(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a training that was stopped."""
    # A run may have been stopped after the first of these files.
    if not any((folder / name).is_file() for name in (CALIBRATED, MECHANISM, SETTINGS_TOML)):
        raise InputValueError(f"out={str(folder)!r} has no run to resume: start the run without --resume.")
    if (folder / SUMMARY).is_file() and not checkpoint_files.saved_rounds(folder / CHECKPOINTS):
        raise InputValueError(f"out={str(folder)!r} holds a run that has ended: there is nothing to resume.")
    files.make_writable(folder)
    return folder


def keep(prepared: PreparedTraining, folder: pathlib.Path) -> None:
    """Writes the σ, the mechanism and the settings of a training, unless they are there."""
    if not (folder / CALIBRATED).exists():
        files.write_atomically(
            folder / CALIBRATED, json.dumps({"noise_multiplier": prepared.noise_multiplier}, indent=1) + "\n"
        )
    if not (folder / MECHANISM).exists():
        folders.keep_mechanism(folder, prepared.mechanism)
    if not (folder / SETTINGS_TOML).exists():
        layers.write(prepared.settings, folder)


def begun_noise_multiplier(folder: pathlib.Path) -> float | None:
    """Returns the σ that the training in a folder began with; `None` if it was stopped before it was written."""
    path = folder / CALIBRATED
    if not path.is_file():
        return None
    try:
        return validation.nonnegative("noise_multiplier", strict_json.read(path, "calibrated")["noise_multiplier"])
    except (KeyError, TypeError) as error:
        raise InputValueError(f"calibrated={str(path)!r} has no noise_multiplier: put it back as it was.") from error


def evaluated(model: "tf.keras.Model", examples: Examples) -> dict[str, float]:
    """Returns loss and accuracy of a model on examples; nothing if there are none."""
    if not len(examples[1]):
        return {}
    found = model.evaluate(*examples, batch_size=_EVALUATED_AT_ONCE, verbose=0, return_dict=True)
    return {name: float(value) for name, value in found.items()}


def _write_weights(model: "tf.keras.Model", folder: pathlib.Path) -> None:
    # Keras chooses the format by the ending.
    whole = folder / f".partial.{WEIGHTS}"
    model.save_weights(whole)
    files.move_into_place(whole, folder / WEIGHTS)


def guarantee_of(prepared: PreparedTraining) -> CentralGuarantee:
    """Returns the guarantee of a training as figures.

    Formal guarantee: `epsilon` is the ε of `prepared`, and `sensitivity` the sensitivity of
    `mechanism.cast_to_float32()`, the C that the noise has. With sampling, `epsilon` is amplified and has no ρ; figures
    that end in `_without_amplification` hold for batches that are known. What is infinite is `None`, and so is every ε
    if none can be stated, for the `reasons`.
    """
    settings, order, mechanism = prepared.settings, prepared.order, prepared.mechanism
    plain = order.guarantee(mechanism, noise_multiplier=prepared.noise_multiplier)
    amplified = settings.sampling_settings.is_secret
    schema = order.participation
    return CentralGuarantee(
        epsilon=strict_json.finite(prepared.epsilon),
        delta=settings.delta,
        zcdp_rho=None if amplified else strict_json.finite(plain.zcdp_rho),
        adjacency=plain.adjacency,
        unit="example",
        examples=order.examples,
        sampling=settings.sampling_settings,
        batch_size=order.batch_size,
        rounds=order.rounds,
        min_sep=schema.min_sep,
        max_participations=schema.max_participations,
        mechanism=mechanism.kind,
        sensitivity=tff_mf.sensitivity(mechanism.cast_to_float32(), order.rounds, schema),
        noise_multiplier=prepared.noise_multiplier,
        clip_norm=settings.clip_norm,
        epsilon_without_amplification=strict_json.finite(max(prepared.epsilon, plain.epsilon(settings.delta))),
        zcdp_rho_without_amplification=strict_json.finite(plain.zcdp_rho),
        amplified=amplified,
        reasons=prepared.reasons,
    )


def summarize(
    prepared: PreparedTraining, data: ImageData, *, validation: Mapping[str, float], test: Mapping[str, float]
) -> CentralSummary:
    """Returns the content of `summary.json`."""
    settings = prepared.settings
    return CentralSummary(
        dataset=settings.dataset,
        network=settings.network or settings.source.network,
        test_accuracy=_number(test.get("accuracy")),
        test_loss=_number(test.get("loss")),
        test_examples=len(data.test[1]),
        validation_accuracy=_number(validation.get("accuracy")),
        validation_examples=len(data.validation[1]),
        **msgspec.structs.asdict(guarantee_of(prepared)),
        versions=versions(),
    )


def _number(value: float | None) -> float | None:
    """Returns a metric as JSON can hold it: a diverged model's metric is not a number."""
    return value if value is not None and -float("inf") < value < float("inf") else None
