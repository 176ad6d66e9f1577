"""The guard as parts of a TFF program: a data source that asks it first, and a release manager that tells it."""

import json
import pathlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_mf import _validate
from tff_mf.errors import InputValueError

from ... import aggregators
from ..sampling.data_source import ClientDatasets
from .run_guard import RunGuard

# An iterator is saved as its run's folder and a round, and finds its data again here.
_SOURCES: "weakref.WeakValueDictionary[str, GuardedDataSource]" = weakref.WeakValueDictionary()

# Of each run the iterator that may draw, with its copies: two that draw in turn would hand out rounds twice.
_DRAWING: "weakref.WeakKeyDictionary[RunGuard, object]" = weakref.WeakKeyDictionary()

Draw = Callable[[int | None], Sequence[str]]


class GuardedDataSource(tff.program.FederatedDataSource):
    """The datasets of cohorts that somebody else draws, each written down and checked before its data is handed out.

    One iterator draws at a time, the one that was made or loaded last. A copy of it goes back to where it was made,
    as a program does with a round that it discards: what was computed of the round must be thrown away.

    Args:
        guard: The run's guard.
        client_data: Raw or preprocessed clients.
        draw: From the number of clients that `select` was asked for (None if for none) to the ids of a cohort.
        preprocess_fn: From a client's `tf.data.Dataset` to the dataset to train on; None for the dataset as it is.

    Example:
        with guard.open_guard("run", plan, clip_norm=1.0, sampler="uniform, of those allowed") as guarded:
            draw = lambda k: random.sample(guarded.allowed(train.client_ids), k)
            source = GuardedDataSource(guarded, train, draw)
            iterator = source.iterator()
            datasets = iterator.select(10)   # of a cohort that is on disk

    Raises:
        InputTypeError: If an argument is of the wrong type.
    """

    def __init__(
        self,
        guard: RunGuard,
        client_data: tff.simulation.datasets.ClientData,
        draw: Draw,
        preprocess_fn: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
    ) -> None:
        _validate.instance("guard", guard, RunGuard, "make one with open_guard")
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
        """Returns what an iterator shows to draw; those that were given before draw no more."""
        turn = _DRAWING[self._guard] = object()
        return turn

    def select(self, next_round: int | None, k: int | None, turn: object) -> tuple[list[tf.data.Dataset], int]:
        """Returns the datasets of a cohort, and the round after it.

        Raises:
            InputValueError: If another iterator of the run was made or loaded since, or `draw` names somebody whose
                data there is not.
        """
        if _DRAWING.get(self._guard) is not turn:
            raise InputValueError(
                f"iterator: another one of the run in out={self.folder!r} was made or loaded since, and two would hand "
                "out rounds twice. Go on with that one."
            )
        if next_round is not None and next_round != self._guard.next_round:
            # A program goes back to a state of before, as it does with a round that it discards.
            self._guard.goes_back_to(next_round)
        clients = list(self._draw(k))
        missing = [client for client in clients if client not in self._datasets.client_ids]
        if missing:
            raise InputValueError(f"draw returned {missing[0]!r}, which client_data does not have.")
        number = self._guard.begin(clients)
        return self._datasets.of(clients), number + 1

    def go_on(self, next_round: int) -> None:
        """Says of which round the state is that a program was loaded with."""
        self._guard.goes_on_unseen(next_round - 1)

    @property
    def folder(self) -> str:
        """The run that the source is of."""
        return _name(self._guard.folder)


class GuardedDataSourceIterator(tff.program.FederatedDataSourceIterator):
    """Draws the cohorts of a `GuardedDataSource`, one a round.

    Its bytes hold the run's folder and the next round. To resume, open the guard and make the source first.
    """

    def __init__(self, source: GuardedDataSource, next_round: int | None, turn: object) -> None:
        self._source, self._next_round, self._turn = source, next_round, turn

    @property
    def last_round(self) -> int | None:
        """The round that it drew last, 0 before the first; `None` if a run goes on, and nobody said after which."""
        return None if self._next_round is None else self._next_round - 1

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "GuardedDataSourceIterator":
        """Returns the iterator that `to_bytes` was called on, and goes on after the round of its state.

        Raises:
            InputValueError: If `buffer` is no such iterator, this process has no source of its run, or a later round
                was released.
        """
        try:
            kept = json.loads(buffer)
            folder, next_round = kept["folder"], kept["next_round"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputValueError("buffer is not a saved GuardedDataSourceIterator.") from error
        source = _SOURCES.get(folder)
        if source is None:
            raise InputValueError(f"buffer is of the run in {folder!r}: open its guard and make its source first.")
        source.go_on(next_round or 1)
        return cls(source, next_round, source.new_turn())

    def to_bytes(self) -> bytes:
        return json.dumps({"folder": self._source.folder, "next_round": self._next_round}).encode()

    @property
    def federated_type(self) -> tff.FederatedType:
        return self._source.federated_type

    def select(self, k: int | None = None) -> list[tf.data.Dataset]:
        """Returns the datasets of a cohort that was drawn, checked and written down.

        Args:
            k: How many clients to draw, as `draw` understands it.

        Raises:
            RefusedCohortError: If the participation schema forbids it to one of them; nothing is handed out.
        """
        datasets, self._next_round = self._source.select(self._next_round, k, self._turn)
        return datasets

    def __deepcopy__(self, memo: Any) -> "GuardedDataSourceIterator":
        # Programs keep a copy of an iterator to go back to; the run's files stay one.
        return GuardedDataSourceIterator(self._source, self._next_round, self._turn)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GuardedDataSourceIterator):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self._source.folder)


class GuardedReleaseManager(tff.program.ReleaseManager):
    """Releases through another manager, once checkpoints are on disk and the ledger has the round as released.

    If the guard knows the aggregator, each program state is compared before `checkpoints` saves it: its noise must
    have been drawn once for each round that was begun, by the data source's iterator that is saved with it, or else by
    the guard. One that was not is not saved, and nothing is released any more.

    Args:
        release_manager: What releases.
        guard: The run's guard.
        checkpoints: What the program saves its state with.

    Raises:
        InputTypeError: If an argument is of the wrong type.
    """

    def __init__(
        self,
        release_manager: tff.program.ReleaseManager,
        guard: RunGuard,
        checkpoints: aggregators.CheckpointManager,
    ) -> None:
        _validate.instance("guard", guard, RunGuard, "make one with open_guard")
        self._release_manager = aggregators.WriteAheadReleaseManager(release_manager, checkpoints)
        self._guard, self._checkpoints = guard, checkpoints
        self._seen = guard.last_round
        if guard.knows_its_noise:
            checkpoints.check_with(self._check)

    async def release(self, value: Any, key: Any) -> None:
        """Releases a value; a key that is no number stands for all rounds so far.

        Args:
            value: What is released.
            key: The round, counted from 1, as the guard counts; or any other name of the value.

        Raises:
            RuntimeError: If a checkpoint could not be saved; nothing is released then.
            InputValueError: If the round was never begun, or none of its states was saved.
        """
        await self._checkpoints.saved()
        is_number = isinstance(key, int | np.integer) and not isinstance(key, bool)
        number = _validate.whole("key", int(key)) if is_number else self._guard.last_round
        if is_number:
            self._check_key(number)
        if number > 0:
            self._guard.released_unseen(number)
        await self._release_manager.release(value, key)

    def _check_key(self, number: int) -> None:
        # Not only the last round: programs begin the next one while they release.
        if not self._guard.is_current(number):
            raise InputValueError(
                f"key={number} must be a round that this process began, as the guard counts, from 1: round "
                f"{self._guard.last_round} was the last."
            )
        if self._guard.knows_its_noise and number > self._seen:
            raise InputValueError(
                f"key={number}: the newest program state that was saved is of round {self._seen}: save that of the "
                "round with the CheckpointManager before anything of it is released."
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
