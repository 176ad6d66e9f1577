"""The guard as parts of a TFF program: a data source and a release manager that call it."""

import json
import pathlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ... import aggregators
from ..sampling.data_source import ClientDatasets, saved_fields
from .run_guard import RunGuard

# A saved iterator has the run's folder and a round; here it finds its data again.
_SOURCES: "weakref.WeakValueDictionary[str, GuardedDataSource]" = weakref.WeakValueDictionary()

# The iterator of each run that may draw, with its copies: two that draw in turn would hand out rounds twice.
_DRAWING: "weakref.WeakKeyDictionary[RunGuard, object]" = weakref.WeakKeyDictionary()

Draw = Callable[[int | None], Sequence[str]]


class GuardedDataSource(tff.program.FederatedDataSource):
    """The datasets of cohorts from any sampler, each checked and recorded before its data is handed out.

    Only the iterator that was made or loaded last can draw. A copy of it goes back to the round in which it was copied,
    as a program does to discard a round: results of the round must then be discarded too.

    Args:
        guard: The run's guard.
        client_data: Raw or preprocessed clients.
        draw: From the number of clients passed to `select` (which can be None) to the ids of a cohort.
        preprocess_fn: From a client's `tf.data.Dataset` to the dataset to train on; None for the dataset as it is.

    Example:
        with guard.open_guard("run", plan, sampler="uniform, of those allowed") as guarded:
            draw = lambda k: random.sample(guarded.allowed(train.client_ids), k)
            source = GuardedDataSource(guarded, train, draw)
            iterator = source.iterator()
            datasets = iterator.select(10)   # of a cohort that is on disk
    """

    def __init__(
        self,
        guard: RunGuard,
        client_data: tff.simulation.datasets.ClientData,
        draw: Draw,
        preprocess_fn: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
    ) -> None:
        validation.instance("guard", guard, RunGuard, "make one with open_guard")
        self._guard = guard
        self._datasets = ClientDatasets(client_data, preprocess_fn)
        self._draw = draw
        _SOURCES[_name(guard.folder)] = self

    @property
    def federated_type(self) -> tff.FederatedType:
        return self._datasets.federated_type

    def iterator(self) -> "GuardedDataSourceIterator":
        return GuardedDataSourceIterator(
            self, self._guard.next_round if self._guard.knows_its_round else None, self.new_turn()
        )

    def new_turn(self) -> object:
        """Returns a token with which an iterator can draw; earlier tokens become invalid."""
        turn = _DRAWING[self._guard] = object()
        return turn

    def select(self, next_round: int | None, k: int | None, turn: object) -> tuple[list[tf.data.Dataset], int]:
        """Returns the datasets of a cohort, and the round after it.

        Raises:
            InputValueError: If another iterator of the run was made or loaded since, or `draw` names a client without
                data.
        """
        if _DRAWING.get(self._guard) is not turn:
            raise InputValueError(
                f"iterator: another iterator of the run in folder={self.folder!r} was made or loaded since, and two "
                "would hand out rounds twice. Use that one."
            )
        if next_round is not None and next_round != self._guard.next_round:
            # A program goes back to an earlier state, to discard a round.
            self._guard.goes_back_to(next_round)
        clients = list(self._draw(k))
        missing = [client for client in clients if client not in self._datasets.client_ids]
        if missing:
            raise InputValueError(f"draw returned {missing[0]!r}, which client_data does not have.")
        number = self._guard.begin(clients)
        return self._datasets.of(clients), number + 1

    def go_on(self, next_round: int) -> None:
        """Tells the guard the round of the state that a program was resumed from."""
        self._guard.record_resumed(next_round - 1)

    @property
    def folder(self) -> str:
        """The folder of the source's run."""
        return _name(self._guard.folder)


class GuardedDataSourceIterator(tff.program.FederatedDataSourceIterator):
    """Draws the cohorts of a `GuardedDataSource`, one per round.

    Its bytes hold the run's folder and the next round. To resume, open the guard and make the source first.
    """

    def __init__(self, source: GuardedDataSource, next_round: int | None, turn: object) -> None:
        self._source, self._next_round, self._turn = source, next_round, turn

    @property
    def last_round(self) -> int | None:
        """The round that it drew last, 0 before the first; `None` for a resumed run until its round is known."""
        return None if self._next_round is None else self._next_round - 1

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "GuardedDataSourceIterator":
        """Returns the iterator that `to_bytes` was called on, and resumes after the round of its state.

        Raises:
            InputValueError: If `buffer` is not such an iterator, this process has no source of its run, or a later
                round was released.
        """
        folder, next_round = saved_fields(buffer, "folder", "next_round", of=cls.__name__)
        source = _SOURCES.get(folder)
        if source is None:
            raise InputValueError(f"buffer belongs to the run in {folder!r}: open its guard and make its source first.")
        source.go_on(next_round or 1)
        return cls(source, next_round, source.new_turn())

    def to_bytes(self) -> bytes:
        return json.dumps({"folder": self._source.folder, "next_round": self._next_round}).encode()

    @property
    def federated_type(self) -> tff.FederatedType:
        return self._source.federated_type

    def select(self, k: int | None = None) -> list[tf.data.Dataset]:
        """Draws a cohort, checks and records it, and returns its datasets.

        Args:
            k: Number of clients, passed to `draw`.

        Raises:
            RefusedCohortError: If the participation schema forbids the round to a client; nothing is handed out.
        """
        datasets, self._next_round = self._source.select(self._next_round, k, self._turn)
        return datasets

    def __deepcopy__(self, memo: Any) -> "GuardedDataSourceIterator":
        # Programs keep a copy of an iterator to go back to; both use the same files of the run.
        return GuardedDataSourceIterator(self._source, self._next_round, self._turn)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GuardedDataSourceIterator):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self._source.folder)


class GuardedReleaseManager(tff.program.ReleaseManager):
    """Releases through another manager, once checkpoints are on disk and the ledger has the round as released.

    If the guard knows the aggregator, each program state is checked before `checkpoints` saves it: its noise must have
    been drawn exactly once for each round that was begun, as counted by the data source's iterator in the state, or
    else by the guard. A state that fails is not saved, and nothing is released afterwards.

    Args:
        release_manager: The manager that releases.
        guard: The run's guard.
        checkpoints: The manager with which the program saves its state.
    """

    def __init__(
        self,
        release_manager: tff.program.ReleaseManager,
        guard: RunGuard,
        checkpoints: aggregators.CheckpointManager,
    ) -> None:
        validation.instance("guard", guard, RunGuard, "make one with open_guard")
        self._release_manager = aggregators.WriteAheadReleaseManager(release_manager, checkpoints)
        self._guard, self._checkpoints = guard, checkpoints
        self._seen = guard.last_round
        if guard.knows_its_noise:
            checkpoints.check_with(self._check)

    async def release(self, value: Any, key: Any) -> None:
        """Releases a value; a key that is not a number stands for all rounds so far.

        Args:
            value: The value.
            key: The round, counted from 1 like the guard's rounds; or any other name of the value.

        Raises:
            RuntimeError: If a checkpoint could not be saved; then nothing is released.
            InputValueError: If the round was never begun, or none of its states was saved.
        """
        await self._checkpoints.saved()
        is_number = isinstance(key, int | np.integer) and not isinstance(key, bool)
        number = validation.whole("key", int(key)) if is_number else self._guard.last_round
        if is_number:
            self._check_key(number)
        if number > 0:
            self._guard.record_released(number)
        await self._release_manager.release(value, key)

    def _check_key(self, number: int) -> None:
        # Also earlier rounds: programs begin the next round while they release.
        if not self._guard.is_current(number):
            raise InputValueError(
                f"key={number} must be a round that this process began, counted from 1; the last one was round "
                f"{self._guard.last_round}."
            )
        if self._guard.knows_its_noise and number > self._seen:
            raise InputValueError(
                f"key={number}: the newest saved program state belongs to round {self._seen}: save the state of round "
                f"{number} with the CheckpointManager before releasing any of its results."
            )

    def _check(self, program_state: Any, version: int) -> None:
        del version
        drawn = [part for part in tree.flatten(program_state) if isinstance(part, GuardedDataSourceIterator)]
        number = drawn[0].last_round if drawn else self._guard.last_round
        if number is not None:
            self._guard.check_state(number, program_state)
            self._seen = number


def _name(folder: pathlib.Path) -> str:
    return str(folder.resolve())
