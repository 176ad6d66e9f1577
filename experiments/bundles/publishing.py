"""Exports a trained model with its realised privacy report, and without any of the server's state."""

import pathlib
import shutil
from typing import Any

import tensorflow as tf

from ... import aggregators
from .. import reports
from ..output import progress
from ..output.files import new_folder
from ..runs import model_file
from ..runs.names import REPORT, REPORT_TEXT, VOCABULARY
from ..training import evaluation, task
from ._source import check_trained, deployed_again

SAVED_MODEL = "model"
LITE = "model.tflite"
TOKENIZE = "tokenize"
# TensorFlow reserves this folder of a SavedModel for files of the server that serves it.
_INSIDE = "assets.extra"


def export_model(run: pathlib.Path, out: pathlib.Path) -> dict[str, Any]:
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
    with new_folder(out) as aside, aggregators.tff_session():
        return _write(run, aside)


def _write(run: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    settings, _, vocabulary = deployed_again(run)
    report = reports.read(run / REPORT).published()
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
    tf.saved_model.save(module, str(folder / SAVED_MODEL), signatures={"serving_default": predict})
    (folder / SAVED_MODEL / _INSIDE).mkdir()
    for path, text in (
        (folder / SAVED_MODEL / _INSIDE / REPORT, as_json),
        (folder / REPORT, as_json),
        (folder / REPORT_TEXT, as_markdown),
    ):
        path.write_text(text, encoding="utf-8")
    aggregators.export_computation(
        task.build_tokenizer(vocabulary), folder / TOKENIZE, inputs="sentences", outputs="words"
    )
    shutil.copyfile(run / VOCABULARY, folder / VOCABULARY)
    progress.step("TensorFlow Lite")
    lite = aggregators.convert_to_lite(folder / SAVED_MODEL)
    progress.step()
    if lite.content is not None:
        (folder / LITE).write_bytes(lite.content)
    return {
        "parameters": keras_model.count_params(),
        "headline": report.headline,
        "lite": None if lite.content is None else LITE,
        "lite_reason": lite.reason or None,
    }
