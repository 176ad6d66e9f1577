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
from tensorflow.core.framework import graph_pb2

# Private in TensorFlow, which orders operations by it: which of a graph's variables are read only. Nothing public says.
from tensorflow.python.framework import auto_control_deps_utils

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

# TensorFlow compiles what DATASET_REDUCE does for each client anew: rounds take up to three times as long, and the
# worker's memory grows with each client. TensorFlow Lite, on the other hand, has no iterators.
SIMULATION_LOOP = tff.learning.LoopImplementation.DATASET_ITERATOR
DEVICE_LOOP = tff.learning.LoopImplementation.DATASET_REDUCE
# TFF sends no larger dataset.
MOST_DATASET_BYTES = 100 * 1024**2
# A message to a worker, or a tensor in it, is no larger.
_MOST_LIST_BYTES = 2 * 1000**3
# TensorFlow's number for: nothing is written to stderr about random operations, which the worker may draw anew.
_ANY_STATE = 1


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
    def read(self, clients: Sequence[str]) -> list[Any]:
        """Returns the elements of each client, as a list or a dataset."""


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
        self._specs = tf.nest.flatten(client_data.element_type_structure)
        # TensorFlow alone would not keep the object of a method that it traces.
        self._client_data, dataset_of = client_data, client_data.serializable_dataset_fn

        def one_after_another(clients: tf.Tensor) -> tf.data.Dataset:
            def numbered(number: tf.Tensor, client: tf.Tensor) -> tf.data.Dataset:
                return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(number).repeat(), dataset_of(client)))

            every = tf.data.Dataset.from_tensor_slices(clients).enumerate().flat_map(numbered)
            options = tf.data.Options()
            # Tuning takes longer than reading.
            options.autotune.enabled = False
            options.experimental_optimization.apply_default_optimizations = False
            return every.with_options(options)

        self._dataset_of = tf.function(dataset_of, input_signature=[tf.TensorSpec([], tf.string)])
        self._one_after_another = tf.function(one_after_another, input_signature=[tf.TensorSpec([None], tf.string)])

    def of(self, clients: Sequence[str]) -> list[tf.data.Dataset]:
        """Returns the datasets of clients, in their order."""
        return [self._dataset_of(tf.constant(client)) for client in clients]

    def read(self, clients: Sequence[str]) -> list[Any]:
        """Returns the elements of each client: all are read by one pipeline, which is much faster.

        Elements that are no arrays of numbers are left in datasets.

        Raises:
            InputValueError: If the first client's dataset has no end: all are made in one way.
        """
        for dataset in self.of(clients[:1]):
            check_ends("client_data", "a client", dataset)
        numbers = (
            isinstance(spec, tf.TensorSpec) and (spec.dtype.is_floating or spec.dtype.is_integer)
            for spec in self._specs
        )
        if not all(numbers):
            return self.of(clients)
        elements: list[list[Any]] = [[] for _ in clients]
        if clients:
            for number, element in self._one_after_another(tf.constant(list(clients))).as_numpy_iterator():
                elements[number].append(element)
        return elements


# Of TFF, or clients whose data are read in another way.
ClientData = tff.simulation.datasets.ClientData | Clients


def check_sent(argument: str, whose: str, elements: tf.data.Dataset | Sequence[Any]) -> None:
    """Raises unless a worker can read a client's data to its end.

    Args:
        argument: The name of the argument that the data are of.
        whose: Which client's they are, in words.
        elements: The client's dataset, or a list of its elements.

    Raises:
        InputValueError: If a dataset has no end or calls Python, or the data are too large to be sent.
    """
    if isinstance(elements, tf.data.Dataset):
        check_ends(argument, whose, elements)
        variant = tf.data.experimental.to_variant(elements)
        sent = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_ANY_STATE).numpy()
        size, most = len(sent), MOST_DATASET_BYTES
    else:
        sent, size, most = b"", sum(array.nbytes for array in tf.nest.flatten(elements)), _MOST_LIST_BYTES
    if size > most:
        raise InputValueError(
            f"{argument}: the data of {whose} are {size:,} bytes, and at most {most:,} of a client can be sent to the "
            "worker: keep them in files, with dataset.save(path), and pass tf.data.Dataset.load(path), which the "
            "worker reads itself; or pass fewer, with .take(batches)."
        )
    # Elements may contain the word too.
    if b"PyFunc" in sent and (python := _python_operations(sent)):
        raise InputValueError(
            f"{argument}: the dataset of {whose} calls Python (in {python[0]}), as from_generator and py_function do, "
            "and the worker that trains on it is another process: give tf.data.Dataset.from_tensor_slices the arrays, "
            "or read files with TensorFlow's own operations; dataset.save(path) and tf.data.Dataset.load(path) keep "
            "what a generator makes."
        )


def is_empty(elements: tf.data.Dataset | Sequence[Any], *, read: bool) -> bool:
    """Returns whether a dataset, or a list of elements, has no element.

    Args:
        elements: The dataset or list.
        read: Whether the first element is read where the number of elements is not known, as after a filter; it is
            taken to be there otherwise.
    """
    if not isinstance(elements, tf.data.Dataset):
        return not elements
    number = elements.cardinality()
    return bool(number == 0) or (read and bool(number == tf.data.UNKNOWN_CARDINALITY) and not list(elements.take(1)))


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
        self._coming: tuple[Clients, list[str], concurrent.futures.Future[list[Any]]] | None = None
        # Tracing a data set takes a second: of the clients that train, and of those that evaluate.
        self._traced = functools.lru_cache(maxsize=2)(ClientDatasets)
        # Whether the first elements of a cohort were read, where nothing else says that there are any.
        self._looked = False

    def source(self, client_data: ClientData) -> Clients:
        """Returns clients by what reads them."""
        return client_data if isinstance(client_data, Clients) else self._traced(client_data)

    def begin(self, client_data: ClientData, clients: Sequence[str]) -> None:
        """Begins to read the cohort that comes next."""
        source = self.source(client_data)
        self._coming = source, list(clients), self._thread.submit(source.read, clients)

    def read(self, client_data: ClientData, clients: Sequence[str]) -> list[Any]:
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
    ) -> list[Any]:
        """Returns the data of a round, if they can be of its cohort.

        Args:
            cohort_data: As `PrivateTraining.next` has it.
            cohort: The clients of the round.
            number: The number of the round.

        Raises:
            InputTypeError: If these are no datasets, or have other elements than the model takes.
            InputValueError: If there are data of another client, or data that no worker can read to their end.
        """
        if isinstance(cohort_data, ClientData):
            data = self._checked("cohort_data", cohort_data, cohort)
            self._check_sent(cohort, data, cohort, number)
            return data
        if not isinstance(cohort_data, Mapping):
            raise InputTypeError(
                f"cohort_data={type(cohort_data).__name__} must be {{client: dataset}} or TFF's ClientData, so that "
                "whose data they are can be checked."
            )
        data = list(cohort_data.values())
        self._check_elements("cohort_data", data)
        # Their ids, in a log, would show who is not in a secret cohort.
        if others := len(cohort_data.keys() - set(cohort)):
            raise InputValueError(
                f"cohort_data has data of {others} clients that are not in the cohort of round {number}: pass "
                "the data of the clients that training.cohorts(clients) gave, and of nobody else."
            )
        self._check_sent(cohort_data, data, cohort, number)
        # A warning, in a log, would show how large a secret cohort is.
        if len(data) < len(cohort) and not self._plan.secret_cohorts:
            warn_of_size(len(data), number, self._plan.clients_per_round)
        return data

    def of_evaluation(self, data: Sequence[tf.data.Dataset] | ClientData) -> list[Any]:
        """Returns the data of an evaluation, if they can be sent and one of them has an example.

        Args:
            data: A dataset for each client, or all of TFF's clients.

        Raises:
            InputTypeError: If these are no datasets, or have other elements than the model takes.
            InputValueError: If there is no example, or data that no worker can read to their end.
        """
        if isinstance(data, ClientData):
            datasets = self._checked("data", data, list(data.client_ids))
        else:
            datasets = list(data)
            self._check_elements("data", datasets)
        for number, elements in enumerate(datasets, 1):
            check_sent("data", f"client {number} of {len(datasets)}", elements)
        if all(is_empty(elements, read=True) for elements in datasets):
            raise InputValueError(
                f"data has no example in {len(datasets)} datasets, so that nothing could be measured: pass clients "
                "with examples, and batch them without drop_remainder=True."
            )
        return datasets

    def _checked(self, argument: str, client_data: ClientData, clients: Sequence[str]) -> list[Any]:
        """Returns the data of clients, which may have been read already."""
        source = self.source(client_data)
        self._check_type(argument, source.element_type)
        if missing := len(set(clients) - source.client_ids):
            raise InputValueError(
                f"{argument} lacks {missing} clients of the cohort: pass the ClientData whose client_ids "
                "training.cohorts was given, or {client: dataset} of the clients that are there."
            )
        return self.read(source, clients)

    def _check_sent(self, clients: Iterable[str], data: Sequence[Any], cohort: Sequence[str], number: int) -> None:
        """Raises unless the data of a cohort can be sent, and warns of clients without an element.

        A secret cohort's clients have no number: the largest would show how many there are.
        """
        secret, size = self._plan.secret_cohorts, len(cohort)
        places = [cohort.index(client) + 1 for client in clients]
        words = ["a client" if secret else f"client {place} of {size} in round {number}" for place in places]
        for whose, elements in zip(words, data, strict=True):
            check_sent("cohort_data", whose, elements)
        # Reading takes some time, and a pipeline without elements is one in every round.
        read, self._looked = not self._looked, True
        empty = [whose for whose, elements in zip(words, data, strict=True) if is_empty(elements, read=read)]
        if empty:
            others = "" if secret or len(empty) == 1 else f" (and of {len(empty) - 1} others)"
            warnings.warn(
                f"cohort_data: the dataset of {empty[0]}{others} has no batch, which adds nothing to the mean, and the "
                "noise is the same: batch without drop_remainder=True, or leave out clients with too few examples.",
                CohortSizeWarning,
                stacklevel=5,
            )

    def _check_elements(self, argument: str, datasets: Sequence[tf.data.Dataset]) -> None:
        """Raises unless each is a dataset of what the model takes: TFF says so below pages of its own calls."""
        for dataset in datasets:
            validation.instance(argument, dataset, tf.data.Dataset, "pass a tf.data.Dataset of each client")
            self._check_type(argument, tff.types.tensorflow_to_type(dataset.element_spec))

    def _check_type(self, argument: str, given: tff.Type) -> None:
        """Raises unless the model takes elements of a type."""
        if not self._taken.is_assignable_from(given):
            raise InputTypeError(
                f"{argument} has a dataset of {given}, and the model takes {self._taken}: batch and cast its elements "
                "as in the input_spec of the model."
            )


def _python_operations(sent: bytes) -> list[str]:
    """Returns the names of operations that call Python in a serialized dataset."""
    graph = graph_pb2.GraphDef.FromString(sent)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return [node.name for node in nodes if "PyFunc" in node.op]
