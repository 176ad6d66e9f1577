"""Private training in TFF from a plan: process, guard, ledger, checkpoints and report cannot contradict each other."""

import contextlib
import dataclasses
import os
import pathlib
import typing
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf.base import files, validation
from tff_mf.base.errors import InputValueError

from ... import aggregators
from ...aggregators.checkpoints import SavedStates
from ...aggregators.resident.context import ResidentContext, worker_context
from .. import reports
from ..runs import names, results
from ..runs.folders import keep_evaluated, read_evaluated, read_record
from ..sampling import CohortPlan
from . import export, inputs
from .inputs import ClientData, DataOfClients, WeightNames
from .run_guard import RunGuard, checked_clients

Model = Callable[[], tff.learning.models.VariableModel] | tff.learning.models.FunctionalModel
Sampler = Callable[[Sequence[str]], Sequence[str]]
Build = Callable[[aggregators.MFAggregationFactory], tff.learning.templates.LearningProcess]


class NoLiteWarning(UserWarning):
    """The devices' graph of an export could not be converted for TensorFlow Lite; the SavedModel is there."""


@dataclasses.dataclass(kw_only=True)
class _Begun:
    """A round whose clients are on disk and that is not released yet; `tried` once its computation was begun."""

    number: int
    clients: list[str]
    tried: bool = False


class PrivateTraining(contextlib.AbstractContextManager["PrivateTraining"]):
    """A private run in TFF: cohorts, rounds, evaluation, model and report. Made by `private_fed_avg`.

    Rounds are computed in a resident context of its own, whose worker ends with `close`, with the program, or when
    nothing refers to the training any more. It is a context manager too.

    Formal guarantee: as for `RunGuard` with the aggregator of the process: a state is recorded as released once it is
    on disk, if its noise was drawn exactly once for each round up to it. Rounds whose state is not kept release
    nothing.

    Attributes:
        plan: The plan, for this model: with its grid.
        process: The learning process.
        aggregator: The aggregator in it.
        guard: The guard, for whatever is not here.
        facts: What was saved with the state that the training goes on from.

    Args:
        guard: The guard, opened with the aggregator.
        plan: The plan.
        process: The learning process.
        aggregator: The aggregator in it.
        weights: The weights of its model.
        ends: What ends with the training.
        model_fn: The model, for evaluations.
        for_devices: Builds the process for exports, from its aggregator.
        sampler: Draws the cohorts, if the guard does not.
        initial_weights: What training starts from, if not from the process's own initial model.
        published: The last round of which anything is known to be published.
        of_context: Arguments of `aggregators.resident_context`.
    """

    def __init__(
        self,
        guard: RunGuard,
        plan: tff_mf.Plan,
        process: tff.learning.templates.LearningProcess,
        aggregator: aggregators.MFAggregationFactory,
        weights: WeightNames,
        *,
        ends: contextlib.ExitStack,
        model_fn: Model | None = None,
        for_devices: Build | None = None,
        sampler: Sampler | None = None,
        initial_weights: tff.learning.models.ModelWeights | None = None,
        published: int = 0,
        **of_context: Any,
    ) -> None:
        self.plan, self.process, self.aggregator, self.guard = plan, process, aggregator, guard
        self._model_fn, self._weights = model_fn, weights
        self._sampler, self._for_devices = sampler, for_devices
        # Of a run that has ended: its checkpoints are deleted, and nothing is computed any more but evaluations.
        self._final: tff.learning.models.ModelWeights | None = None
        self._begun: _Begun | None = None
        # Whether the state in memory may be another one than the newest on disk, or is lost.
        self._stale = True
        self._evaluation: tff.learning.templates.LearningProcess | None = None
        self._clients: frozenset[str] = frozenset()
        taken = process.next.type_signature.parameter[1].member.element
        self._data = ends.enter_context(DataOfClients(plan, taken))
        self._drawn: CohortPlan | None = None
        self._evaluated = read_evaluated(guard.folder)
        self._report: reports.Report | None = None
        # Current only where it is installed, and replaced if its worker dies.
        self._context: ResidentContext | None = None
        self._worker, self._of_context = ends.enter_context(contextlib.ExitStack()), of_context
        self._checkpoints = aggregators.CheckpointManager(guard.folder / names.CHECKPOINTS, aggregator=aggregator)
        self._initial, self._published = initial_weights, published
        # What the next round starts from, and facts that were saved with it.
        self._state: Any = None
        self.facts: Mapping[str, Any] = {}
        self._close = weakref.finalize(self, ends.close)
        try:
            if guard.has_ended:
                self._take_up_end()
            else:
                self._resume()
        except BaseException:
            self.close()
            raise

    @property
    def rounds_done(self) -> int:
        """The last round that was released, 0 before the first."""
        return self.guard.last_released

    def cohorts(self, clients: Iterable[str]) -> Iterator[list[str]]:
        """Yields the cohort of each round that is left, once it is on disk; call `next` before the next one.

        A round whose computation failed is begun again, with the same clients.

        Args:
            clients: Ids of all clients that cohorts are drawn from; a resumed run needs the same. Their order does not
                matter.

        Raises:
            RefusedCohortError: If the plan's participation forbids the round to a client that the sampler chose.
            InputTypeError: If an id is not a string.
            InputValueError: If there are other clients than planned or than the run began with, too few for the
                cohorts, or one of them was used for evaluation; or if `next` was not called for a cohort.
        """
        self._check_open()
        ids = checked_clients(self.plan, clients)
        if both := sorted(self._evaluated & set(ids)):
            raise InputValueError(
                f"clients has {len(both)} that training.evaluate used, for example {both[0]!r}: a client either trains "
                "or evaluates. Begin a run without them in another folder, or end this one: training.report(end=True)."
            )
        if self._report is not None:
            # What cohorts were drawn from is deleted.
            self._clients |= frozenset(ids)
            return iter(())
        draw = self._draws(ids)
        self._clients |= frozenset(ids)
        return self._rounds(draw)

    def next(self, cohort_data: Mapping[str, tf.data.Dataset] | ClientData) -> Mapping[str, Any]:
        """Trains a round on the data of its cohort, saves its state, records its release, and returns TFF's metrics.

        What clients measure is withheld. If it raises, nothing was released: call it again, or begin a new loop over
        `cohorts`, which begins the round again.

        Args:
            cohort_data: The dataset of each client of the cohort, by its id; clients that dropped out have none. Or the
                preprocessed clients, of whom the next cohort is read while this one trains.

        Raises:
            InputTypeError: If these are no datasets, or have other elements than the model takes.
            InputValueError: If no cohort waits for its data, there are data of a client that is not in it, or a dataset
                has no end or is too large to be sent to the worker. The cohort still waits then.
        """
        output = self.compute(cohort_data)
        self.advance(output.state)
        return output.metrics

    def compute(
        self, cohort_data: Mapping[str, tf.data.Dataset] | ClientData
    ) -> tff.learning.templates.LearningProcessOutput:
        """Returns the process's output for the cohort that waits; nothing of it may be released before `advance`.

        Arguments and errors are those of `next`.
        """
        self._check_open()
        begun = self._begun
        if begun is None and self._report is not None:
            raise InputValueError(f"folder={str(self.guard.folder)!r} holds a run that has ended: no round follows.")
        if begun is None:
            raise InputValueError(
                f"cohort_data: no cohort waits for its data after round {self.rounds_done}: call next once for each "
                "cohort of training.cohorts(clients)."
            )
        data = self._data.of_cohort(cohort_data, begun.clients, begun.number)
        if begun.tried and not self._begin_again(begun):
            raise InputValueError(
                f"cohort_data: round {begun.number} was saved before the error: go on with the next cohort."
            )
        if isinstance(cohort_data, ClientData) and self._drawn is not None and begun.number < self.plan.rounds:
            self._data.begin(cohort_data, self._drawn.cohort(begun.number))
        # Until `advance`: the worker may die, and the newest state may be on disk.
        begun.tried = self._stale = True
        with self._installed():
            return self.process.next(self._state, data)

    def advance(self, state: Any, *, keep: bool = True, **facts: Any) -> None:
        """Goes on with the state after a round.

        Args:
            state: The state.
            keep: Whether it is saved with the facts, and the round then recorded as released; a round that is not
                kept releases nothing.
            facts: Facts that the training needs to go on, as JSON.
        """
        if keep:
            self.guard.finish(state, facts=facts)
        self._state, self._begun, self._stale = state, None, False

    def evaluate(self, data: tf.data.Dataset | Mapping[str, tf.data.Dataset] | ClientData) -> dict[str, Any]:
        """Returns the metrics of the newest released model on clients that do not train.

        They are exact, and no noise covers the clients that they are computed on, whom the report lists by a hash: it
        changes if others are evaluated after the run has ended.

        Args:
            data: A dataset for each client, by its id, or preprocessed clients, all of which are read; or one dataset
                that is of no client that trains.

        Raises:
            InputTypeError: If it is neither, or has other elements than the model takes.
            InputValueError: If a client trains, or may train; if there is no example; or if a dataset has no end or is
                too large to be sent to the worker.
        """
        self._check_open()
        if isinstance(data, tf.data.Dataset):
            datasets = self._data.of_evaluation([data])
        else:
            kinds = (Mapping, *typing.get_args(ClientData))
            validation.instance("data", data, kinds, "pass {id: dataset}, so that ids can be compared")
            clients = list(data if isinstance(data, Mapping) else data.client_ids)
            # Who has not trained yet may still train.
            goes_on = self.rounds_done > 0 and self._final is None
            if not self._clients and (goes_on or self.plan.secret_cohorts):
                raise InputValueError(
                    "data: no log has all clients that may train: call training.cohorts(clients) first, so that ids "
                    "can be compared."
                )
            trains = [client for client in clients if client in self._clients or self.guard.rounds_of(client)]
            if trains:
                raise InputValueError(
                    f"data has {len(trains)} clients that train or may train, for example {trains[0]!r}: metrics on "
                    "them are a release without noise. Keep other clients for evaluation, and leave them out of "
                    "training.cohorts(...)."
                )
            datasets = self._data.of_evaluation(list(data.values()) if isinstance(data, Mapping) else data)
            self._add_evaluated(clients)
        if self._evaluation is None:
            self._evaluation = tff.learning.algorithms.build_fed_eval(
                self._model_fn, loop_implementation=inputs.SIMULATION_LOOP
            )
        with self._released():
            start = self._evaluation.initialize()
            weights = self.process.get_model_weights(self._state) if self._final is None else self._final
            state = self._evaluation.set_model_weights(start, weights)
            metrics = self._evaluation.next(state, datasets).metrics["client_work"]["eval"]["current_round_metrics"]
            return {name: np.asarray(value).tolist() for name, value in metrics.items()}

    def model(self) -> tff.learning.models.ModelWeights:
        """Returns the weights of the newest released model, as NumPy arrays.

        Example:
            training.model().assign_weights_to(keras_model)
        """
        if self._final is not None:
            self._check_open()
            return tff.learning.models.ModelWeights(*([weight.copy() for weight in part] for part in self._final))
        with self._released():
            return self.weights_of(self._state)

    def weights_of(self, state: Any) -> tff.learning.models.ModelWeights:
        """Returns the weights of the model in a state, as NumPy arrays."""
        with self._installed():
            weights = self.process.get_model_weights(state)
            return tff.learning.models.ModelWeights(
                trainable=[np.asarray(weight) for weight in tf.nest.flatten(weights.trainable)],
                non_trainable=[np.asarray(weight) for weight in tf.nest.flatten(weights.non_trainable)],
            )

    def report(self, *, end: bool | None = None) -> reports.Report:
        """Writes the privacy report and returns it; printed, it is the guarantee in one line.

        A run that has ended cannot go on: its model is written to its folder, and its keys are deleted. Opened
        again, it has its model, evaluates it, and reports.

        Args:
            end: Whether no round follows; if `None`, whether none is left.

        Raises:
            InputValueError: If `end` is true and a round was begun and not computed.
        """
        self._check_open()
        if self._report is not None:
            return self._report
        if not (self.rounds_done == self.plan.rounds if end is None else end):
            return reports.write(self.guard.folder, realised=True)
        if self._begun is not None:
            raise InputValueError(
                f"end={end!r}: round {self._begun.number} was begun and not computed: call next with the data of its "
                "clients first."
            )
        if not self.guard.has_ended:
            model = self.model()
            files.write_atomically(self.guard.folder / names.MODEL, self.file_of(model))
            # Nothing is read from checkpoints from here on, or written.
            self.guard.record_end()
            self._final, self._state = model, None
        # Also after an error that came between the end and here; after a kill, the next opening does it.
        self._report = self.guard.end()
        return self._report

    def export(
        self,
        out: str | os.PathLike[str],
        *,
        batch_size: int,
        client_epochs: int = 1,
        max_examples: int | None = None,
        longest_round: float = 15.0,
        task_name: str | None = None,
    ) -> reports.Report:
        """Writes a deployment of the plan as files, or nothing if it fails, and returns its planned report.

        It begins with the model that this training began with, for the clients of the plan, as docs/deployment.md
        describes. It is another run: if the same people take part in both, the two guarantees compose.

        Args:
            out: The new folder to write.
            batch_size: Number of examples in a device's batch.
            client_epochs: Number of passes that a device makes over its examples.
            max_examples: Maximum number of examples that a device uses in one round, over all passes; `None` for all.
            longest_round: Minutes of the longest round: devices wait for `min_sep` of them.
            task_name: Name of the task for devices; by default it is derived from the plan.

        Raises:
            InputValueError: If no ε can be stated, the plan has restarts, or the folder is not empty.
        """
        self._check_open()
        assert self._for_devices is not None
        record = read_record(self.guard.folder)
        initial = tff.learning.models.ModelWeights(
            *(list(part.values()) for part in results.read_model(self.guard.folder, names.FIRST_MODEL))
        )

        def add_graphs(folder: pathlib.Path, plan: tff_mf.Plan) -> dict[str, Any]:
            process = self._for_devices(aggregators.MFAggregationFactory.of_plan(plan))
            work = {"batch_size": batch_size, "client_epochs": client_epochs, "max_examples": max_examples}
            return aggregators.export_process(process, folder, initial_weights=initial, **work)

        written = export.write(
            record,
            pathlib.Path(out),
            add_graphs,
            population=record.population,
            longest_round=longest_round,
            task_name=task_name,
        )
        if reason := written.graphs["lite"]["reason"]:
            warnings.warn(
                f"out={str(out)!r} has no graph for TensorFlow Lite: {reason.rstrip('.')}. Those of a "
                "FunctionalModel, as of tff.learning.models.functional_model_from_keras, are converted more often.",
                NoLiteWarning,
                stacklevel=2,
            )
        return written.planned

    def close(self) -> None:
        """Ends the worker, and lets other processes use the folder. The run can be continued from there."""
        self._close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._close.alive:
            raise InputValueError(
                f"folder={str(self.guard.folder)!r}: this training was closed, by close() or because its folder was "
                "opened again: go on with the newer training, or call private_fed_avg with the same plan and folder."
            )

    def _add_evaluated(self, clients: Iterable[str]) -> None:
        """Writes the clients of an evaluation down before it: whoever was evaluated may not train, ever after."""
        evaluated = self._evaluated.union(clients)
        if evaluated == self._evaluated:
            return
        self._evaluated = evaluated
        keep_evaluated(self.guard.folder, evaluated)
        if self._report is not None:
            # It has the hash of the file.
            self._report = reports.write(self.guard.folder, realised=True)

    def _draws(self, clients: Sequence[str]) -> Callable[[int], list[str]]:
        """Returns what gives the cohort of a round: the plan's sampling, or the caller's sampler."""
        sampler = self._sampler
        if sampler is None:
            self._drawn = drawn = self.guard.draws_from(clients)
            return lambda number: list(drawn.cohort(number - 1))

        def sampled(number: int) -> list[str]:
            cohort = list(sampler(self.guard.allowed(clients)))
            if strange := sorted({str(client) for client in cohort} - set(clients)):
                raise InputValueError(
                    f"sampler drew {strange[0]!r} for round {number}, which is none of the clients: draw from those "
                    "that it is given."
                )
            if len(set(cohort)) < len(cohort):
                raise InputValueError(f"sampler drew {cohort} for round {number}: draw each client once.")
            divisor = self.plan.clients_per_round
            if len(cohort) > divisor:
                raise InputValueError(
                    f"clients={len(cohort)} in the cohort of round {number} are more than {divisor}: take fewer, or "
                    "make the plan for larger cohorts."
                )
            if len(cohort) < divisor:
                inputs.warn_of_size(len(cohort), number, divisor)
            return cohort

        return sampled

    def _rounds(self, draw: Callable[[int], list[str]]) -> Iterator[list[str]]:
        if self._begun is not None:
            # Of a loop that was left.
            self._begun.tried = True
        while self._report is None:
            self._check_open()
            if self._begun is None:
                if self._stale:
                    self._resume()
                number = self.guard.next_round
                if number > self.plan.rounds:
                    return
                clients = draw(number)
                self.guard.begin(clients)
                self._begun = _Begun(number=number, clients=clients)
            elif not self._begun.tried:
                raise InputValueError(
                    f"round {self._begun.number} was begun, and next was not called: call it once for each cohort, "
                    "with the data of its clients that are there."
                )
            elif not self._begin_again(self._begun):
                continue
            yield list(self._begun.clients)

    def _begin_again(self, begun: _Begun) -> bool:
        """Begins a round again that failed, and returns whether it is the next one.

        The failure may have come after it was saved, and rounds before it may not have been kept.
        """
        if self._stale:
            self._resume()
        elif begun.number > self.rounds_done:
            self.guard.goes_back_to(begun.number)
        if self.guard.next_round != begun.number:
            self._begun = None
            return False
        self.guard.begin(begun.clients)
        begun.tried = False
        return True

    def file_of(self, model: tff.learning.models.ModelWeights) -> bytes:
        """Returns the content of the file of a model."""
        trainable = dict(zip(self._weights.trainable, model.trainable, strict=True))
        others = dict(zip(self._weights.non_trainable, model.non_trainable, strict=True))
        return results.model_content(trainable, others)

    def _take_up_end(self) -> None:
        """Reads the model and the report of a run that has ended."""
        trainable, others = results.read_model(self.guard.folder)
        own, trained = (self._weights.trainable, self._weights.non_trainable), (list(trainable), list(others))
        if own != trained:
            raise InputValueError(
                f"model_fn makes a model of the weights {own}, and the run in folder={str(self.guard.folder)!r} "
                f"trained {trained}: pass the same model."
            )
        self._final = tff.learning.models.ModelWeights(list(trainable.values()), list(others.values()))
        self._report = reports.write(self.guard.folder, realised=True)

    def _resume(self) -> None:
        """Goes on with the newest state on disk, in a new worker.

        Raises:
            InputValueError: As for `RunGuard.resume`, or if the state has other noise.
        """
        self._revive()
        with self._installed():
            start = self.process.initialize()
            if self._initial is not None:
                start = self.process.set_model_weights(start, self._initial)
            states = SavedStates(self._checkpoints, start)
        self.guard.resume(states, published=self._published)
        if not states.rounds():
            # Also the initial model: a run that is begun again before its first round has the same.
            states.save(0, start, {"run": self.guard.run, "round": 0, "ledger": ""})
        self._state, self.facts, self._stale = states.state, states.about(states.newest), False
        if self.rounds_done == 0:
            first = self.file_of(self.weights_of(self._state))
            files.write_atomically(self.guard.folder / names.FIRST_MODEL, first)

    def _revive(self) -> None:
        """Starts a worker; one that runs is ended, with all of its values."""
        self._worker.close()
        self._context = self._worker.enter_context(worker_context(**self._of_context))

    def _installed(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the training's context the current one for a block."""
        assert self._context is not None
        return tff.framework.get_context_stack().install(self._context)

    @contextlib.contextmanager
    def _released(self) -> Iterator[None]:
        """Makes the training's context the current one, with the newest released state in its worker."""
        self._check_open()
        if self._final is not None:
            if self._stale:
                self._revive()
                self._stale = False
        elif self._stale:
            self._resume()
            if self._begun is not None:
                # Its state is another one now.
                self._begun.tried = True
        try:
            with self._installed():
                yield
        except aggregators.WorkerLostError:
            self._stale = True
            raise
