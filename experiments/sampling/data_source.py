"""The data of cohorts: read for a training, or handed to a TFF program."""

import abc
import concurrent.futures
import functools
import json
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from . import CohortPlan

# An iterator is saved as the digest of its plan and a round, and finds its data again here.
_SOURCES: "weakref.WeakValueDictionary[str, MinSepDataSource]" = weakref.WeakValueDictionary()


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
        preprocess_fn: From a client's `tf.data.Dataset` to the dataset to train on; None for the dataset as it is.
    """

    def __init__(
        self,
        client_data: tff.simulation.datasets.ClientData,
        preprocess_fn: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
    ) -> None:
        validation.instance(
            "client_data", client_data, tff.simulation.datasets.ClientData, "pass one of the splits of a data set"
        )
        if preprocess_fn is not None:
            client_data = client_data.preprocess(preprocess_fn)
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


class CohortReader:
    """Reads cohorts, of which the next one may be read in a thread already; it has ended when the block ends.

    An error of reading is raised when its cohort is due.
    """

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._coming: tuple[Clients, list[str], concurrent.futures.Future[list[Any]]] | None = None
        # Tracing a data set takes a second: of the clients that train, and of those that evaluate.
        self._traced = functools.lru_cache(maxsize=2)(ClientDatasets)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()


class MinSepDataSource(tff.program.FederatedDataSource):
    """The datasets of the clients that a plan puts into each round.

    Attributes:
        plan: Who takes part when.

    Args:
        client_data: Raw or preprocessed clients; must have all the clients of `plan`.
        plan: As the attribute.
        preprocess_fn: From a client's `tf.data.Dataset` to the dataset to train on; None for
            the dataset as it is. Must be traceable, not a `tff.Computation`.

    Example:
        source = MinSepDataSource(splits.train, plan, preprocess_fn)
        iterator = source.iterator()
        datasets = iterator.select()        # of the clients in plan.cohort(0)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If a client of `plan` is not in `client_data`.
    """

    def __init__(
        self,
        client_data: tff.simulation.datasets.ClientData,
        plan: CohortPlan,
        preprocess_fn: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
    ):
        self._datasets = ClientDatasets(client_data, preprocess_fn)
        validation.instance("plan", plan, CohortPlan, "make one with plan_cohorts")
        missing = set(plan.client_ids) - self._datasets.client_ids
        if missing:
            raise InputValueError(
                f"client_data lacks {len(missing)} clients of the plan, {min(missing)!r} for one; "
                f"plan with client_ids=client_data.client_ids."
            )
        self.plan = plan
        _SOURCES[plan.digest] = self

    @property
    def federated_type(self) -> tff.FederatedType:
        return tff.FederatedType(tff.SequenceType(self._datasets.element_type), tff.CLIENTS)

    def datasets(self, t: int) -> list[tf.data.Dataset]:
        """Returns the datasets of the clients of round `t`, in the order of `plan.cohort(t)`."""
        return self._datasets.of(self.plan.cohort(t))

    def iterator(self, first_round: int = 0) -> "MinSepDataSourceIterator":
        """Returns an iterator whose first selection is the cohort of `first_round`, counted from 0."""
        return MinSepDataSourceIterator(self, first_round)


class MinSepDataSourceIterator(tff.program.FederatedDataSourceIterator):
    """Goes through the rounds of a `MinSepDataSource`, each once.

    Its bytes hold the digest of the plan and the next round, not the data. To resume, make the
    source first, with the same plan, in the process that reads the bytes.

    Attributes:
        next_round: The round, counted from 0, that the next selection is for.
    """

    def __init__(self, source: MinSepDataSource, next_round: int = 0):
        self._source = source
        self.next_round = validation.whole("first_round", next_round, at_least=0)
        if self.next_round > source.plan.rounds:
            raise InputValueError(f"first_round={next_round} is beyond the plan's rounds={source.plan.rounds}.")

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "MinSepDataSourceIterator":
        """Returns the iterator that `to_bytes` was called on, on the source of the same plan in this process.

        Raises:
            InputValueError: If `buffer` is no such iterator, or this process has no source of its plan.
        """
        try:
            saved = json.loads(buffer)
            digest, next_round = saved["plan"], saved["next_round"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputValueError(f"buffer is not a saved {cls.__name__}.") from error
        source = _SOURCES.get(digest)
        if source is None:
            raise InputValueError(
                f"buffer belongs to a plan with digest {digest[:12]}…, and no MinSepDataSource of this process has it; "
                f"make the source first, with the population, seed and schema of the saved run."
            )
        return cls(source, next_round)

    def to_bytes(self) -> bytes:
        return json.dumps({"plan": self._source.plan.digest, "next_round": self.next_round}).encode()

    @property
    def federated_type(self) -> tff.FederatedType:
        return self._source.federated_type

    def select(self, k: int | None = None) -> list[tf.data.Dataset]:
        """Returns the datasets of the next round's cohort.

        Args:
            k: The size of the cohort: the plan's `clients_per_round`, or None for the same.

        Raises:
            InputTypeError: If `k` is not a whole number.
            InputValueError: If `k` is another size, or all planned rounds were selected.
        """
        plan = self._source.plan
        if k is not None and validation.whole("k", k) != plan.clients_per_round:
            raise InputValueError(
                f"k={k} is not the plan's clients_per_round={plan.clients_per_round}: the schema was checked for that."
            )
        if self.next_round >= plan.rounds:
            raise InputValueError(f"All rounds={plan.rounds} of the plan were selected; plan more rounds.")
        self.next_round += 1
        return self._source.datasets(self.next_round - 1)

    def __deepcopy__(self, memo: dict[int, object]) -> "MinSepDataSourceIterator":
        # `tff.learning.programs.train_model` copies the iterator every round, but not what it goes over.
        del memo
        return MinSepDataSourceIterator(self._source, self.next_round)
