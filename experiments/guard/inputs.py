"""What a user gives a private training: a model and the data of clients, checked before anything is computed."""

import abc
import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# Private in TensorFlow, which orders operations by it: which of a graph's variables are read only. Nothing public says.
from tensorflow.python.framework import auto_control_deps_utils

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

# TensorFlow compiles what DATASET_REDUCE does for each client anew: rounds take up to three times as long, and the
# worker's memory grows with each client. TensorFlow Lite, on the other hand, has no iterators.
SIMULATION_LOOP = tff.learning.LoopImplementation.DATASET_ITERATOR
DEVICE_LOOP = tff.learning.LoopImplementation.DATASET_REDUCE
# A message to a worker, or a tensor in it, is no larger.
MOST_BYTES = 2 * 1000**3


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightNames:
    """Of a model, the number of its trainable parameters, and the names of its weights that train, and of the others.

    A functional model has no variables: its weights are called by their places.
    """

    dimension: int
    trainable: list[str]
    non_trainable: list[str]


def checked_weights(model_fn: Any) -> WeightNames:
    """Returns the weights of TFF's model, whose training assigns to no variable but metrics.

    TFF's clients get the server's values of all variables, and return changes of the trainable ones alone. A layer that
    keeps statistics of its batches, such as `BatchNormalization`, trains with these and is released with the initial
    ones.

    Raises:
        InputTypeError: If it is no model.
        InputValueError: If its forward pass of training assigns to a variable.
    """
    if isinstance(model_fn, tff.learning.models.FunctionalModel):
        trainable, others = (tf.nest.flatten(part) for part in model_fn.initial_weights)
        return WeightNames(
            dimension=sum(np.size(weight) for weight in trainable),
            trainable=[f"trainable/{index}" for index in range(len(trainable))],
            non_trainable=[f"non_trainable/{index}" for index in range(len(others))],
        )
    if isinstance(model_fn, tf.keras.Model) or not callable(model_fn):
        raise InputTypeError(
            f"model_fn={type(model_fn).__name__} must be a function that returns a TFF model, such as "
            "tff.learning.models.from_keras_model(...), or a FunctionalModel."
        )
    with tf.Graph().as_default():
        model = model_fn()
        if not isinstance(model, tff.learning.models.VariableModel):
            raise InputTypeError(
                f"model_fn returns {type(model).__name__}, and must return a tff.learning.models.VariableModel, such "
                "as tff.learning.models.from_keras_model(...)."
            )
        assigned = _assigned(model)
    # TensorFlow leaves frames of the trace in a cycle. They would hold the caller's frame, and with it a training and
    # its worker, until Python happens to look for cycles.
    gc.collect()
    if assigned:
        raise InputValueError(
            f"model_fn's model assigns to {assigned[0]!r} while it trains, as BatchNormalization does to its "
            "statistics: no client's value comes back to the server, so that the released model would have the initial "
            "one. Use GroupNormalization or LayerNormalization; or freeze the layer, with trainable=False or by "
            "calling it with training=False."
        )
    names = _names([*model.trainable_variables, *model.non_trainable_variables])
    counted = len(model.trainable_variables)
    dimension = sum(variable.shape.num_elements() for variable in model.trainable_variables)
    return WeightNames(dimension=dimension, trainable=names[:counted], non_trainable=names[counted:])


def _assigned(model: tff.learning.models.VariableModel) -> list[str]:
    """Returns the names of variables that the forward pass of training assigns to, without metrics."""
    forward_pass = tf.function(lambda batch: model.forward_pass(batch, training=True).loss)
    graph = forward_pass.get_concrete_function(model.input_spec).graph
    only_read = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    assigned = {id(tensor) for index, tensor in enumerate(graph.inputs) if index not in only_read}
    handles = {id(handle) for handle, tensor in graph.captures if id(tensor) in assigned}
    metrics = {id(variable.handle) for variable in model.local_variables}
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    # Of variables that the model does not name, states of random generators are integers, and harmless.
    variables += [variable for variable in graph.variables if variable.dtype.is_floating]
    return [variable.name for variable in variables if id(variable.handle) in handles - metrics]


def names_in_a_new_graph(build: Callable[[], Sequence[Any]]) -> list[str]:
    """Returns the name of each variable that `build` makes, once: `dense/kernel` and not `dense_7/kernel:0`.

    Keras numbers the layers of a graph. In a graph of their own, the names do not depend on what the process built
    before, so that two processes give a weight the same name.
    """
    with tf.Graph().as_default():
        return _names(build())


def _names(variables: Sequence[Any]) -> list[str]:
    return unique([re.sub(r":\d+$", "", variable.name) for variable in variables])


def unique(names: Sequence[str]) -> list[str]:
    """Returns names of which none occurs twice.

    Example:
        >>> unique(["kernel", "bias", "kernel", "kernel_1"])
        ['kernel', 'bias', 'kernel_2', 'kernel_1']
    """
    taken: list[str] = []
    for name in names:
        number, free = 0, name
        while free in taken or (number and free in names):
            number += 1
            free = f"{name}_{number}"
        taken.append(free)
    return taken


class CohortSizeWarning(UserWarning):
    """A cohort has fewer clients than its sums are divided by, so that its mean is too small beside the noise."""


def check_ends(argument: str, whose: str, dataset: tf.data.Dataset) -> None:
    """Raises if a dataset is known to have no end.

    Args:
        argument: The name of the argument that the dataset is of.
        whose: Which client's it is, in words.
        dataset: The dataset.

    Raises:
        InputValueError: If it has none.
    """
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise InputValueError(
            f"{argument}: the dataset of {whose} has no end, so that a round on it would have none either: bound it "
            "with .take(batches), or give .repeat the number of local epochs."
        )


class Clients(abc.ABC):
    """Clients whose data are read a whole cohort at once.

    Attributes:
        client_ids: All clients, in their order.
        element_type: The type of an element of their data, to TFF.
    """

    def __init__(self, client_ids: Iterable[str], element_type: tff.Type) -> None:
        self.client_ids, self.element_type = dict.fromkeys(client_ids).keys(), element_type

    @abc.abstractmethod
    def read(self, clients: Sequence[str]) -> list[list[Any]]:
        """Returns the elements of each client."""


class ClientDatasets(Clients):
    """The clients of TFF's `ClientData`.

    The way from a client's id to its dataset is traced once and then called, never built anew:
    building it in each round takes 50 times as long and leaks (about 2 MB a client with
    StackOverflow's preprocessing), because TensorFlow keeps the functions of every dataset.

    Args:
        client_data: Raw or preprocessed clients.
    """

    def __init__(self, client_data: tff.simulation.datasets.ClientData) -> None:
        super().__init__(client_data.client_ids, tff.types.tensorflow_to_type(client_data.element_type_structure))
        # TensorFlow alone would not keep the object of a method that it traces.
        self._client_data = client_data
        self._dataset_of = tf.function(
            client_data.serializable_dataset_fn, input_signature=[tf.TensorSpec([], tf.string)]
        )

    def read(self, clients: Sequence[str]) -> list[list[Any]]:
        """Returns the elements of each client.

        Raises:
            InputValueError: If a client's dataset has no end.
        """
        datasets = [self._dataset_of(tf.constant(client)) for client in clients]
        for dataset in datasets[:1]:
            # All are made in one way.
            check_ends("client_data", "a client", dataset)
        return read_datasets(datasets)


def read_datasets(datasets: Sequence[tf.data.Dataset]) -> list[list[Any]]:
    """Returns the elements of each dataset. One pipeline reads all of them, since one for each takes much longer.

    Args:
        datasets: Datasets with an end, whose elements have the same dtypes and any shapes.
    """
    elements: list[list[Any]] = [[] for _ in datasets]
    if not datasets:
        return elements
    structures = [dataset.element_spec for dataset in datasets]
    pipeline = _one_after_another(tuple(spec.dtype for spec in tf.nest.flatten(structures[0])))
    variants = tf.stack([tf.data.experimental.to_variant(dataset) for dataset in datasets])
    for number, arrays in pipeline(variants).as_numpy_iterator():
        elements[number].append(tf.nest.pack_sequence_as(structures[number], arrays))
    return elements


@functools.lru_cache(maxsize=64)
def _one_after_another(dtypes: tuple[tf.DType, ...]) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Returns a function, traced once, from datasets to the elements of all: (number of the dataset, its arrays)."""
    arrays = tuple(tf.TensorSpec(None, dtype) for dtype in dtypes)

    def numbered(number: tf.Tensor, variant: tf.Tensor) -> tf.data.Dataset:
        own = tf.data.experimental.from_variant(variant, arrays)
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(number).repeat(), own))

    def all_elements(variants: tf.Tensor) -> tf.data.Dataset:
        options = tf.data.Options()
        # Tuning takes longer than reading.
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        return tf.data.Dataset.from_tensor_slices(variants).enumerate().flat_map(numbered).with_options(options)

    return tf.function(all_elements, input_signature=[tf.TensorSpec([None], tf.variant)])


# Of TFF, or clients whose data are read in another way.
ClientData = tff.simulation.datasets.ClientData | Clients


def check_size(argument: str, whose: str, elements: Sequence[Any]) -> None:
    """Raises unless a client's data can be sent to a worker.

    Args:
        argument: The name of the argument that the data are of.
        whose: Which client's they are, in words.
        elements: The elements.

    Raises:
        InputValueError: If they are too large.
    """
    size = sum(array.nbytes for array in map(np.asarray, tf.nest.flatten(elements)))
    if size > MOST_BYTES:
        raise InputValueError(
            f"{argument}: the data of {whose} are {size:,} bytes, and at most {MOST_BYTES:,} of a client can be sent "
            "to the worker: pass fewer, with .take(batches)."
        )


def warn_of_size(size: int, number: int, divisor: int) -> None:
    """Warns who calls `next` that a round has fewer clients than its sum is divided by."""
    warnings.warn(
        f"{size} clients in round {number}, and sums are divided by clients_per_round={divisor}: the mean is smaller "
        "than it should be, and the noise is not.",
        CohortSizeWarning,
        stacklevel=5,
    )


class DataOfClients(contextlib.AbstractContextManager["DataOfClients"]):
    """Reads and checks what a training trains and evaluates on; it has ended when the block ends.

    The next cohort may be read in a thread already. An error of reading is raised when its cohort is due.

    Args:
        plan: The plan of the training.
        taken: The type of the elements that the model takes.
    """

    def __init__(self, plan: tff_mf.Plan, taken: tff.Type) -> None:
        self._plan, self._taken = plan, taken
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._coming: tuple[Clients, list[str], concurrent.futures.Future[list[list[Any]]]] | None = None
        # Tracing a data set takes a second: of the clients that train, and of those that evaluate.
        self._traced = functools.lru_cache(maxsize=2)(ClientDatasets)

    def source(self, client_data: ClientData) -> Clients:
        """Returns clients by what reads them."""
        return client_data if isinstance(client_data, Clients) else self._traced(client_data)

    def begin(self, client_data: ClientData, clients: Sequence[str]) -> None:
        """Begins to read the cohort that comes next."""
        source = self.source(client_data)
        self._coming = source, list(clients), self._thread.submit(source.read, clients)

    def read(self, client_data: ClientData, clients: Sequence[str]) -> list[list[Any]]:
        """Returns the data of a cohort, as `Clients.read` does."""
        source = self.source(client_data)
        coming, self._coming = self._coming, None
        if coming is not None and coming[:2] == (source, list(clients)):
            return coming[2].result()
        return source.read(clients)

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()

    def of_cohort(
        self, cohort_data: Mapping[str, tf.data.Dataset] | ClientData, cohort: Sequence[str], number: int
    ) -> list[list[Any]]:
        """Returns the data of a round, if they can be of its cohort.

        Args:
            cohort_data: As `PrivateTraining.next` has it.
            cohort: The clients of the round.
            number: The number of the round.

        Raises:
            InputTypeError: If these are no datasets, or have other elements than the model takes.
            InputValueError: If there are data of another client, or data without end or too large to be sent.
        """
        if isinstance(cohort_data, ClientData):
            clients = list(cohort)
            data = self._checked("cohort_data", cohort_data, clients)
            whose = self._words(clients, cohort, number)
        elif isinstance(cohort_data, Mapping):
            # Their ids, in a log, would show who is not in a secret cohort.
            if others := len(cohort_data.keys() - set(cohort)):
                raise InputValueError(
                    f"cohort_data has data of {others} clients that are not in the cohort of round {number}: pass "
                    "the data of the clients that training.cohorts(clients) gave, and of nobody else."
                )
            whose = self._words(cohort_data, cohort, number)
            data = self._read("cohort_data", whose, list(cohort_data.values()))
        else:
            raise InputTypeError(
                f"cohort_data={type(cohort_data).__name__} must be {{client: dataset}} or TFF's ClientData, so that "
                "whose data they are can be checked."
            )
        self._check("cohort_data", whose, data)
        # A warning, in a log, would show how large a secret cohort is.
        if len(data) < len(cohort) and not self._plan.secret_cohorts:
            warn_of_size(len(data), number, self._plan.clients_per_round)
        return data

    def of_evaluation(self, data: Sequence[tf.data.Dataset] | ClientData) -> list[list[Any]]:
        """Returns the data of an evaluation, if they can be sent and one of them has an example.

        Args:
            data: A dataset for each client, or all of TFF's clients.

        Raises:
            InputTypeError: If these are no datasets, or have other elements than the model takes.
            InputValueError: If there is no example, or data without end or too large to be sent.
        """
        size = len(data.client_ids if isinstance(data, ClientData) else data)
        whose = [f"client {number} of {size}" for number in range(1, size + 1)]
        if isinstance(data, ClientData):
            elements = self._checked("data", data, list(data.client_ids))
        else:
            elements = self._read("data", whose, data)
        for client, own in zip(whose, elements, strict=True):
            check_size("data", client, own)
        if not any(elements):
            raise InputValueError(
                f"data has no example in {size} datasets, so that nothing could be measured: pass clients with "
                "examples, and batch them without drop_remainder=True."
            )
        return elements

    def _words(self, clients: Iterable[str], cohort: Sequence[str], number: int) -> list[str]:
        """Returns what to call each client; those of a secret cohort have no number, which would show how many are."""
        if self._plan.secret_cohorts:
            return ["a client" for _ in clients]
        return [f"client {cohort.index(client) + 1} of {len(cohort)} in round {number}" for client in clients]

    def _checked(self, argument: str, client_data: ClientData, clients: Sequence[str]) -> list[list[Any]]:
        """Returns the data of clients, which may have been read already."""
        source = self.source(client_data)
        self._check_type(argument, source.element_type)
        if missing := len(set(clients) - source.client_ids):
            raise InputValueError(
                f"{argument} lacks {missing} clients of the cohort: pass the ClientData whose client_ids "
                "training.cohorts was given, or {client: dataset} of the clients that are there."
            )
        return self.read(source, clients)

    def _read(self, argument: str, whose: Sequence[str], datasets: Sequence[tf.data.Dataset]) -> list[list[Any]]:
        """Returns the elements of datasets with an end, if the model takes them: TFF says so below its own calls."""
        for client, dataset in zip(whose, datasets, strict=True):
            validation.instance(argument, dataset, tf.data.Dataset, "pass a tf.data.Dataset of each client")
            self._check_type(argument, tff.types.tensorflow_to_type(dataset.element_spec))
            check_ends(argument, client, dataset)
        return read_datasets(datasets)

    def _check(self, argument: str, whose: Sequence[str], data: Sequence[Sequence[Any]]) -> None:
        """Raises unless the data of a cohort can be sent, and warns of clients without an element."""
        for client, elements in zip(whose, data, strict=True):
            check_size(argument, client, elements)
        empty = [client for client, elements in zip(whose, data, strict=True) if not elements]
        if empty:
            others = "" if self._plan.secret_cohorts or len(empty) == 1 else f" (and of {len(empty) - 1} others)"
            warnings.warn(
                f"cohort_data: the dataset of {empty[0]}{others} has no batch, which adds nothing to the mean, and the "
                "noise is the same: batch without drop_remainder=True, or leave out clients with too few examples.",
                CohortSizeWarning,
                stacklevel=5,
            )

    def _check_type(self, argument: str, given: tff.Type) -> None:
        """Raises unless the model takes elements of a type."""
        if not self._taken.is_assignable_from(given):
            raise InputTypeError(
                f"{argument} has a dataset of {given}, and the model takes {self._taken}: batch and cast its elements "
                "as in the input_spec of the model."
            )
