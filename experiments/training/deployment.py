"""What `tff-mf export` writes of a run of `tff-mf train`: a deployment, or the trained model."""

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import tff_mf
from tff_mf.base.errors import InputValueError

from .. import reports
from ..guard import export
from ..output import progress
from ..output.files import new_folder
from ..runs import folders, model_file
from ..runs.names import MODEL, REPORT, REPORT_TEXT, VOCABULARY

_TOKENIZE, _DEVICE_TOKENIZE = "tokenize", "device/tokenize"
_SAVED_MODEL, _LITE = "model", "model.tflite"


def read_vocabulary(folder: pathlib.Path) -> list[str]:
    """Returns the words of a run's or a bundle's model."""
    try:
        words = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("it is not a list of words")
        return words
    except (OSError, ValueError, RecursionError) as error:
        raise InputValueError(f"run={str(folder)!r}: {VOCABULARY} is missing or damaged: {error}") from error


def write(run: pathlib.Path, out: pathlib.Path, *, population: int | None = None, **more: Any) -> export.Exported:
    """Writes the bundle of a run of `tff-mf train`, or nothing if it fails: see `export.write`.

    Args:
        run: The run's folder.
        out: Folder of the bundle: a new one, or an empty one.
        population: Number of devices that can take part, if it is known, for the report.
        more: Other arguments of `export.write`.
    """
    record = reports.read_record(run)
    vocabulary = read_vocabulary(run)

    def add_graphs(folder: pathlib.Path, plan: tff_mf.Plan) -> dict[str, Any]:
        words = json.dumps(vocabulary, ensure_ascii=False)
        (folder / VOCABULARY).write_text(words + "\n", encoding="utf-8")
        return _add_graphs(folder, plan)

    return export.write(
        out,
        # Keys that are known are for tests of the run alone.
        dataclasses.replace(record.plan, insecure_seed=None),
        add_graphs,
        population=population,
        clients_per_person=record.clients_per_person,
        settings=record.settings,
        server_learning_rate=record.server_learning_rate,
        **more,
    )


def _add_graphs(folder: pathlib.Path, plan: tff_mf.Plan) -> dict[str, Any]:
    """Adds the graphs to a folder that has the other files of a bundle, from which they are built."""
    from ... import aggregators
    from ..guard.models import DEVICE_LOOP
    from . import learning_process, task

    settings, vocabulary = reports.read_record(folder).training, read_vocabulary(folder)
    progress.step("process")
    with aggregators.tff_session():
        language_task = task.build_task(settings, vocabulary)
        process, _ = learning_process.build_process(settings, plan, language_task, loop=DEVICE_LOOP)
        progress.step("graphs")
        exported = aggregators.export_process(
            process,
            folder,
            initial_weights=language_task.initial_weights,
            batch_size=settings.batch_size,
            client_epochs=settings.client_epochs,
            max_examples=settings.max_examples,
        )
        aggregators.export_computation(
            task.build_tokenizer(vocabulary), folder / _DEVICE_TOKENIZE, inputs="sentences", outputs="examples"
        )
    return exported


def check_trained(run: pathlib.Path) -> None:
    """Raises unless a run has a model, and the report that follows from its files."""
    folders.readable_folder(run)
    for name in (MODEL, REPORT, REPORT_TEXT):
        if not (run / name).is_file():
            raise InputValueError(f"run={str(run)!r} has no {name}: it has not ended.")
    checked = reports.check(run)
    wrong = [*checked.differs, *(reason.text for reason in checked.report.claim.reasons if reason.field == "model")]
    if wrong:
        raise InputValueError(
            f"run={str(run)!r} has a report that does not follow from its files: {wrong[0]}. Put back what was "
            f"changed, or run `tff-mf report {run}` first: the model is published with its report."
        )


def write_model(run: pathlib.Path, out: pathlib.Path) -> dict[str, Any]:
    """Writes the trained model of a run, or nothing if it fails.

    | file | what it is |
    |---|---|
    | `model/` | SavedModel from words `[n, 20]` to logits `[n, 20, words]` |
    | `model.tflite` | the same for TensorFlow Lite, where that can convert it |
    | `tokenize/` | SavedModel from sentences `[n]` to the words that the model takes |
    | `vocabulary.json`, `report.json`, `report.md` | its vocabulary, and the privacy report of its training |

    Formal guarantee: the files depend only on the run's released model, its report and its vocabulary: no rows of
    noise, keys or optimizer states are read, and the report's exact counts of devices' reports are left out.

    Returns:
        `parameters`, `headline` of the report, and the reason if there is no file for TensorFlow Lite.
    """
    check_trained(run)
    import tensorflow as tf

    from ... import aggregators
    from . import evaluation, task

    settings, vocabulary = reports.read_record(run).training, read_vocabulary(run)
    report = reports.read(run / REPORT)
    keras_model = task.build_keras_model(settings, vocabulary=vocabulary)
    trainable, _ = model_file.read_from(run)
    keras_model.set_weights(list(trainable.values()))
    words = tf.TensorSpec([None, evaluation.SEQUENCE_LENGTH], tf.int64, name="words")

    @tf.function(input_signature=[words], autograph=False)
    def predict(words: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"logits": keras_model(words, training=False)}

    module = tf.Module()
    module.model, module.predict = keras_model, predict
    with new_folder(out) as folder, aggregators.tff_session():
        progress.step("model")
        tf.saved_model.save(module, str(folder / _SAVED_MODEL), signatures={"serving_default": predict})
        (folder / REPORT).write_text(report.as_text(), encoding="utf-8")
        # Its page may be in the words of another release.
        for name in (REPORT_TEXT, VOCABULARY):
            shutil.copyfile(run / name, folder / name)
        tokenizer = task.build_tokenizer(vocabulary)
        aggregators.export_computation(tokenizer, folder / _TOKENIZE, inputs="sentences", outputs="words")
        progress.step("TensorFlow Lite")
        lite = aggregators.convert_to_lite(folder / _SAVED_MODEL)
        progress.step()
        if lite.content is not None:
            (folder / _LITE).write_bytes(lite.content)
    return {
        "parameters": keras_model.count_params(),
        "headline": report.headline,
        "lite": None if lite.content is None else _LITE,
        "lite_reason": lite.reason or None,
    }
