"""The Flower strategy and its settings: FedAvg with server momentum, whose sums get the correlated noise."""

import contextlib
import dataclasses
import importlib.metadata
import math
import pathlib
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
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.noise import numpy as streams

from ..guard import RunGuard, begun_plan, checked_clients, open_guard
from ..output import files
from ..reports import Report
from ..runs import folders, names
from ..runs.folders import Checkpoints
from ..runs.ledger import ReportCounts
from ..sampling import PARAMETERS, CohortPlan, SamplingSettings
from .cohorts import Identify, by_public_key, uniform
from .updates import INTEGERS, MODEL, REPLIES, Layout, Summands, UpdateSum, as_record, model_arrays

_GENERATORS = ("aes", "philox", "tensorflow")
# Names of the records in messages and replies, as Flower has them.
_ARRAYS, _CONFIG = "arrays", "config"
# Of these, each cohort can be drawn when its round begins, from the nodes that are connected.
_IN_ROUNDS = (tff_mf.MinSep, tff_mf.FixedEpoch, tff_mf.SingleParticipation)
# The key in which Flower's own `fixedclipping_mod` looks for the clip norm.
_CLIPPING_NORM = "clipping_norm"
# Reasons for which replies are refused that are not the cohort's own to this round.
_OF_OTHERS = {"not chosen", "another round", "duplicate"}
# Clients that clip to a little less than ζ are not scaled again for the rounding of their own arithmetic.
_OF_CLIENTS = 1 - 1e-4
# What Flower raises for a reply that is no message. A connection that fails raises others, and stops the run.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, DecodeError)


def checked_clip_norm(value: object) -> np.float32:
    """Returns the largest float32 that is at most a clip norm.

    Example:
        >>> float(checked_clip_norm(0.5))
        0.5
    """
    clip_norm = validation.clip_norm(value)
    result = np.float32(clip_norm)
    return np.nextafter(result, np.float32(0)) if float(result) > clip_norm else result


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """Server momentum, in float32 as `tff.learning.optimizers.build_sgdm` computes it.

    With the noised mean x̂ of a round: v ← momentum·v − x̂ and w ← w − learning_rate·v. With `learning_rate=1` and
    `momentum=0` it is plain FedAvg. It reads noised values only, so that it costs no privacy.

    Attributes:
        learning_rate: Learning rate of the server.
        momentum: From 0 to below 1.

    Example:
        >>> step = ServerOptimizer(learning_rate=1.0, momentum=0.5)
        >>> step.next(np.float32([0]), np.float32([2]), np.float32([1]))
        (array([0.], dtype=float32), array([0.], dtype=float32))
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        validation.positive("learning_rate", self.learning_rate)
        if not 0 <= validation.real("momentum", self.momentum) < 1 or not math.isfinite(self.learning_rate):
            raise InputValueError(f"momentum={self.momentum!r} must lie in [0, 1).")

    def next(self, weights: np.ndarray, velocity: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns weights and velocity after a step.

        Args:
            weights: float32 `[dimension]`.
            velocity: float32 `[dimension]`; zeros before the first step.
            mean: Noised mean of the updates, float32 `[dimension]`.
        """
        velocity = np.float32(self.momentum) * velocity - mean
        return weights - np.float32(self.learning_rate) * velocity, velocity


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """How long a round waits for nodes, and for their replies.

    Attributes:
        nodes_seconds: Time until enough allowed nodes are connected; after it the round begins with fewer.
        replies_seconds: Time until all replies have come; after it the round ends with fewer.
        poll_seconds: Time between two questions to the SuperLink.
        fewest: Fewest nodes with which a round begins; with fewer after `nodes_seconds`, the run stops, and can be
            resumed.
    """

    nodes_seconds: float = 600.0
    replies_seconds: float = 600.0
    poll_seconds: float = 1.0
    fewest: int = 1

    def __post_init__(self) -> None:
        validation.nonnegative("nodes_seconds", self.nodes_seconds)
        validation.positive("replies_seconds", self.replies_seconds)
        validation.positive("poll_seconds", self.poll_seconds)
        validation.whole("fewest", self.fewest, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowerSettings:
    """How a strategy trains, and how it talks to nodes.

    Attributes:
        optimizer: The server's optimizer.
        replies: `model` if nodes reply with the model that they trained, as Flower's own strategies expect; `update`
            if they reply with its difference from the model that they were sent; `integers`, with a grid, if they reply
            with that difference in integers, as `mods.integers_mod` makes them. Floats become integers of a grid on
            the server.
        generator: Generator of the noise, as in `tff_mf.noise.numpy.build_stream`: by default AES, a cryptographic one,
            whose package Flower itself needs.
        floating_point: Whether a plan without a grid stays in floating point, where the guarantee holds for real
            numbers only. Otherwise updates, their sums and the noise are integers.
        waiting: How long rounds wait.

    Example:
        >>> FlowerSettings(optimizer=ServerOptimizer(momentum=0.9)).replies
        'model'
    """

    optimizer: ServerOptimizer = dataclasses.field(default_factory=ServerOptimizer)
    replies: str = MODEL
    generator: str = "aes"
    floating_point: bool = False
    waiting: Waiting = dataclasses.field(default_factory=Waiting)

    def __post_init__(self) -> None:
        validation.instance("optimizer", self.optimizer, ServerOptimizer, "pass ServerOptimizer(...)")
        validation.instance("waiting", self.waiting, Waiting, "pass Waiting(...)")
        validation.one_of("replies", self.replies, REPLIES)
        validation.one_of("generator", self.generator, _GENERATORS)
        validation.instance("floating_point", self.floating_point, bool, "pass True or False")


def sampling_of(config: Mapping[str, Any]) -> SamplingSettings:
    """Returns how the nodes of an app take part: `sampling` of its configuration, and the parameters that are not 0.

    Raises:
        InputError: If there is no such sampling, or it needs another parameter or does not take one of these.

    Example:
        >>> sampling_of({"sampling": "min-sep", "min-sep": 4, "max-participations": 3, "rounds": 12}).schema(12)
        MinSep(min_sep=4, max_participations=3)
    """
    given = {name: config.get(name.replace("_", "-")) for name in PARAMETERS}
    return SamplingSettings(sampling=config["sampling"], **{name: value for name, value in given.items() if value})


_DEFAULT = FlowerSettings()


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


@dataclasses.dataclass(kw_only=True, eq=False)
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

    guard: RunGuard
    # The plan, with the grid and the σ that the run has.
    plan: tff_mf.Plan
    stream: streams.NoiseStream
    layout: Layout
    state: ServerState
    settings: FlowerSettings
    summands: Summands
    # Who nodes are, and whose nodes may take part.
    identify: Identify
    admitted: Collection[str] | None
    # The cohorts, if they were drawn before the first round.
    planned: CohortPlan | None
    # The messages of the round that was begun and not yet aggregated, by node id.
    asked: dict[int, Metadata] | None = dataclasses.field(default=None, init=False)

    @property
    def rounds_released(self) -> int:
        """Rounds that are finished and released."""
        return self.state.round_number

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The released model: a copy of each array by its name."""
        return {name: value.copy() for name, value in self.layout.arrays(self.state.weights).items()}

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
            InputValueError: If it is another round's turn.
            RuntimeError: If too few allowed nodes are connected.
        """
        if server_round != self.state.round_number + 1 or self.guard.last_round != self.state.round_number:
            raise InputValueError(
                f"server_round={server_round} must be {self.state.round_number + 1}, and every round before it "
                "aggregated: open the strategy again, and call start, which knows its round."
            )
        nodes, cohort = self._gather(grid, server_round)
        number = self.guard.begin(cohort)
        record = RecordDict(
            {
                _ARRAYS: as_record(self.layout.arrays(self.state.weights)),
                _CONFIG: ConfigRecord(
                    {
                        **config,
                        "server-round": number,
                        _CLIPPING_NORM: _OF_CLIENTS * float(checked_clip_norm(self.plan.clip_norm)),
                        **self.summands.for_nodes,
                    }
                ),
            }
        )
        ttl = self.settings.waiting.replies_seconds
        messages = [Message(record, nodes[name], MessageType.TRAIN, ttl=ttl) for name in cohort]
        # A message gets its id when it is pushed.
        self.asked = {message.metadata.dst_node_id: message.metadata for message in messages}
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
        if self.asked is None or server_round != self.guard.last_round:
            raise InputValueError(f"server_round={server_round} was not begun: call configure_train first.")
        asked, self.asked = self.asked, None
        total = UpdateSum(
            self.layout.arrays(self.state.weights),
            summands=self.summands,
            asked=asked,
            key=_ARRAYS,
        )
        for message in replies:
            total.take(message)
        # How many replies came depends on secret cohorts, and so would a run that stops for it.
        counts = None if self.plan.secret_cohorts else total.counts()
        if counts and counts.refused:
            self._say_refused(server_round, counts)
        noise, noise_state = self.stream.next(self.state.noise)
        mean = self.summands.noised(total.total(), np.asarray(noise)) / np.float32(self.plan.clients_per_round)
        weights, velocity = self.settings.optimizer.next(self.state.weights, self.state.velocity, mean)
        state = ServerState(round_number=server_round, weights=weights, velocity=velocity, noise=noise_state)
        # On disk, and released by the ledger, before anything of the round leaves this function.
        self.guard.finish(state.arrays(), reports=counts)
        self.state = state
        return as_record(self.layout.arrays(weights)), None

    def _say_refused(self, server_round: int, counts: ReportCounts) -> None:
        """Logs that replies were refused, or raises if all were: the model would be noise alone."""
        sent = self.summands.sent
        remedy = f"reply with arrays of the names and shapes of the model, of type {sent}"
        if self.summands.for_nodes:
            remedy += ", as ClientApp(mods=[mods.integers_mod]) does"
        reasons = ", ".join(f"{reason}: {number}" for reason, number in counts.refused.items())
        text = f"{sum(counts.refused.values())} of {counts.came} replies were refused ({reasons}): {remedy}."
        if not counts.counted and counts.refused.keys() - _OF_OTHERS:
            raise RuntimeError(
                f"Round {server_round} is not released: {text} Then open the strategy again: the run continues with "
                "another cohort."
            )
        log(WARNING, "[ROUND %s/%s] %s", server_round, self.plan.rounds, text)

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
        log(INFO, "\t└──> %s of %s rounds are released, %r", self.rounds_released, self.plan.rounds, self.settings)

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
        last = self.plan.rounds if num_rounds is None else min(num_rounds, self.plan.rounds)
        self.summary()
        result, config = Result(), train_config or ConfigRecord()
        result.arrays = as_record(self.arrays)
        while self.rounds_released < last:
            number = self.rounds_released + 1
            messages = self.configure_train(number, result.arrays, config, grid)
            arrays, _ = self.aggregate_train(number, self._replies(grid, list(messages)))
            assert arrays is not None
            result.arrays = arrays
            log(INFO, "[ROUND %s/%s] released", number, self.plan.rounds)
            metrics = None if evaluate_fn is None else evaluate_fn(number, arrays)
            if metrics is not None:
                result.evaluate_metrics_serverapp[number] = metrics
        return result

    def end(self) -> Report:
        """Ends the run: writes the model, deletes the checkpoints, writes the report, and returns it."""
        files.write_atomically(self.guard.folder / names.MODEL, safetensors.numpy.save(self.arrays))
        return self.guard.end()

    def _gather(self, grid: Grid, round_number: int) -> tuple[Mapping[str, int], list[str]]:
        """Returns the connected nodes and a cohort of them, as soon as there is a whole one or the time is over."""
        waiting = self.settings.waiting
        deadline = time.monotonic() + waiting.nodes_seconds
        while True:
            nodes = dict(self.identify(grid.get_nodes()))
            if self.admitted is not None:
                nodes = {name: node for name, node in nodes.items() if name in self.admitted}
            late = time.monotonic() >= deadline
            cohort = allowed = self.guard.allowed(sorted(nodes))
            wanted, whole = self.plan.clients_per_round, nodes.keys()
            if self.planned is None:
                cohort = uniform(allowed, wanted)
            else:
                wanted, whole = len(self.planned.cohort(round_number - 1)), set(self.planned.client_ids)
            if self.plan.secret_cohorts:
                # All that could be in a secret cohort: when a round begins shows nothing of its own.
                if late or nodes.keys() >= whole:
                    return nodes, cohort
            else:
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
        waiting = self.settings.waiting
        # In the order of the messages: float sums of replies that are all there then have the same bits in every run.
        missing = (
            dict.fromkeys(identifier for identifier in grid.push_messages(messages) if identifier) if messages else {}
        )
        deadline = time.monotonic() + waiting.replies_seconds
        while missing or self.plan.secret_cohorts:
            # One at a time: what is in a reply can make Flower fail to read it, and all that were pulled with it.
            for identifier in list(missing):
                try:
                    pulled = list(grid.pull_messages([identifier]))
                except _UNREADABLE as error:
                    if not self.plan.secret_cohorts:
                        log(WARNING, "A reply could not be read, and is left out: %s", type(error).__name__)
                    del missing[identifier]
                    continue
                if pulled:
                    del missing[identifier]
                yield from pulled
            if (not missing and not self.plan.secret_cohorts) or time.monotonic() >= deadline:
                return
            time.sleep(waiting.poll_seconds)


@contextlib.contextmanager
def open_strategy(
    folder: pathlib.Path | str,
    plan: tff_mf.Plan,
    *,
    initial_arrays: ArrayRecord,
    left_out: Collection[str] = (),
    settings: FlowerSettings = _DEFAULT,
    identify: Identify = by_public_key,
    nodes: Collection[str] | None = None,
    **more: Any,
) -> Iterator[MFStrategy]:
    """Yields the strategy of a run: a new one, or one that goes on after its last released round.

    Writes the files that the guarantee follows from, and the planned report, before the first round; `tff-mf report`
    reads the folder. One process at a time can use the folder.

    Args:
        folder: The run's folder on the machine of the ServerApp, which is made if it does not exist. It must survive
            restarts, and nobody but the operator may read its checkpoints.
        plan: Mechanism, noise, sampling and clip norm: `tff_mf.plan(...)`. Without a grid it gets the one that fits the
            model, and a σ that was calibrated is calibrated for it, unless the settings ask for floating point.
        initial_arrays: The model that training starts from; float32 arrays of any framework.
        left_out: Names of its arrays that no gradient trains, such as running statistics of batches. They are neither
            sent to nodes, which keep their own, nor expected in replies, noised or released. Arrays that are called as
            frameworks call statistics are refused unless they are named here; arrays whose names are numbers, as of
            Keras's `get_weights()`, cannot be recognized.
        settings: The server's optimizer, and how nodes are talked to.
        identify: Who a node is, the same function in every life of the run; `cohorts.by_partition` in simulations.
        nodes: Identities that may take part; all that connect if `None`. Cohorts of `MinSep`, `FixedEpoch` and
            `SingleParticipation` are drawn uniformly, in each round, from the connected nodes that the schema allows;
            those of other samplings before the first round, from these nodes: the same ones in every life of the run.
        more: Fields of `reports.RunRecord` that the plan does not determine, such as `population`.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the folder holds another run, one that has ended, or damaged files, another process uses it,
            the plan has restarts or adaptive clipping, the model has statistics that are not left out, its sampling
            needs `nodes` that are not given, its grid fits neither model nor cohort, or nodes reply in integers without
            one.

    Example:
        with open_strategy("run", plan, initial_arrays=arrays) as strategy:
            strategy.start(grid)
            strategy.end()
    """
    folder = pathlib.Path(folder)
    validation.instance("settings", settings, FlowerSettings, "pass FlowerSettings(...)")
    validation.instance("plan", plan, tff_mf.Plan, "make one with tff_mf.plan")
    for name in ("restart_every", "adaptive_count_stddev"):
        if getattr(plan, name) is not None:
            raise InputValueError(
                f"{name}={getattr(plan, name)!r} is not supported on Flower, where the noise does not restart, no "
                "count of clipped updates is released, and the clip norm is constant: leave it out, or train in "
                "TensorFlow Federated."
            )
    initial = model_arrays(initial_arrays, left_out)
    layout = Layout(shapes={name: value.shape for name, value in initial.items()})
    if plan.grid is None and not settings.floating_point:
        plan = plan.for_model(layout.dimension)
    # With the σ that the run began with: calibrated again, on another machine, its last bits can differ.
    plan = begun_plan(folder, plan)
    summed, drawn = _summands(plan, settings, layout), _drawn_before(plan, nodes)
    stream = _stream(plan, layout.dimension, settings)
    more.setdefault("versions", {**folders.versions(), "flwr": importlib.metadata.version("flwr")})
    # Under other identities, those who took part would be strangers.
    named: Any = identify if hasattr(identify, "__qualname__") else type(identify)
    given = {
        "server_momentum": settings.optimizer.momentum,
        "replies": settings.replies,
        "generator": settings.generator,
        "identities": f"{named.__module__}.{named.__qualname__}",
    }
    more.setdefault("about", {"engine": "flwr", **given})
    more.setdefault("server_learning_rate", settings.optimizer.learning_rate)
    if drawn is not None:
        plan = dataclasses.replace(plan, population=len(drawn))
    else:
        more["sampler"] = "uniform, of those allowed"
    with open_guard(folder, plan, **more) as guarded:
        about = {
            **given,
            "layout": [[name, list(shape)] for name, shape in layout.shapes.items()],
            "noise": stream.fingerprint.hex(),
        }
        saved = Checkpoints(folder / names.CHECKPOINTS, about)
        planned = None if drawn is None else guarded.draws_from(drawn)
        if number := guarded.resume(saved):
            state = _loaded(saved, number, stream)
        else:
            weights = layout.vector(initial)
            state = ServerState(round_number=0, weights=weights, velocity=np.zeros_like(weights), noise=stream.init())
        yield MFStrategy(
            guard=guarded,
            stream=stream,
            layout=layout,
            state=state,
            settings=settings,
            summands=summed,
            plan=plan,
            identify=identify,
            admitted=None if nodes is None else frozenset(nodes),
            planned=planned,
        )


def _drawn_before(plan: tff_mf.Plan, nodes: Collection[str] | None) -> list[str] | None:
    """Returns the nodes from which the plan's sampling draws all cohorts before the first round; else `None`."""
    if isinstance(plan.sampling, _IN_ROUNDS):
        return None
    if nodes is None:
        raise InputValueError(
            f"nodes=None, and sampling={plan.sampling!r} draws the cohorts of all rounds before the first: give the "
            "identities of all nodes."
        )
    return checked_clients(plan, nodes, name="nodes")


def _summands(plan: tff_mf.Plan, settings: FlowerSettings, layout: Layout) -> Summands:
    """Returns what replies become."""
    if plan.grid is None or plan.dimension is None:
        if settings.replies == INTEGERS:
            raise InputValueError(
                f"replies={settings.replies!r} needs a grid: leave out floating_point, or take 'model' or 'update'."
            )
    elif layout.dimension > plan.dimension:
        raise InputValueError(
            f"dimension={plan.dimension} of the plan must be at least {layout.dimension}, the number of the model's "
            "parameters: what the grid costs depends on it."
        )
    return Summands(checked_clip_norm(plan.clip_norm), settings.replies, plan.grid)


def _stream(plan: tff_mf.Plan, dimension: int, settings: FlowerSettings) -> streams.NoiseStream:
    """Returns the stream of a plan's noise, limited to its rounds.

    Formal guarantee: as for `streams.NoiseStream` with the plan's noise as run. A state of a run with another clip
    norm, σ, mechanism, grid or generator is refused.
    """
    sigma = plan.noise_multiplier_as_run
    stream = streams.build_stream(
        plan.mechanism,
        dimension=dimension,
        # On a grid, in units of the clip norm.
        stddev=sigma * (plan.clip_norm if plan.grid is None else 1.0),
        insecure_seed=plan.insecure_seed,
        grid=plan.grid,
        generator=settings.generator,
    )
    # A stream knows only the product of σ and the clip norm, or σ alone.
    return stream.bound_to(repr(float(plan.clip_norm))).limited_to(plan.rounds)


def _loaded(saved: Checkpoints, round_number: int, stream: streams.NoiseStream) -> ServerState:
    """Returns a state that was saved."""
    arrays, _ = saved.load(round_number)
    if arrays.keys() != {"weights", "velocity", "keys"} or len(arrays["keys"]) != round_number:
        raise InputValueError(
            f"checkpoint of round {round_number} has not the keys of its rounds: put the run's own checkpoint back."
        )
    return ServerState(
        round_number=round_number,
        weights=arrays["weights"],
        velocity=arrays["velocity"],
        noise=stream.replay(arrays["keys"]),
    )
