"""Every public function of `tff_mf`, and the classes of its arguments, with a strategy for each argument."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from mutations import VALUES

import tff_mf
from tff_mf.experiments import sampling
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs.folders import ExecutionSettings
from tff_mf.experiments.runs.settings import FIELDS, RunSettings
from tff_mf.experiments.sampling.settings import SamplingSettings

_NAMES = tuple(FIELDS)
_HUGE = (10**8, 10**9, 10**12, 2**63, 10**30)
_ROUNDS = st.integers(1, 24)
_SIGMA = st.floats(0.1, 20)
_DELTA = st.floats(1e-12, 0.1)
_RATE = st.floats(0.01, 2)
JUNK = st.sampled_from([*VALUES, np.float32(0.5), np.int64(3), np.nan, np.array([1.0]), object(), print, *_HUGE])


def _array(*shapes: tuple[int, ...]) -> st.SearchStrategy[Any]:
    return st.sampled_from(shapes).flatmap(
        lambda shape: st.lists(
            st.floats(-2, 2) | st.sampled_from([0.0, 1.0, 1e-300, 1e300]),
            min_size=int(np.prod(shape)),
            max_size=int(np.prod(shape)),
        ).map(lambda values: np.array(values).reshape(shape).tolist())
    )


_SCHEMA = (
    st.builds(tff_mf.MinSep, min_sep=st.integers(1, 6), max_participations=st.integers(1, 4))
    | st.builds(tff_mf.FixedEpoch, min_sep=st.integers(1, 6), max_participations=st.integers(1, 4))
    | st.just(tff_mf.SingleParticipation())
)
_ALL = (
    tff_mf.Identity(),
    tff_mf.BLT.production("b400"),
    tff_mf.BLT(theta=[0.9, 0.5], omega=[0.2, 0.1]),
    tff_mf.BandedToeplitz.square_root(4),
    tff_mf.BandedToeplitz(column=[1.0, -0.5, 0.7]),
    tff_mf.Banded(values=np.random.default_rng(0).uniform(0.5, 1, size=(3, 24))),
    tff_mf.Dense(matrix=np.tril(np.random.default_rng(1).normal(size=(24, 24))) + 9 * np.eye(24)),
    tff_mf.Tree(24, variant="full"),
    tff_mf.Tree(24, variant="online"),
    tff_mf.Tree(24, variant="vanilla"),
)
_MECHANISM = st.sampled_from(_ALL)
_TOEPLITZ = st.sampled_from([tff_mf.PrefixSum(), tff_mf.Momentum(momentum=0.9)])
_WORKLOAD = (
    st.none()
    | _TOEPLITZ
    | st.just(tff_mf.LearningRates(rates=[0.5] * 24))
    | st.just(tff_mf.MomentumWithRates(rates=[0.5] * 24, momentum=0.5))
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Called:
    """A function or class.

    Attributes:
        name: Its name.
        call: It.
        arguments: A strategy for right values of each argument; wrong ones are put in their places.
        slow: Whether a call takes more than some milliseconds: it gets fewer inputs.
    """

    name: str
    call: Callable[..., Any]
    arguments: Mapping[str, st.SearchStrategy[Any]]
    slow: bool = False


# Right values by the names of arguments, which mean the same everywhere.
ARGUMENTS: Mapping[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("rounds", "min_sep", "max_participations", "bands", "bins", "groups", "population"), _ROUNDS),
    **dict.fromkeys(("dimension", "max_clients", "participations", "epochs", "restart_every", "restarts"), _ROUNDS),
    **dict.fromkeys(("checkpoint_every", "seed"), _ROUNDS),
    **dict.fromkeys(("noise_multiplier", "epsilon", "count_stddev", "clients_per_round"), _SIGMA),
    **dict.fromkeys(("delta", "probability"), _DELTA),
    **dict.fromkeys(("mu", "clip_norm"), _RATE),
    **dict.fromkeys(("theta", "omega", "scales"), _array((1,), (2,), (3,))),
    **dict.fromkeys(("turn", "phase"), _array((1,), (2,))),
    **dict.fromkeys(("column", "inverse_column"), _array((1,), (3,))),
    **dict.fromkeys(("left", "right"), _array((2, 1), (3, 2))),
    "diagonals": _array((1, 2), (2, 3)),
    "values": _array((1, 1), (1, 3), (2, 3), (3, 2)),
    "matrix": _array((1, 1), (2, 2), (2, 3), (4,)),
    "rates": _array((2,), (5,)),
    "momentum": st.floats(0, 0.99),
    "buffers": st.integers(1, 3),
    "bits": st.integers(8, 26),
    "tail": st.just(0.0) | _DELTA,
    "duality_gap": st.none() | _RATE,
    "converged": st.none() | st.booleans(),
    "mechanism": _MECHANISM,
    "participation": _SCHEMA,
    "sampling": _SCHEMA,
    "workload": _WORKLOAD,
    "patterns": st.just([(0, 3), (1,)]),
    "name": st.sampled_from(["b100", "b400", "b1000", "b2"]),
    "variant": st.sampled_from(["full", "online", "vanilla", "none"]),
    "objective": st.sampled_from(["max", "rms", "mean"]),
    "adjacency": st.sampled_from(["zero-out", "replace-one", "other"]),
    "client_ids": st.sampled_from([list("abcdefgh"), list("abc")]),
    "table": st.dictionaries(st.sampled_from(_NAMES), JUNK, max_size=3),
}


def _called(call: Callable[..., Any], *optional: str, slow: bool = False, **own: st.SearchStrategy[Any]) -> Called:
    """Returns a function with the arguments that it requires, and those that are named here."""
    parameters = inspect.signature(call).parameters.items()
    required = [name for name, each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    arguments = {name: own.get(name, ARGUMENTS[name]) for name in dict.fromkeys((*required, *optional, *own))}
    return Called(name=call.__qualname__, call=call, arguments=arguments, slow=slow)


def _by_type(kind: type) -> Called:
    """Returns a dataclass of settings, its arguments by the types of its fields and its defaults."""
    known: dict[str, st.SearchStrategy[Any]] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            default = 3 if name != "delta" else 1e-6
        some: list[Any] = [default, 1, 2, 0.5] if isinstance(default, int | float) else [default, "x", 4, 0.5]
        known[name] = st.sampled_from(some)
    return Called(name=kind.__qualname__, call=kind, arguments=known)


def _read_run(table: dict[str, Any]) -> Any:
    return typed.convert(table, typed.partial(RunSettings), "file")


_SAMPLINGS = st.sampled_from([tff_mf.Poisson(population=100, clients_per_round=5), tff_mf.BallsInBins(groups=2)])
_PLANNED = ("mechanism", "sampling", "noise_multiplier", "clip_norm")
_SLOW = {
    tff_mf.plan: _PLANNED,
    tff_mf.optimize_blt: ("buffers", "objective"),
    tff_mf.optimize_scaled_blt: ("buffers", "objective"),
    **dict.fromkeys((tff_mf.optimize_banded, tff_mf.optimize_banded_toeplitz), ()),
}
_METHODS = (
    *(each for mechanism in _ALL for each in (mechanism.encoder, mechanism.inverse)),
    *(mechanism.coefficients for mechanism in _ALL if hasattr(mechanism, "coefficients")),
    *(workload.matrix for workload in (tff_mf.PrefixSum(), tff_mf.Momentum(momentum=0.9))),
    *(tff_mf.LearningRates(rates=[0.5] * 24).matrix, tff_mf.Momentum(momentum=0.9).coefficients),
    *(tff_mf.Grid.auto, tff_mf.BLT.production, tff_mf.Guarantee(mu=1.0).epsilon),
    tff_mf.BandedToeplitz.square_root,
)
_FUNCTIONS = (
    *(tff_mf.MinSep, tff_mf.FixedEpoch, tff_mf.BLT, tff_mf.Banded, tff_mf.BandedToeplitz),
    *(tff_mf.Dense, tff_mf.BandedPlusLowRank, tff_mf.Momentum, tff_mf.LearningRates, tff_mf.MomentumWithRates),
    *(tff_mf.Grid, tff_mf.Poisson, tff_mf.CyclicPoisson, tff_mf.BMinSep),
    *(tff_mf.sensitivity, tff_mf.explain_sensitivity, tff_mf.pattern_sensitivity, tff_mf.restart_sensitivity),
    *(tff_mf.zcdp_rho, tff_mf.epsilon, tff_mf.calibrate_noise_multiplier, tff_mf.adaptive_clipping_guarantee),
    _read_run,
)
CALLS = (
    *(_called(each) for each in (*_FUNCTIONS, *_METHODS)),
    *(_called(each, *optional, slow=True) for each, optional in _SLOW.items()),
    *(_called(each, "workload") for each in (tff_mf.rms_error, tff_mf.max_error, tff_mf.rms_loss, tff_mf.max_loss)),
    _called(tff_mf.ScaledBLT, "turn", "phase"),
    _called(tff_mf.Tree, "variant"),
    _called(tff_mf.OptimizedFor, "duality_gap", "converged", workload=_TOEPLITZ),
    _called(tff_mf.Guarantee, "tail"),
    _called(tff_mf.least_loss, "objective"),
    _called(tff_mf.guarantee, "restart_every", "adjacency"),
    _called(tff_mf.BallsInBins, "clients_per_round"),
    _called(tff_mf.optimize_dense, rounds=st.integers(1, 8), slow=True),
    _called(tff_mf.epsilon, sampling=_SAMPLINGS, slow=True),
    _called(ExecutionSettings, "checkpoint_every", "restarts"),
    _called(sampling.plan_cohorts, "seed", rounds=st.integers(1, 6), clients_per_round=st.integers(1, 3)),
    _by_type(SamplingSettings),
    _by_type(RunSettings),
)


def named(message: str, arguments: Mapping[str, Any]) -> bool:
    """Returns whether an error names an argument: its name, or that of a part of it."""
    names = {*arguments, *(field for name in arguments for field in _FIELDS.get(name, ()))}
    return any(name in message for name in names)


_FIELDS = {
    "participation": ("min_sep", "max_participations"),
    "sampling": ("min_sep", "max_participations", "FixedEpoch"),
    "mechanism": ("mechanism", "variant"),
    "patterns": ("pattern", "round"),
    "table": _NAMES,
}
