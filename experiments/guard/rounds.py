"""The rounds of a private run in TFF, each on disk before it is released: the engine of every training."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import tensorflow_federated as tff

from ... import aggregators
from ...aggregators.checkpoints import States
from ..runs import names
from .run_guard import RunGuard

# TensorFlow compiles what DATASET_REDUCE does for each client anew: rounds take up to three times as long, and the
# worker's memory grows with each client. TensorFlow Lite, on the other hand, has no iterators.
SIMULATION_LOOP = tff.learning.LoopImplementation.DATASET_ITERATOR
DEVICE_LOOP = tff.learning.LoopImplementation.DATASET_REDUCE


class Computing(contextlib.AbstractContextManager["Computing"]):
    """A resident context that is current only where it is installed, and that is replaced if its worker dies.

    Args:
        options: Arguments of `aggregators.resident_context`.
    """

    def __init__(self, **options: Any) -> None:
        self._options, self._ends = options, contextlib.ExitStack()
        self._context: aggregators.ResidentContext | None = None

    def revive(self) -> None:
        """Starts a worker; one that runs is ended, with all of its values."""
        self._end()
        with _same_default():
            self._context = self._ends.enter_context(aggregators.resident_context(**self._options))

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Makes the context the current one for a block."""
        assert self._context is not None
        with tff.framework.get_context_stack().install(self._context):
            yield

    def wait(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """Returns the result of asynchronous work, also in a notebook, whose thread has a loop of its own."""

        def done() -> Any:
            with self.installed():
                return asyncio.run(work(*arguments))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return done()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(done).result()

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        with _same_default():
            self._ends.close()
        self._context = None


@contextlib.contextmanager
def _same_default() -> Iterator[None]:
    """Leaves the caller's context as it is, whatever the block does to it."""
    stack = tff.framework.get_context_stack()
    before = stack.current
    try:
        yield
    finally:
        stack.set_default_context(before)


class Rounds:
    """The rounds of a run in TFF, whose newest state is in a worker. `PrivateTraining` and `tff-mf train` run these.

    The guard begins a round; `compute` computes it; `keep` saves the state and records the release, before which
    nothing of the round may be released. Rounds that release nothing need not be kept one by one.

    Formal guarantee: as for `RunGuard` with the aggregator of the process: a state is recorded as released once it is
    on disk, if its noise was drawn exactly once for each round up to it.

    Args:
        process: The learning process.
        aggregator: The aggregator in it, with which the guard was opened.
        guard: The guard.
        computing: Where rounds are computed.
        initial_weights: What training starts from, if not from the process's own initial model.

    Attributes:
        state: The state that the next round starts from.
    """

    def __init__(
        self,
        process: tff.learning.templates.LearningProcess,
        aggregator: aggregators.MFAggregationFactory,
        guard: RunGuard,
        computing: Computing,
        *,
        initial_weights: tff.learning.models.ModelWeights | None,
    ) -> None:
        self.process, self._guard, self._computing, self._initial = process, guard, computing, initial_weights
        self._checkpoints = aggregators.CheckpointManager(guard.folder / names.CHECKPOINTS, aggregator=aggregator)
        self.state: Any = None

    def resume(self, *, every_round: bool = False, published: int = 0) -> Mapping[str, Any]:
        """Goes on with the newest state on disk, in a new worker, and returns the facts that were saved with it.

        Args:
            every_round: Whether each round is kept before the next begins.
            published: The last round of which anything is known to be published.

        Raises:
            InputValueError: As for `ServerLoop.resume`, or if the state has other noise.
        """
        self._computing.revive()
        with self._computing.installed():
            start = self.process.initialize()
            if self._initial is not None:
                start = self.process.set_model_weights(start, self._initial)
        states = States(self._checkpoints, start, self._computing.wait)
        self._guard.check_state(states.newest, states.state)
        self._guard.resume(states, every_round=every_round, published=published)
        if not states.rounds():
            # Also the initial model: a run that is begun again before its first round has the same.
            states.save(0, start, {"run": self._guard.run, "round": 0, "ledger": ""})
        self.state = states.state
        return states.about(states.newest)

    def compute(self, data: Any) -> Any:
        """Returns the output of the process for a round that was begun, on the data of its clients."""
        return self.process.next(self.state, data)

    def keep(self, round_number: int, state: Any, **facts: Any) -> None:
        """Saves the state after a round with facts about it, then records its release; only then is it `state`."""
        self._guard.check_state(round_number, state)
        self._guard.save(round_number, state, facts=facts)
        self._guard.record_released(round_number)
        self.state = state
