"""The Flower strategy: rounds of FedAvg with server momentum, whose sums get the correlated noise of a mechanism."""

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from logging import INFO, WARNING
from typing import Any, NoReturn

import numpy as np
import safetensors.numpy
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from google.protobuf.message import DecodeError

import tff_mf
from tff_mf.base.errors import InputValueError

from ..guard.run_guard import RunGuard
from ..output import files
from ..reports import Report
from ..runs.ledger import ReportCounts
from ..runs.names import MODEL
from .cohorts import Draw, Identify, Planned, check_drawn
from .settings import FlowerSettings, checked_clip_norm
from .updates import Layout, Summands, UpdateSum, as_record

# The key in which Flower's own `fixedclipping_mod` looks for the clip norm.
_CLIPPING_NORM = "clipping_norm"
# Reasons for which replies are refused that are not the cohort's own to this round.
_OF_OTHERS = {"not chosen", "another round", "duplicate"}
# Clients that clip to a little less than ζ are not scaled again for the rounding of their own arithmetic.
_OF_CLIENTS = 1 - 1e-4
# What Flower raises for a reply that is no message. A connection that fails raises others, and stops the run.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, DecodeError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerState:
    """The server's state after a round. Secret: with its keys, the noise can be removed from every released model.

    Model and momentum are float32 `[dimension]`.
    """

    round_number: int
    weights: np.ndarray
    velocity: np.ndarray
    noise: Mapping[str, np.ndarray]

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns what is saved: of the noise, the keys, from which it can be drawn again."""
        return {"weights": self.weights, "velocity": self.velocity, "keys": np.asarray(self.noise["keys"])}


class MFStrategy(Strategy):
    """Trains with correlated noise, and keeps the folder of the run. Made by `open_strategy`.

    Formal guarantee: with `open_strategy`'s plan, the released models have the guarantee of the plan, under the
    assumptions in the run's report: each node adds at most ζ to a sum, in rounds that the participation schema allows
    to its identity, counting all rounds that were ever begun in the folder; each sum gets its round's row of C⁻¹z once;
    sums are divided by the constant `clients_per_round`; a model is sent, evaluated or returned only after the state
    that it belongs to is on disk and the ledger has its round as released. Metrics in replies are not read.

    `start` runs the rounds that are left. `configure_train` and `aggregate_train` are its two halves, for programs with
    their own loop; each refuses to be called for any round but the next. Nodes are not asked to evaluate: their exact
    metrics would be releases without noise.
    """

    def __init__(
        self,
        *,
        guarded: RunGuard,
        stream: Any,
        layout: Layout,
        state: ServerState,
        settings: FlowerSettings,
        summands: Summands,
        plan: tff_mf.Plan,
        identify: Identify,
        admitted: Collection[str] | None,
        draw: Draw,
    ) -> None:
        self._guard, self._stream, self._layout = guarded, stream, layout
        self._plan, self._state, self._settings, self._rounds = plan, state, settings, plan.rounds
        self._clients_per_round, self._draw = plan.clients_per_round, draw
        # Who nodes are, and whose nodes may take part.
        self._identify, self._admitted = identify, admitted
        self._planned = draw.plan if isinstance(draw, Planned) else None
        self._secret = isinstance(draw, Planned) and draw.secret
        self._summands, self._clip_norm = summands, checked_clip_norm(plan.clip_norm)
        # The messages of the round that was begun and not yet aggregated, by node id.
        self._asked: dict[int, Metadata] | None = None

    @property
    def plan(self) -> tff_mf.Plan:
        """The plan, with the grid and the σ that the run has."""
        return self._plan

    @property
    def rounds_released(self) -> int:
        """Rounds that are finished and released."""
        return self._state.round_number

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The released model: a copy of each array by its name."""
        return {name: value.copy() for name, value in self._layout.arrays(self._state.weights).items()}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the messages of the next round, once its cohort is on disk.

        Args:
            server_round: The next round, counted from 1.
            arrays: Not read: nodes are sent the released model.
            config: Settings for the nodes, to which the round and the clip norm are added.
            grid: Flower's grid.

        Raises:
            InputValueError: If it is another round's turn, or `draw` returns nodes that may not take part.
            RuntimeError: If too few allowed nodes are connected.
        """
        if server_round != self._state.round_number + 1 or self._guard.last_round != self._state.round_number:
            raise InputValueError(
                f"server_round={server_round} must be {self._state.round_number + 1}, and every round before it "
                "aggregated: open the strategy again, and call start, which knows its round."
            )
        nodes, cohort = self._gather(grid, server_round)
        number = self._guard.begin(cohort)
        record = RecordDict(
            {
                self._settings.arrayrecord_key: as_record(self._layout.arrays(self._state.weights)),
                self._settings.configrecord_key: ConfigRecord(
                    {
                        **config,
                        "server-round": number,
                        _CLIPPING_NORM: _OF_CLIENTS * float(self._clip_norm),
                        **self._summands.for_nodes,
                    }
                ),
            }
        )
        ttl = self._settings.waiting.replies_seconds
        messages = [Message(record, nodes[name], MessageType.TRAIN, ttl=ttl) for name in cohort]
        # A message gets its id when it is pushed.
        self._asked = {message.metadata.dst_node_id: message.metadata for message in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the model after the round, which is released by then, and no metrics.

        Args:
            server_round: The round that was begun.
            replies: Replies of nodes, in any order; read one at a time.

        Raises:
            InputValueError: If the round was not begun.
            RuntimeError: If replies came, and every one was refused. No noise is drawn then, and nothing is released.
        """
        if self._asked is None or server_round != self._guard.last_round:
            raise InputValueError(f"server_round={server_round} was not begun: call configure_train first.")
        asked, self._asked = self._asked, None
        total = UpdateSum(
            self._layout.arrays(self._state.weights),
            summands=self._summands,
            asked=asked,
            key=self._settings.arrayrecord_key,
        )
        for message in replies:
            total.take(message)
        # How many replies came depends on secret cohorts, and so would a run that stops for it.
        counts = None if self._secret else total.counts()
        if counts and counts.refused:
            self._say_refused(server_round, counts)
        noise, noise_state = self._stream.next(self._state.noise)
        mean = self._summands.noised(total.total(), np.asarray(noise)) / np.float32(self._clients_per_round)
        weights, velocity = self._settings.optimizer.next(self._state.weights, self._state.velocity, mean)
        state = ServerState(round_number=server_round, weights=weights, velocity=velocity, noise=noise_state)
        # On disk, and released by the ledger, before anything of the round leaves this function.
        self._guard.finish(state.arrays(), reports=counts)
        self._state = state
        return as_record(self._layout.arrays(weights)), None

    def _say_refused(self, server_round: int, counts: ReportCounts) -> None:
        """Logs that replies were refused, or raises if all were: the model would be noise alone."""
        sent = self._summands.sent
        remedy = f"reply with arrays of the names and shapes of the model, of type {sent}"
        if self._summands.for_nodes:
            remedy += ", as ClientApp(mods=[mods.integers_mod]) does"
        reasons = ", ".join(f"{reason}: {number}" for reason, number in counts.refused.items())
        text = f"{sum(counts.refused.values())} of {counts.came} replies were refused ({reasons}): {remedy}."
        if not counts.counted and counts.refused.keys() - _OF_OTHERS:
            raise RuntimeError(
                f"Round {server_round} is not released: {text} Then open the strategy again: the run continues with "
                "another cohort."
            )
        log(WARNING, "[ROUND %s/%s] %s", server_round, self._rounds, text)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns no messages."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Returns no metrics."""
        return None

    def configure_fit(self, *arguments: Any) -> NoReturn:
        """Refuses Flower's SecAgg+, whose workflow calls it."""
        raise InputValueError(
            "SecAgg+ is not supported: the server would see sums alone and could clip no single node's integers, and "
            "its masks are made of 32 bits. Call start without a workflow."
        )

    def summary(self) -> None:
        """Logs what is left to do."""
        log(INFO, "\t└──> %s of %s rounds are released, %r", self.rounds_released, self._rounds, self._settings)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs the rounds that are left, and returns the last model.

        Args:
            grid: Flower's grid.
            initial_arrays: Not read: the run begins from the arrays of `open_strategy`, or goes on where it stopped.
            num_rounds: Last round to run, all that were accounted for if not given.
            timeout: Not read: `Waiting` has the times.
            train_config: Settings for the nodes.
            evaluate_config: Not read: nodes are not asked to evaluate.
            evaluate_fn: Called with each round and its released model, for example to measure it on data of the server.
                What it computes on clients that train is a release without noise.
        """
        last = self._rounds if num_rounds is None else min(num_rounds, self._rounds)
        self.summary()
        result, config = Result(), train_config or ConfigRecord()
        result.arrays = as_record(self.arrays)
        while self.rounds_released < last:
            number = self.rounds_released + 1
            messages = self.configure_train(number, result.arrays, config, grid)
            arrays, _ = self.aggregate_train(number, self._replies(grid, list(messages)))
            assert arrays is not None
            result.arrays = arrays
            log(INFO, "[ROUND %s/%s] released", number, self._rounds)
            metrics = None if evaluate_fn is None else evaluate_fn(number, arrays)
            if metrics is not None:
                result.evaluate_metrics_serverapp[number] = metrics
        return result

    def end(self) -> Report:
        """Ends the run: writes the model, deletes the checkpoints, writes the report, and returns it."""
        files.write_atomically(self._guard.folder / MODEL, safetensors.numpy.save(self.arrays))
        return self._guard.end()

    def _gather(self, grid: Grid, round_number: int) -> tuple[Mapping[str, int], list[str]]:
        """Returns the connected nodes and a cohort of them, as soon as there is a whole one or the time is over."""
        waiting = self._settings.waiting
        deadline = time.monotonic() + waiting.nodes_seconds
        while True:
            nodes = dict(self._identify(grid.get_nodes()))
            if self._admitted is not None:
                nodes = {name: node for name, node in nodes.items() if name in self._admitted}
            late = time.monotonic() >= deadline
            if self._secret and self._planned is not None:
                # All that could be in a secret cohort: when a round begins shows nothing of its own.
                if late or nodes.keys() >= set(self._planned.client_ids):
                    return nodes, list(self._draw(round_number, sorted(nodes)))
            else:
                allowed = self._guard.allowed(sorted(nodes))
                cohort, wanted = list(self._draw(round_number, allowed)), self._clients_per_round
                if self._planned is not None:
                    wanted = len(self._planned.cohort(round_number - 1))
                check_drawn(cohort, allowed, wanted)
                fewest = min(waiting.fewest, wanted)
                if len(cohort) == wanted or (late and len(cohort) >= fewest):
                    return nodes, cohort
                if late:
                    raise RuntimeError(
                        f"Round {round_number} found {len(cohort)} of {wanted} nodes, fewer than fewest={fewest}: "
                        f"{len(nodes)} are connected, {len(allowed)} of them allowed. Resume the run when more are."
                    )
            time.sleep(waiting.poll_seconds)

    def _replies(self, grid: Grid, messages: list[Message]) -> Iterator[Message]:
        """Yields replies as they come, until all have come or the time is over; of a secret cohort, until it is over.

        When a round ends would show how many are in its cohort.
        """
        waiting = self._settings.waiting
        # In the order of the messages: float sums of replies that are all there then have the same bits in every run.
        missing = (
            dict.fromkeys(identifier for identifier in grid.push_messages(messages) if identifier) if messages else {}
        )
        deadline = time.monotonic() + waiting.replies_seconds
        while missing or self._secret:
            # One at a time: what is in a reply can make Flower fail to read it, and all that were pulled with it.
            for identifier in list(missing):
                try:
                    pulled = list(grid.pull_messages([identifier]))
                except _UNREADABLE as error:
                    if not self._secret:
                        log(WARNING, "A reply could not be read, and is left out: %s", type(error).__name__)
                    del missing[identifier]
                    continue
                if pulled:
                    del missing[identifier]
                yield from pulled
            if (not missing and not self._secret) or time.monotonic() >= deadline:
                return
            time.sleep(waiting.poll_seconds)
