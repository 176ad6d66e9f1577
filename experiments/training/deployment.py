"""What `tff-mf export` writes of a run of `tff-mf train`, or of a file of its settings: a deployment, or the model."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import msgspec

import tff_mf
from tff_mf.base.errors import InputValueError

from .. import reports
from ..guard import export
from ..output import progress
from ..output.files import new_folder
from ..runs import folders, model_file
from ..runs.names import MODEL, REPORT, REPORT_TEXT, RUN_JSON, VOCABULARY
from ..runs.settings import RunSettings, resolve
from .datasets import named_data, sqlite

_TOKENIZE, _DEVICE_TOKENIZE = "tokenize", "device/tokenize"
_SAVED_MODEL, _LITE = "model", "model.tflite"
# TensorFlow reserves this folder of a SavedModel for files of the server that serves it.
_INSIDE = "assets.extra"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A deployment that is to be exported.

    Attributes:
        asked: The settings as they were given, with defaults for others.
        plan: The plan that they came to.
        server_learning_rate: The server's rate that they came to.
        vocabulary: The words that the model knows.
    """

    asked: RunSettings
    plan: tff_mf.Plan
    server_learning_rate: float
    vocabulary: Sequence[str]


def read_source(path: pathlib.Path, *, insecure_seed: int | None = None, grid: int | str | None = None) -> Source:
    """Returns the deployment of a run's folder, or of a TOML file of settings.

    Args:
        path: A folder of `tff-mf train`, or a file for `tff-mf train --config`.
        insecure_seed: Makes the noise repeatable. TEST ONLY.
        grid: The grid of the deployment: its bits, "auto" or "none"; `None` for the grid of the run or file.
    """
    if not path.exists():
        raise InputValueError(f"run={str(path)!r} does not exist: name the folder of a run, or a TOML file.")
    if path.is_dir():
        record = reports.read_record(path)
        plan, asked = record.plan, record.settings
        if asked is None:
            raise InputValueError(f"run={str(path)!r} is not a run of tff-mf train: {RUN_JSON} has no settings.")
        rate = record.server_learning_rate
        if grid is not None:
            # It needs other noise, which "proposed" rates follow.
            asked = msgspec.structs.replace(asked, grid=grid)
            plan, rate = asked.privacy_plan(plan.mechanism), None
        export.check_exported(asked)
    else:
        _, layer = resolve(None, path, {"grid": grid})
        asked = layer.placed().settings(where=str(path))
        export.check_exported(asked)
        asked.check()
        plan, rate = asked.privacy_plan(asked.build_mechanism()), None
    if (path / VOCABULARY).is_file():
        vocabulary = read_vocabulary(path)
    else:
        vocabulary = list(sqlite.load_word_counts(named_data.data_file(asked.dataset), asked.vocab_size))
    return Source(
        asked=asked,
        plan=dataclasses.replace(plan, insecure_seed=insecure_seed),
        server_learning_rate=rate or asked.chosen_rate(plan),
        vocabulary=vocabulary,
    )


def read_vocabulary(folder: pathlib.Path) -> list[str]:
    """Returns the words of a run's or a bundle's model."""
    try:
        words = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("it is not a list of words")
        return words
    except (OSError, ValueError, RecursionError) as error:
        raise InputValueError(f"run={str(folder)!r}: {VOCABULARY} is missing or damaged: {error}") from error


def write(source: Source, out: pathlib.Path, *, population: int | None = None, **more: Any) -> export.Exported:
    """Writes the bundle of a deployment, or nothing if it fails: see `export.write`.

    Args:
        source: The deployment.
        out: Folder of the bundle: a new one, or an empty one.
        population: Number of devices that can take part, if it is known, for the report.
        more: Other arguments of `export.write`.
    """

    def add_graphs(folder: pathlib.Path, plan: tff_mf.Plan) -> dict[str, Any]:
        words = json.dumps(list(source.vocabulary), ensure_ascii=False)
        (folder / VOCABULARY).write_text(words + "\n", encoding="utf-8")
        return _add_graphs(folder, plan)

    return export.write(
        out,
        source.plan,
        add_graphs,
        population=population,
        clients_per_person=source.asked.clients_per_person,
        settings=source.asked,
        server_learning_rate=source.server_learning_rate,
        **more,
    )


def _add_graphs(folder: pathlib.Path, plan: tff_mf.Plan) -> dict[str, Any]:
    """Adds the graphs to a folder that has the other files of a bundle, from which they are built."""
    from ... import aggregators
    from ..guard.rounds import DEVICE_LOOP
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
    check_report(run)


def check_report(run: pathlib.Path) -> None:
    """Raises unless the report of a run follows from its files."""
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
    | `model/` | SavedModel from words `[n, 20]` to logits `[n, 20, words]`, with the report in `assets.extra/` |
    | `model.tflite` | the same for TensorFlow Lite, where that can convert it |
    | `tokenize/` | SavedModel from sentences `[n]` to the words that the model takes |
    | `vocabulary.json`, `report.json`, `report.md` | its vocabulary, and the privacy report of its training |

    Formal guarantee: the files depend only on the run's released model, its report and its vocabulary: no rows of
    noise, keys or optimizer states are read, and the report's exact counts of devices' reports are left out.

    Returns:
        `parameters`, `headline` of the report, and the reason if there is no file for TensorFlow Lite.
    """
    check_trained(run)
    from ... import aggregators

    with new_folder(out) as aside, aggregators.tff_session():
        return _write_model(run, aside)


def _write_model(run: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    import tensorflow as tf

    from ... import aggregators
    from . import evaluation, task

    settings, vocabulary = reports.read_record(run).training, read_vocabulary(run)
    report = reports.read(run / REPORT)
    # Its page may be in the words of another release.
    as_json, as_markdown = report.as_text(), (run / REPORT_TEXT).read_text(encoding="utf-8")
    keras_model = task.build_keras_model(settings, vocabulary=vocabulary)
    trainable, _ = model_file.read_from(run)
    keras_model.set_weights(list(trainable.values()))
    words = tf.TensorSpec([None, evaluation.SEQUENCE_LENGTH], tf.int64, name="words")

    @tf.function(input_signature=[words], autograph=False)
    def predict(words: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"logits": keras_model(words, training=False)}

    module = tf.Module()
    module.model, module.predict = keras_model, predict
    progress.step("model")
    tf.saved_model.save(module, str(folder / _SAVED_MODEL), signatures={"serving_default": predict})
    (folder / _SAVED_MODEL / _INSIDE).mkdir()
    for path, text in (
        (folder / _SAVED_MODEL / _INSIDE / REPORT, as_json),
        (folder / REPORT, as_json),
        (folder / REPORT_TEXT, as_markdown),
    ):
        path.write_text(text, encoding="utf-8")
    tokenizer = task.build_tokenizer(vocabulary)
    aggregators.export_computation(tokenizer, folder / _TOKENIZE, inputs="sentences", outputs="words")
    shutil.copyfile(run / VOCABULARY, folder / VOCABULARY)
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
