"""Exports a learning process as files that a server and devices can run without TFF."""

import dataclasses
import os
import pathlib
import re
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base import checkpoint_files, validation
from tff_mf.base.errors import InputValueError

from ..resident import forms as tff_forms
from . import stages

INITIAL = "server/initial.safetensors"
LITE = "device/work.tflite"


def export_process(
    process: tff.learning.templates.LearningProcess,
    folder: str | os.PathLike[str],
    *,
    initial_weights: tff.learning.models.ModelWeights,
    batch_size: int,
    client_epochs: int = 1,
    max_examples: int | None = None,
) -> dict[str, Any]:
    """Writes a learning process as SavedModels of its stages, which plain TensorFlow can run.

    | file | content |
    |---|---|
    | `server/{initialize,prepare,zero,accumulate,merge,report,update}/` | SavedModels for the server |
    | `server/initial.safetensors` | inputs of `initialize`: the initial model and matrices |
    | `device/work/` | SavedModel for the device: from examples and what the server sent to a clipped update |
    | `device/work.tflite` | the same for TensorFlow Lite, if it can be converted |

    Inputs and outputs are called `state__…`, `sent__…`, `examples__…`, `update__…`, `sum__…`, `report__…` and
    `metrics__…`. A device trains on its examples in the given order, in batches, on `max_examples` of them at most.

    Every stage fails if an input that it uses has another type or shape than declared. `accumulate` clips its input,
    whatever a device sent; `sum__…__clipped` and `sum__…__zeroed` count the values that it scaled or set to zero. Only
    the operator may see these counts: `report` drops them. On a grid, updates and sums are integers, the last tensor of
    each is a number of clients, which `accumulate` counts itself, and `update` fails if there are more than the grid's
    `max_clients`.

    Formal guarantee: the server has the graphs of `process`: a chain of calls of `update`, each with the state that
    the previous one returned, draws a fresh key in every call and has the guarantee of the aggregator. If a state is
    used twice and both results are released, there is no guarantee. What a device receives depends on the state only
    through `sent__…`, and the export checks that the graph of `prepare` computes none of it from rows of noise or keys.

    Args:
        process: The process, with an aggregator of `build_mf_aggregator`.
        folder: Folder to write to; created if it does not exist.
        initial_weights: The model that training starts from.
        batch_size: Number of examples in a device's batch.
        client_epochs: Number of passes that a device makes over its examples.
        max_examples: Maximum number of examples that a device uses in one round, over all passes; `None` for all.

    Returns:
        A description as JSON: the types of every stage, the bytes of every graph, and the reason if there is no file
        for TensorFlow Lite.

    Raises:
        InputTypeError: If the process is not one of TFF's learning processes, or has a part that is not a tensor.
        InputValueError: If the first dimension of the model's batches is fixed, sums are secure or do not clip, or
            clients are sent something computed from noise.
    """
    validation.instance("process", process, tff.learning.templates.LearningProcess, "such as federated averaging's")
    batch_size = validation.whole("batch_size", batch_size)
    client_epochs = validation.whole("client_epochs", client_epochs)
    max_examples = None if max_examples is None else validation.whole("max_examples", max_examples)
    folder = pathlib.Path(folder)
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next, tff_forms.as_written())
    if form.securely_aggregates_tensors:
        raise InputValueError("process has secure sums, which a SavedModel cannot have; export it without them.")
    graphs = {name: stages.part_graph(name, getattr(form, name)) for name in stages.PARTS if name != "work"}
    stages.check_clips(graphs["accumulate"])
    stages.check_secrets_stay(graphs["prepare"])
    start = tff.backends.mapreduce.get_state_initialization_computation(process.initialize, tff_forms.as_written())
    graphs["initialize"], fed = stages.initialization(start, initial_weights)
    work = stages.on_tensors(form.work, batch_size=batch_size, client_epochs=client_epochs, max_examples=max_examples)
    graphs["work"] = stages.part_graph("work", work)
    # Made private while it is empty: no file in it is ever open to others.
    checkpoint_files.close(folder / "server")
    written = {}
    for name, graph in graphs.items():
        path = f"{'device' if name == 'work' else 'server'}/{name}"
        written[name] = {
            "path": path,
            "graph_bytes": graph.graph_def.ByteSize(),
            **stages.save(graph, folder / path),
        }
    initial = {name: np.ascontiguousarray(value) for name, value in fed.items()}
    with open(os.open(folder / INITIAL, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(safetensors.numpy.save(initial))
    converted = convert_to_lite(folder / "device" / "work")
    if converted.content is not None:
        (folder / LITE).write_bytes(converted.content)
    return {
        "stages": written,
        "lite": {"path": None if converted.content is None else LITE, "reason": converted.reason},
    }


def export_computation(
    computation: tff.Computation, folder: str | os.PathLike[str], *, inputs: str, outputs: str
) -> dict[str, Any]:
    """Writes a computation of TensorFlow only, such as a tokenizer, as a SavedModel with named inputs and outputs.

    Args:
        computation: The computation, without placements, from tensors to tensors.
        folder: Folder to write to.
        inputs: Name of its parameter; the name of a part is followed by `__` and its path.
        outputs: Name of its result.

    Returns:
        Types of `inputs` and `outputs` by name, as JSON.

    Raises:
        InputTypeError: If a part of its parameter or result is not a tensor.
    """
    return stages.save(stages.stage_graph(computation, inputs=inputs, outputs=outputs), pathlib.Path(folder))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiteModel:
    """A TensorFlow Lite model, or the reason why the SavedModel could not be converted.

    Attributes:
        content: Content of the file, or `None`.
        reason: Why there is no file; empty if there is one.
    """

    content: bytes | None
    reason: str = ""


def convert_to_lite(saved_model: str | os.PathLike[str]) -> LiteModel:
    """Returns a SavedModel converted to TensorFlow Lite, with TensorFlow operations where Lite has none.

    It runs where the Flex delegate is linked in, as in TensorFlow's own Python package. A model that cannot be
    converted is not an error: the result says why.

    Args:
        saved_model: Folder of the SavedModel.
    """
    converter = tf.lite.TFLiteConverter.from_saved_model(os.fspath(saved_model))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    converter.experimental_enable_resource_variables = True
    try:
        content = converter.convert()
    # The converter passes on any exception of its parts.
    except Exception as error:
        return LiteModel(content=None, reason=_reason(str(error)))
    return LiteModel(content=content)


def _reason(message: str) -> str:
    custom = re.search(r"^Custom ops: (.*)$", message, re.MULTILINE)
    if custom:
        return f"TensorFlow Lite has no {custom[1]}, and SELECT_TF_OPS does not have it either."
    return message.strip().splitlines()[0][:500] if message.strip() else "TensorFlow Lite does not say why."
