"""Opens the strategy of a run on Flower: a new run, or one that was stopped, at whatever moment."""

import contextlib
import dataclasses
import importlib.metadata
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.noise import numpy as streams

from .. import guard
from ..runs import folders
from ..runs.checkpoints import Checkpoints
from ..runs.names import CHECKPOINTS
from . import cohorts
from .settings import TORCH, FlowerSettings, checked_clip_norm
from .strategy import MFStrategy, ServerState
from .updates import INTEGERS, MODEL, UPDATE, Layout, Summands, model_arrays

_DEFAULT = FlowerSettings()
# Of these, each cohort can be drawn when its round begins, from the nodes that are connected.
_IN_ROUNDS = (tff_mf.MinSep, tff_mf.FixedEpoch, tff_mf.SingleParticipation)


@contextlib.contextmanager
def open_strategy(
    folder: pathlib.Path | str,
    plan: tff_mf.Plan,
    *,
    initial_arrays: ArrayRecord,
    left_out: Collection[str] = (),
    settings: FlowerSettings = _DEFAULT,
    draw: cohorts.Draw | None = None,
    sampler: str | None = None,
    identify: cohorts.Identify = cohorts.by_public_key,
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
        draw: From a round and the allowed identities to a cohort. If not given, the plan's sampling draws all cohorts
            before the first round, from `nodes`; those of `MinSep`, `FixedEpoch` and `SingleParticipation` are drawn
            uniformly, in each round, from the connected nodes that the schema allows.
        sampler: Name of `draw` for the report.
        identify: Who a node is, the same function in every life of the run; `cohorts.by_partition` in simulations.
        nodes: Identities that may take part; all that connect if `None`. Cohorts that are drawn before the first round
            need them, and the same ones in every life of the run.
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
    _check_supported(plan)
    initial = model_arrays(initial_arrays, left_out)
    layout = Layout(shapes={name: value.shape for name, value in initial.items()})
    if plan.grid is None and not settings.floating_point:
        plan = plan.for_model(layout.dimension)
    # With the σ that the run began with: calibrated again, on another machine, its last bits can differ.
    plan = guard.begun_plan(folder, plan)
    summed, drawn = _summands(plan, settings, layout), _drawn_before(plan, draw, nodes)
    stream = _stream(plan, layout.dimension, settings)
    more.setdefault("versions", {**folders.versions(), "flwr": importlib.metadata.version("flwr")})
    # Under other identities, those who took part would be strangers.
    named: Any = identify if hasattr(identify, "__qualname__") else type(identify)
    given = {**settings.as_json(), "identities": f"{named.__module__}.{named.__qualname__}"}
    more.setdefault("about", {"engine": "flwr", **given})
    more.setdefault("server_learning_rate", settings.optimizer.learning_rate)
    if drawn is not None:
        plan = dataclasses.replace(plan, population=len(drawn))
    else:
        more["sampler"] = sampler or ("uniform, of those allowed" if draw is None else "by hand")
    with guard.open_guard(folder, plan, **more) as guarded:
        about = {**given, "layout": layout.as_json(), "noise": stream.fingerprint.hex()}
        saved = Checkpoints(folder / CHECKPOINTS, about)
        if drawn is not None:
            draw = cohorts.Planned(plan=guarded.draws_from(drawn), secret=plan.secret_cohorts)
        if number := guarded.resume(saved, every_round=True):
            state = _loaded(saved, number, stream)
        else:
            weights = layout.vector(initial)
            state = ServerState(round_number=0, weights=weights, velocity=np.zeros_like(weights), noise=stream.init())
        yield MFStrategy(
            guarded=guarded,
            stream=stream,
            layout=layout,
            state=state,
            settings=settings,
            summands=summed,
            plan=plan,
            identify=identify,
            admitted=None if nodes is None else frozenset(nodes),
            draw=cohorts.uniform(plan.clients_per_round) if draw is None else draw,
        )


def _drawn_before(plan: tff_mf.Plan, draw: cohorts.Draw | None, nodes: Collection[str] | None) -> list[str] | None:
    """Returns the nodes from which the plan's sampling draws all cohorts before the first round; else `None`."""
    if draw is not None and plan.secret_cohorts:
        raise InputValueError(
            f"draw={draw!r} does not go with secret_cohorts, whose ε is of cohorts by the plan's sampling: leave it "
            "out."
        )
    if draw is not None or isinstance(plan.sampling, _IN_ROUNDS):
        return None
    if nodes is None:
        raise InputValueError(
            f"nodes=None, and sampling={plan.sampling!r} draws the cohorts of all rounds before the first: give the "
            "identities of all nodes."
        )
    if isinstance(plan.sampling, tff_mf.Timer) and plan.sampling.hours is not None:
        raise InputValueError(
            f"hours={plan.sampling.hours!r} are of a simulated clock, which nodes do not have: give min_sep."
        )
    return guard.checked_clients(plan, nodes, name="nodes")


def _check_supported(plan: tff_mf.Plan) -> None:
    if plan.restart_every is not None:
        raise InputValueError(
            f"restart_every={plan.restart_every} is not supported on Flower: leave it out, or train in TensorFlow "
            "Federated."
        )
    if plan.adaptive_count_stddev is not None:
        raise InputValueError(
            f"adaptive_count_stddev={plan.adaptive_count_stddev!r} is not supported on Flower, where no count of "
            "clipped updates is released and the clip norm is constant: leave it out, or train in TensorFlow Federated."
        )


def _summands(plan: tff_mf.Plan, settings: FlowerSettings, layout: Layout) -> Summands:
    """Returns what replies become."""
    if plan.grid is None or plan.dimension is None:
        if settings.replies == INTEGERS:
            raise InputValueError(
                f"replies={settings.replies!r} needs a grid: leave out floating_point, or take {MODEL!r} or {UPDATE!r}."
            )
    elif layout.dimension > plan.dimension:
        raise InputValueError(
            f"dimension={plan.dimension} of the plan must be at least {layout.dimension}, the number of the model's "
            "parameters: what the grid costs depends on it."
        )
    return Summands(checked_clip_norm(plan.clip_norm), settings.replies, plan.grid)


def _stream(plan: tff_mf.Plan, dimension: int, settings: FlowerSettings) -> streams.NoiseStream:
    """Returns the stream of a plan's noise, limited to its rounds; PyTorch's has the methods of NumPy's.

    Formal guarantee: as for `streams.NoiseStream` with the plan's noise as run. A state of a run with another clip
    norm, σ, mechanism, grid, generator or engine is refused.
    """
    build_stream: Any = streams.build_stream
    if settings.engine == TORCH:
        from tff_mf.noise import torch

        build_stream = torch.build_stream
    sigma = plan.noise_multiplier_as_run
    stream = build_stream(
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
