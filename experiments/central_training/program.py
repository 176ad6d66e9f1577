"""One central training in a folder: epochs, checkpoints, metrics, and the summary."""

import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

import tff_mf
from tff_mf.base import strict_json, validation
from tff_mf.base.errors import InputValueError

from ..output import files
from ..runs import folders, metrics
from ..runs.folders import versions
from ..runs.names import CALIBRATED, MECHANISM, METRICS, SETTINGS_TOML, SUMMARY
from . import preparation
from .data_sets import Examples, ImageData
from .preparation import PreparedTraining

if TYPE_CHECKING:
    import tensorflow as tf

CHECKPOINT = "checkpoint.npz"
WEIGHTS = "model.weights.h5"
_EVALUATED_AT_ONCE = 500


def run(
    prepared: PreparedTraining,
    data: ImageData,
    folder: pathlib.Path,
    on_epoch: Callable[[int, Mapping[str, float]], None] = lambda epoch, found: None,
) -> dict[str, Any]:
    """Trains, or goes on from the checkpoint in the folder, and returns the content of `summary.json`.

    After each epoch a checkpoint is written, and then a row of `metrics.csv`: loss and accuracy on the validation part,
    if there is one. The test split is evaluated once, at the end. At the end the weights are written, and the
    checkpoint, which has the keys of the noise, is removed.

    Formal guarantee: as for `tff_mf.keras.Training`, for the training part of the data; weights, metrics and summary
    are computed from what it covers. The validation and the test part are not protected.

    Args:
        prepared: The parts of the training.
        data: The parts of its data set.
        folder: Its folder, which exists.
        on_epoch: Called after each epoch with its number and its metrics.

    Raises:
        InputValueError: If another process uses the folder, or its checkpoint is of another training.
        OSError: If a file cannot be written.
    """
    with files.alone(folder):
        begun, secret = time.monotonic(), prepared.configuration.sampling_settings.is_secret

        def clock() -> float:
            # How long secret batches take depends on how many examples they have.
            return 0.0 if secret else round(time.monotonic() - begun, 1)

        model = preparation.compiled_network(prepared.configuration)
        training = preparation.training_of(prepared, model, data.train)
        checkpoint = folder / CHECKPOINT
        if checkpoint.exists():
            training.restore(checkpoint)
        rows = _rows(folder, prepared, training.rounds)
        if len(rows) < _epochs(prepared, training.rounds):
            # The run was stopped after the checkpoint and before the row of its model.
            rows.append(_row(training.rounds, clock(), evaluated(model, data.validation)))
            metrics.write_metrics(folder / METRICS, rows)
        while training.rounds < prepared.order.rounds:
            training.fit(epochs=1, checkpoint=checkpoint)
            found = evaluated(model, data.validation)
            rows.append(_row(training.rounds, clock(), found))
            metrics.write_metrics(folder / METRICS, rows)
            on_epoch(_epochs(prepared, training.rounds), found)
        found = summarize(
            prepared, data, validation=evaluated(model, data.validation), test=evaluated(model, data.test)
        )
        _write_weights(model, folder)
        files.write_atomically(
            folder / SUMMARY, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        )
        checkpoint.unlink(missing_ok=True)
        return found


def check_new(folder: pathlib.Path) -> None:
    """Raises unless a folder is empty, or can be made; nothing is left there.

    Raises:
        InputValueError: If it is not empty, or cannot be written to.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folders.check_new(files.made_folder(folder))
    for path in new:
        path.rmdir()


def resumable(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a training that was stopped.

    Raises:
        InputValueError: If there is none in it, or it has ended.
    """
    # A run may have been stopped after the first of these files.
    if not any((folder / name).is_file() for name in (SETTINGS_TOML, MECHANISM)):
        raise InputValueError(f"out={str(folder)!r} has no run to resume: start the run without --resume.")
    if (folder / SUMMARY).is_file() and not (folder / CHECKPOINT).is_file():
        raise InputValueError(f"out={str(folder)!r} holds a run that has ended: there is nothing to resume.")
    files.make_writable(folder)
    return folder


def keep(prepared: PreparedTraining, folder: pathlib.Path) -> None:
    """Writes the mechanism and the σ of a training, unless they are there."""
    if not (folder / CALIBRATED).exists():
        files.write_atomically(
            folder / CALIBRATED, json.dumps({"noise_multiplier": prepared.noise_multiplier}, indent=1) + "\n"
        )
    if not (folder / MECHANISM).exists():
        folders.keep_mechanism(folder, prepared.mechanism)


def begun_noise_multiplier(folder: pathlib.Path) -> float | None:
    """Returns the σ that the training in a folder began with; `None` if it was stopped before it was written.

    Raises:
        InputError: If the file is damaged.
    """
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


def _epochs(prepared: PreparedTraining, rounds: int) -> int:
    return -(-rounds // prepared.order.epoch_rounds)


def _rows(folder: pathlib.Path, prepared: PreparedTraining, rounds: int) -> list[Mapping[str, object]]:
    """Returns the rows of the epochs before the checkpoint."""
    found: list[Mapping[str, object]] = [*metrics.read_metrics(folder / METRICS).rows]
    return found[: _epochs(prepared, rounds)]


def _row(rounds: int, seconds: float, found: Mapping[str, float]) -> dict[str, object]:
    return {metrics.ROUND: rounds, metrics.SECONDS: seconds, **found}


def _write_weights(model: "tf.keras.Model", folder: pathlib.Path) -> None:
    # Keras chooses the format by the ending.
    whole = folder / f".partial.{WEIGHTS}"
    model.save_weights(whole)
    files.move_into_place(whole, folder / WEIGHTS)


_NOT_COVERED = (
    "The validation and the test part are not protected: their accuracy is exact.",
    "Choosing settings by repeated training on the same examples is not covered.",
)
_SECRET_BATCHES = "ε is amplified: it holds as long as nobody learns which examples were in a batch, or how many."


def guarantee_of(prepared: PreparedTraining) -> dict[str, Any]:
    """Returns the guarantee of a training as figures, for a JSON file.

    Formal guarantee: `epsilon` is the ε of `prepared`, and `sensitivity` the sensitivity of
    `mechanism.cast_to_float32()`, the C that the noise has. With sampling, `epsilon` is amplified and has no ρ; figures
    that end in `_without_amplification` hold for batches that are known. What is infinite is `None`, and so is every ε
    if none can be stated.
    """
    configuration, order, mechanism = prepared.configuration, prepared.order, prepared.mechanism
    plain = order.guarantee(mechanism, noise_multiplier=prepared.noise_multiplier)
    amplified = configuration.sampling_settings.is_secret
    schema = order.participation
    return {
        "epsilon": strict_json.finite(prepared.epsilon),
        "delta": configuration.delta,
        "zcdp_rho": None if amplified else strict_json.finite(plain.zcdp_rho),
        "adjacency": plain.adjacency,
        "unit": "example",
        "examples": order.examples,
        "sampling": msgspec.to_builtins(configuration.sampling_settings),
        "batch_size": order.batch_size,
        "rounds": order.rounds,
        "min_sep": schema.min_sep,
        "max_participations": schema.max_participations,
        "mechanism": mechanism.kind,
        "sensitivity": tff_mf.sensitivity(mechanism.cast_to_float32(), order.rounds, schema),
        "noise_multiplier": prepared.noise_multiplier,
        "clip_norm": configuration.clip_norm,
        "epsilon_without_amplification": strict_json.finite(max(prepared.epsilon, plain.epsilon(configuration.delta))),
        "zcdp_rho_without_amplification": strict_json.finite(plain.zcdp_rho),
        "not_covered": [*([_SECRET_BATCHES] if amplified else []), *_NOT_COVERED],
    }


def summarize(
    prepared: PreparedTraining, data: ImageData, *, validation: Mapping[str, float], test: Mapping[str, float]
) -> dict[str, Any]:
    """Returns the content of `summary.json`.

    Args:
        prepared: The training.
        data: The parts of its data set.
        validation: Metrics of the trained model on the validation part.
        test: Those on the test split.
    """
    configuration = prepared.configuration
    return {
        "dataset": configuration.dataset,
        "network": configuration.network or configuration.source.network,
        "test_accuracy": _number(test.get("accuracy")),
        "test_loss": _number(test.get("loss")),
        "test_examples": len(data.test[1]),
        "validation_accuracy": _number(validation.get("accuracy")),
        "validation_examples": len(data.validation[1]),
        "statement": prepared.statement,
        **guarantee_of(prepared),
        "versions": versions(),
    }


def _number(value: float | None) -> float | None:
    """Returns a metric as JSON can hold it: a diverged model's metric is not a number."""
    return value if value is not None and -float("inf") < value < float("inf") else None
