"""Exports a learning process as files that a server and devices can run without TFF."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow_federated as tff

from tff_mf.base import checkpoint_files, validation
from tff_mf.base.errors import InputValueError
from tff_mf.problem import grids

from ..factory import MFAggregationFactory
from ..resident import forms as tff_forms
from . import files, stages

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
    aggregator: MFAggregationFactory | None = None,
) -> dict[str, Any]:
    """Writes a learning process as SavedModels of its stages, which plain TensorFlow can run.

    | file | content |
    |---|---|
    | `server/{initialize,prepare,zero,accumulate,merge,report,update}/` | SavedModels for the server |
    | `server/replay/` | with `aggregator`: SavedModel from the keys of past rounds to the state of the noise |
    | `server/initial.safetensors` | inputs of `initialize` (and `replay`): the initial model and matrices |
    | `device/work/` | SavedModel for the device: from examples and what the server sent to a clipped update |
    | `device/work.tflite` | the same for TensorFlow Lite, if it can be converted |

    Inputs and outputs are called `state__…`, `sent__…`, `examples__…`, `update__…`, `sum__…`, `report__…` and
    `metrics__…`. A device trains on its examples in the given order, in batches, on `max_examples` of them at most.

    Every stage fails if an input that it uses has another type or shape than declared. `accumulate` clips its input,
    whatever a device sent; `sum__…__clipped` and `sum__…__zeroed` count the values that it scaled or set to zero. Only
    the operator may see these counts: `report` drops them. On a grid, updates and sums are integers, the last tensor of
    each is a number of clients, which `accumulate` counts itself, and `update` fails if there are more than the grid's
    `max_clients`. `replay` takes `keys`, and from `initial.safetensors` the
    tensors that its inputs name; its result has the names and values of the state's noise, so that a stored state needs
    only the keys.

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
        aggregator: The aggregator in the process, whose noise `replay` draws again; without it that stage is left out.

    Returns:
        A description as JSON: the types of every stage, the bytes of every graph, the `grid` of `aggregator`
        (`tff_mf.problem.grids.description`; `None` without one), and the reason if there is no file for TensorFlow
        Lite.

    Raises:
        InputTypeError: If the process is not one of TFF's learning processes, or has a part that is not a tensor.
        InputValueError: If the first dimension of the model's batches is fixed, sums are secure or do not clip, clients
            are sent something computed from noise, or the process has another aggregator.
    """
    validation.instance("process", process, tff.learning.templates.LearningProcess, "such as federated averaging's")
    batch_size = validation.whole("batch_size", batch_size)
    client_epochs = validation.whole("client_epochs", client_epochs)
    max_examples = None if max_examples is None else validation.whole("max_examples", max_examples)
    if aggregator is not None:
        validation.instance("aggregator", aggregator, MFAggregationFactory, "pass what build_mf_aggregator returns")
    folder = pathlib.Path(folder)
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next, tff_forms.as_written())
    if form.securely_aggregates_tensors:
        raise InputValueError("process has secure sums, which a SavedModel cannot have; export it without them.")
    graphs, fed = _server_graphs(process, form, initial_weights, aggregator)
    work = stages.on_tensors(form.work, batch_size=batch_size, client_epochs=client_epochs, max_examples=max_examples)
    # Made private while it is empty: no file in it is ever open to others.
    checkpoint_files.close(folder / "server")
    written = _write_stages(folder, {**graphs, "work": stages.part_graph("work", work)})
    initial = {name: np.ascontiguousarray(value) for name, value in fed.items()}
    with open(os.open(folder / INITIAL, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(safetensors.numpy.save(initial))
    converted = files.convert_to_lite(folder / "device" / "work")
    if converted.content is not None:
        (folder / LITE).write_bytes(converted.content)
    grid = None if aggregator is None else aggregator.grid_for(stages.dimension_of(initial_weights))
    return {
        "process": str(process.next.type_signature),
        "stages": written,
        "lite": {"path": None if converted.content is None else LITE, "reason": converted.reason},
        "grid": None if grid is None else grids.description(grid),
        "batch_size": batch_size,
        "client_epochs": client_epochs,
        "max_examples": max_examples,
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
    return files.save(stages.stage_graph(computation, inputs=inputs, outputs=outputs), pathlib.Path(folder))


def _server_graphs(
    process: tff.learning.templates.LearningProcess,
    form: tff.backends.mapreduce.MapReduceForm,
    initial_weights: tff.learning.models.ModelWeights,
    aggregator: MFAggregationFactory | None,
) -> tuple[dict[str, stages.StageGraph], dict[str, np.ndarray]]:
    """Returns the graphs of the server's stages, and the values of the inputs that are not computed by others."""
    graphs = {name: stages.part_graph(name, getattr(form, name)) for name in stages.PARTS if name != "work"}
    stages.check_clips(graphs["accumulate"])
    stages.check_secrets_stay(graphs["prepare"])
    start = tff.backends.mapreduce.get_state_initialization_computation(process.initialize, tff_forms.as_written())
    graphs["initialize"], fed = stages.initialization(start, initial_weights)
    if aggregator is not None:
        graphs["replay"], constants = stages.replay(aggregator, graphs["initialize"], fed, initial_weights)
        fed |= constants
    return graphs, fed


def _write_stages(folder: pathlib.Path, graphs: Mapping[str, stages.StageGraph]) -> dict[str, dict[str, Any]]:
    written = {}
    for name, graph in graphs.items():
        place = f"{'device' if name == 'work' else 'server'}/{name}"
        written[name] = {
            "path": place,
            "graph_bytes": graph.graph_def.ByteSize(),
            **files.save(graph, folder / place),
        }
    return written
