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
    tff_mf.BandedInverse.square_root(3),
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
_SETTING = {"mechanism": _MECHANISM, "rounds": _ROUNDS, "participation": _SCHEMA}
_RUN = {"mechanism": _MECHANISM, "rounds": _ROUNDS, "sampling": _SCHEMA}
_LOSS = {"mechanism": _MECHANISM, "rounds": _ROUNDS, "workload": _WORKLOAD}


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


def _called(call: Callable[..., Any], *, slow: bool = False, **arguments: st.SearchStrategy[Any]) -> Called:
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


CALLS = (
    _called(tff_mf.MinSep, min_sep=_ROUNDS, max_participations=_ROUNDS),
    _called(tff_mf.FixedEpoch, min_sep=_ROUNDS, max_participations=_ROUNDS),
    _called(tff_mf.BLT, theta=_array((1,), (2,), (3,)), omega=_array((1,), (2,), (3,))),
    _called(tff_mf.ScaledInverse, inverse_column=_array((1,), (2,)), scales=_array((1,), (2,), (3,))),
    _called(
        tff_mf.ScaledBLT,
        theta=_array((1,), (2,)),
        omega=_array((1,), (2,)),
        scales=_array((1,), (2,), (3,)),
        turn=_array((1,), (2,)),
        phase=_array((1,), (2,)),
    ),
    _called(tff_mf.BLT.production, name=st.sampled_from(["b100", "b400", "b1000", "b2"])),
    _called(tff_mf.Banded, values=_array((1, 1), (1, 3), (2, 3), (3, 2))),
    _called(tff_mf.BandedToeplitz, column=_array((1,), (3,))),
    _called(tff_mf.BandedToeplitz.square_root, bands=_ROUNDS),
    _called(tff_mf.BandedInverse, inverse_column=_array((1,), (3,))),
    _called(tff_mf.BandedInverse.square_root, bands=_ROUNDS),
    _called(tff_mf.Dense, matrix=_array((1, 1), (2, 2), (2, 3), (4,))),
    _called(
        tff_mf.BandedPlusLowRank,
        diagonals=_array((1, 2), (2, 3)),
        left=_array((2, 1), (3, 2)),
        right=_array((2, 1), (3, 2)),
    ),
    _called(tff_mf.Tree, rounds=_ROUNDS, variant=st.sampled_from(["full", "online", "vanilla", "none"])),
    _called(tff_mf.Momentum, momentum=st.floats(0, 0.99)),
    _called(tff_mf.LearningRates, rates=_array((2,), (5,))),
    _called(tff_mf.MomentumWithRates, rates=_array((2,), (5,)), momentum=st.floats(0, 0.99)),
    _called(
        tff_mf.OptimizedFor,
        rounds=_ROUNDS,
        participation=_SCHEMA,
        workload=_TOEPLITZ,
        duality_gap=st.none() | _RATE,
        converged=st.none() | st.booleans(),
    ),
    _called(tff_mf.Guarantee, mu=_RATE, tail=st.just(0.0) | _DELTA),
    _called(tff_mf.Grid, bits=st.integers(8, 26), max_clients=_ROUNDS),
    _called(tff_mf.Grid.auto, dimension=_ROUNDS, max_clients=_ROUNDS),
    _called(
        tff_mf.plan, **_RUN, delta=_DELTA, clients_per_round=_ROUNDS, noise_multiplier=_RATE, clip_norm=_RATE, slow=True
    ),
    _called(tff_mf.sensitivity, **_SETTING),
    _called(tff_mf.explain_sensitivity, **_SETTING),
    _called(tff_mf.pattern_sensitivity, mechanism=_MECHANISM, rounds=_ROUNDS, patterns=st.just([(0, 3), (1,)])),
    _called(tff_mf.restart_sensitivity, **_SETTING, restart_every=_ROUNDS),
    _called(tff_mf.rms_error, **_LOSS),
    _called(tff_mf.max_error, **_LOSS),
    _called(tff_mf.rms_loss, **_SETTING, workload=_WORKLOAD),
    _called(tff_mf.max_loss, **_SETTING, workload=_WORKLOAD),
    _called(
        tff_mf.least_loss, rounds=_ROUNDS, participation=_SCHEMA, objective=st.sampled_from(["max", "rms", "mean"])
    ),
    _called(tff_mf.zcdp_rho, **_RUN, noise_multiplier=_SIGMA),
    _called(tff_mf.epsilon, **_RUN, noise_multiplier=_SIGMA, delta=_DELTA),
    _called(tff_mf.calibrate_noise_multiplier, **_RUN, epsilon=_SIGMA, delta=_DELTA),
    _called(
        tff_mf.guarantee,
        **_RUN,
        noise_multiplier=_SIGMA,
        restart_every=st.none() | _ROUNDS,
        adjacency=st.sampled_from(["zero-out", "replace-one", "other"]),
    ),
    _called(tff_mf.adaptive_clipping_guarantee, rounds=_ROUNDS, sampling=_SCHEMA, count_stddev=_SIGMA),
    *(
        _called(method, rounds=_ROUNDS)
        for mechanism in _ALL
        for method in (mechanism.encoder, mechanism.inverse, getattr(mechanism, "coefficients", mechanism.encoder))
    ),
    *(
        _called(method, rounds=_ROUNDS)
        for workload in (tff_mf.PrefixSum(), tff_mf.Momentum(momentum=0.9), tff_mf.LearningRates(rates=[0.5] * 24))
        for method in (workload.matrix, getattr(workload, "coefficients", workload.matrix))
    ),
    _called(tff_mf.Guarantee(mu=1.0).epsilon, delta=_DELTA),
    _called(ExecutionSettings, checkpoint_every=_ROUNDS, restarts=_ROUNDS),
    _by_type(SamplingSettings),
    _called(
        sampling.plan_cohorts,
        client_ids=st.sampled_from([list("abcdefgh"), list("abc")]),
        clients_per_round=st.integers(1, 3),
        rounds=st.integers(1, 6),
        sampling=_SCHEMA,
        seed=_ROUNDS,
    ),
    _by_type(RunSettings),
    _called(_read_run, table=st.dictionaries(st.sampled_from(_NAMES), JUNK, max_size=3)),
    _called(tff_mf.Poisson, population=_ROUNDS, clients_per_round=_SIGMA),
    _called(tff_mf.CyclicPoisson, groups=_ROUNDS, population=_ROUNDS, clients_per_round=_SIGMA),
    _called(tff_mf.BallsInBins, groups=_ROUNDS, clients_per_round=_SIGMA),
    _called(tff_mf.BMinSep, min_sep=_ROUNDS, probability=_DELTA),
    _called(tff_mf.RandomAllocation, participations=_ROUNDS),
    _called(tff_mf.ShuffledEpochs, epochs=_ROUNDS),
    _called(
        tff_mf.epsilon,
        mechanism=_MECHANISM,
        rounds=_ROUNDS,
        sampling=st.sampled_from([tff_mf.Poisson(population=100, clients_per_round=5), tff_mf.ShuffledEpochs()]),
        noise_multiplier=_SIGMA,
        delta=_DELTA,
        slow=True,
    ),
    *(
        _called(
            search,
            rounds=_ROUNDS,
            participation=_SCHEMA,
            buffers=st.integers(1, 3),
            objective=st.sampled_from(["max", "rms", "mean"]),
            slow=True,
        )
        for search in (tff_mf.optimize_blt, tff_mf.optimize_scaled_blt)
    ),
    _called(tff_mf.optimize_banded, rounds=_ROUNDS, bands=_ROUNDS, slow=True),
    _called(tff_mf.optimize_banded_toeplitz, rounds=_ROUNDS, bands=_ROUNDS, participation=_SCHEMA, slow=True),
    *(
        _called(search, rounds=_ROUNDS, bins=_ROUNDS, epsilon=_SIGMA, delta=_DELTA, slow=True)
        for search in (tff_mf.optimize_amplified_banded_toeplitz, tff_mf.optimize_amplified_blt)
    ),
    *(
        _called(search, rounds=_ROUNDS, bands=_ROUNDS, participation=_SCHEMA, slow=True)
        for search in (tff_mf.optimize_banded_inverse, tff_mf.optimize_scaled_inverse)
    ),
    _called(tff_mf.optimize_dense, rounds=st.integers(1, 8), participation=_SCHEMA, slow=True),
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
