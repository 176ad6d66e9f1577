"""Wrong arguments of every function that needs no framework: the error names the argument and its value.

A row has a function, valid arguments, one of them, and what it must not be: of a wrong type, and of a wrong value.
"""

import functools

import numpy as np
import pytest

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.numerics import normals

NAN, INF = float("nan"), float("inf")
ONCE = tff_mf.SingleParticipation()
SIX = tff_mf.MinSep(min_sep=342, max_participations=6)
RATES = tff_mf.LinearSchedule(warmup_rounds=3, cooldown_rounds=4)
NO_COUNT = ([1.0, 1.5, NAN, "3", None, True, [3]], [0, -1])
# Entries that no float32 holds, or that are no number.
NO_ENTRY = [1e39, NAN, INF]
NO_COLUMN = (
    ["1", 1.0, None, {1.0}, ["a"], [[1.0]]],
    [[], [0.0], [-1.0], [1e-40], [1, -1e39], *([each] for each in NO_ENTRY)],
)
DIAGONALS = [[["a"]]], [[1.0], [[1.0, 0.0]], [[1.0, 1.0]] * 3, [[1.0, NAN]]]
LOW_RANK = {"diagonals": [[1.0, 1.0]], "left": [[1.0], [1.0]], "right": [[1.0], [1.0]]}
LARGE = tff_mf.MinSep(min_sep=1, max_participations=10**7)
ONE_RATE = tff_mf.LearningRates(rates=[1.0])
MANY = tff_mf.LearningRates(rates=[0.0, 1.0])
SEARCH = {"rounds": 2052, "participation": SIX}
OF_ROUNDS = ([2052.0], [0, 1710])

FITTED = {
    "mechanism": tff_mf.Dense(matrix=np.eye(8), optimized_for=tff_mf.OptimizedFor(rounds=8, participation=ONCE)),
    "diagonals": 1,
    "rank": 1,
}
B400 = tff_mf.BLT.production("b400")
RUN = {"mechanism": B400, "rounds": 4000, "sampling": tff_mf.MinSep(min_sep=447, max_participations=5)}
NO_NOISE = (["1", None, True, [1.0]], [-1, -1e-300, NAN, INF])
NO_DELTA = (["1e-6", None, True], [0, 1, -1e-6, 1.5, NAN, INF])
NO_EPSILON = (["1", None, True], [0, -1, NAN, INF])
GRID = tff_mf.Grid(bits=16, max_clients=100)
SIZE = "clients_per_round"
NO_SIZE = ([], [-3, 0])
CELL = {"cell": 1e-6}
PLANNED = {
    "mechanism": tff_mf.Identity(),
    "rounds": 30,
    "delta": 1e-6,
    "clients_per_round": 10,
    "sampling": tff_mf.MinSep(min_sep=10, max_participations=3),
    "noise_multiplier": 1.0,
}
PLANNED_POISSON = {**PLANNED, "sampling": tff_mf.Poisson(population=1000, clients_per_round=10)}
SECRET = tff_mf.plan(**PLANNED_POISSON, secret_cohorts=True)
# Of each sampling: a run that is covered.
SAMPLED = {
    "poisson": (tff_mf.Identity(), 24, tff_mf.Poisson(population=100, clients_per_round=5)),
    "balls in bins": (tff_mf.Identity(), 24, tff_mf.BallsInBins(groups=6)),
    "b-min-sep": (tff_mf.Identity(), 12, tff_mf.BMinSep(min_sep=2, probability=0.1)),
}

ROWS = [
    *(
        (schema, {"min_sep": 1, "max_participations": 1}, field, *NO_COUNT)
        for schema in (tff_mf.MinSep, tff_mf.FixedEpoch)
        for field in ("min_sep", "max_participations")
    ),
    (ONCE.check, {}, "rounds", [2.0, "9", None, True], [0, -5]),
    (tff_mf.OptimizedFor, {"rounds": 5, "participation": ONCE}, "participation", ["min_sep"], []),
    (tff_mf.OptimizedFor, {"rounds": 5, "participation": ONCE}, "workload", ["momentum"], []),
    (tff_mf.OptimizedFor, {"rounds": 5, "participation": ONCE}, "converged", [1, 0.0, "yes", np.True_], []),
    (tff_mf.OptimizedFor, {"rounds": 5, "participation": ONCE}, "duality_gap", ["no"], [-1.0]),
    (tff_mf.Identity, {}, "optimized_for", [5, "b400"], []),
    (tff_mf.BLT, {"theta": [0.5], "omega": [0.1]}, "optimized_for", ["b400"], []),
    (tff_mf.BLT, {"omega": [0.1]}, "theta", [["a"], [None], [True], [0.5j], [[0.5]], {0.5}, 0.5, "0.5", None], []),
    (tff_mf.BLT, {"omega": [0.1]}, "theta", [], [[], [0.0], [-0.5], [1.0000001], [1e-60], [NAN], [INF]]),
    (tff_mf.BLT, {"theta": [0.5]}, "omega", [], [[], [-0.1], [NAN], [INF], [1e39], [10**400], [0.1, 0.2]]),
    (tff_mf.BLT.production, {}, "name", [None, 400], ["b200", ""]),
    (tff_mf.Banded, {}, "values", [None, [["a"]], [[1j]], [[True]], [[None]]], []),
    (tff_mf.Banded, {}, "values", [], [[], [1.0], [[]], [[[1.0]]], [[1.0], [1.0]], [[0.0, 1.0]], [[-1.0]], [[1e-40]]]),
    (tff_mf.Banded, {}, "values", [], [[[1, 1], [NAN, 0]], [[1, 1], [-1e39, 0]], *([[each]] for each in NO_ENTRY)]),
    (tff_mf.BandedToeplitz, {}, "column", *NO_COLUMN),
    (tff_mf.BandedToeplitz.square_root, {}, "bands", [1.0, None], [0, -1]),
    (tff_mf.Dense, {}, "matrix", [[["a"]], [[1j]], [[True]]], [[1.0], [[1.0, 0.0]], np.zeros((0, 0)), np.ones((2, 2))]),
    (
        tff_mf.Dense,
        {},
        "matrix",
        [],
        [[[1.0, 5e-324], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]], [[-1.0]], [[NAN]], [[INF]]],
    ),
    (tff_mf.BandedPlusLowRank, LOW_RANK, "diagonals", *DIAGONALS),
    (tff_mf.BandedPlusLowRank, LOW_RANK, "left", [], [[[1.0]], [[INF], [0.0]]]),
    (tff_mf.BandedPlusLowRank, LOW_RANK, "right", [], [[[1.0, 1.0], [1.0, 1.0]]]),
    (tff_mf.Tree, {}, "rounds", [2.0], [0, 10**12]),
    (tff_mf.Tree, {"rounds": 4}, "variant", [None], ["best"]),
    (tff_mf.Momentum, {}, "momentum", ["0.9"], [1.0, -0.1, NAN]),
    (tff_mf.MomentumWithRates, {"rates": [1.0]}, "momentum", [], [2]),
    (tff_mf.LearningRates, {}, "rates", ["fast", 0.5, [1.0, None]], [[], [1.0, -1.0], np.ones((2, 2))]),
    (tff_mf.LinearSchedule, {}, "warmup_rounds", [1.5], [-1]),
    (tff_mf.LinearSchedule, {}, "cooldown_rounds", [1.5], [-1]),
    (tff_mf.LinearSchedule, {}, "warmup_from", [], [-0.1]),
    (tff_mf.LinearSchedule, {}, "cooldown_to", [], [INF]),
    (RATES.rates, {}, "rounds", [], [6]),
    (tff_mf.LearningRates(rates=RATES).matrix, {}, "rounds", [], [6]),
    (ONE_RATE.matrix, {}, "rounds", [], [2]),
    (tff_mf.PrefixSum().matrix, {}, "rounds", [], [0, 10**5]),
    (tff_mf.Momentum(momentum=0.5).coefficients, {}, "rounds", [2.5], []),
    *((error, {"rounds": 3}, "mechanism", [None], []) for error in (tff_mf.rms_error, tff_mf.max_error)),
    *(
        (error, {"mechanism": tff_mf.Identity()}, "rounds", [1.5], [0])
        for error in (tff_mf.rms_error, tff_mf.max_error)
    ),
    (tff_mf.max_error, {"mechanism": tff_mf.Identity(), "workload": ONE_RATE}, "rounds", [], [3]),
    (tff_mf.rms_error, {"mechanism": tff_mf.Identity(), "rounds": 3}, "workload", ["momentum"], []),
    *(
        (search, {**SEARCH, **more}, field, *wrong)
        for search, more in (
            (tff_mf.optimize_blt, {"buffers": 2, "objective": "max"}),
            (tff_mf.optimize_banded, {"bands": 342}),
            (tff_mf.optimize_banded_toeplitz, {"bands": 342}),
            (tff_mf.optimize_dense, {}),
        )
        for field, wrong in (("rounds", OF_ROUNDS), ("participation", ([6], [])))
    ),
    *(
        (search, {**SEARCH, **more}, "objective", [None], ["mean"])
        for search, more in (
            (tff_mf.optimize_blt, {"buffers": 2}),
            (tff_mf.optimize_banded_toeplitz, {"bands": 342}),
        )
    ),
    (tff_mf.optimize_blt, {**SEARCH, "objective": "max"}, "buffers", [2.0], [0]),
    (tff_mf.optimize_blt, SEARCH, "rounds", [], [10**13]),
    (tff_mf.optimize_blt, {"rounds": 10**7}, "participation", [], [LARGE]),
    (tff_mf.optimize_banded, SEARCH, "bands", [2.0], [0, 343]),
    (tff_mf.optimize_banded, {**SEARCH, "bands": 342}, "unit_norms", [1], []),
    (tff_mf.optimize_banded, {**SEARCH, "bands": 342}, "workload", [1], []),
    (tff_mf.optimize_banded, {**SEARCH, "bands": 342}, "rounds", [], [10**6]),
    *(
        (tff_mf.optimize_banded_toeplitz, {**SEARCH, "bands": 342}, field, *wrong)
        for field, wrong in (("workload", ([1, MANY], [])), ("rounds", ([], [10**8])), ("bands", ([2.0], [0, 2053])))
    ),
    (tff_mf.optimize_dense, {"rounds": 2, "participation": ONCE}, "workload", ["sum"], [MANY]),
    (tff_mf.optimize_dense, {"participation": ONCE}, "rounds", [], [10**6]),
    (tff_mf.optimize_scaled_blt, {"participation": ONCE}, "rounds", [], [2**14 + 1]),
    (tff_mf.least_loss, {"rounds": 12, "participation": ONCE}, "objective", [], ["mean"]),
    (
        tff_mf.ScaledBLT,
        {"theta": [0.5], "omega": [0.5]},
        "scales",
        [],
        [[1.0, 0.0], [1.0, -1.0], [], *([each] for each in NO_ENTRY)],
    ),
    (tff_mf.optimize_banded_plus_low_rank, FITTED, "mechanism", ["dense"], [tff_mf.Identity()]),
    (tff_mf.optimize_banded_plus_low_rank, FITTED, "diagonals", [], [0]),
    (tff_mf.optimize_banded_plus_low_rank, FITTED, "rank", [], [0, 8]),
    (tff_mf.save, {"path": "mechanism"}, "mechanism", [None, "b400", tff_mf.BLT, {"theta": [0.5]}], []),
    (tff_mf.save, {"mechanism": B400}, "path", [None, 3, b"bytes", ["a"], 1.5], []),
    (tff_mf.load, {}, "path", [None, 3, b"bytes", ["a"], 1.5], []),
    (tff_mf.sensitivity, {"mechanism": tff_mf.Identity(), "participation": SIX}, "rounds", [4.0], [0, 10**12]),
    (tff_mf.sensitivity, {"mechanism": tff_mf.Dense(matrix=np.eye(3)), "participation": ONCE}, "rounds", [], [4]),
    (tff_mf.sensitivity, {"rounds": 4, "participation": ONCE}, "mechanism", ["blt", None, tff_mf.BLT], []),
    (tff_mf.sensitivity, {"mechanism": B400, "rounds": 4}, "participation", [(2, 2), tff_mf.FixedEpoch], []),
    *(
        (function, {**RUN, **more}, *wrong)
        for function, more in (
            (tff_mf.zcdp_rho, {"noise_multiplier": 1.0}),
            (tff_mf.guarantee, {"noise_multiplier": 1.0}),
            (tff_mf.epsilon, {"noise_multiplier": 1.0, "delta": 1e-6}),
            (tff_mf.calibrate_noise_multiplier, {"epsilon": 1.0, "delta": 1e-6}),
        )
        for wrong in (
            ("mechanism", ["b400"], []),
            ("rounds", ["2350"], [1000]),
            ("sampling", [5], []),
            *([("noise_multiplier", *NO_NOISE)] if "noise_multiplier" in more else []),
            *([("delta", *NO_DELTA)] if "delta" in more else []),
            *([("epsilon", *NO_EPSILON)] if "epsilon" in more else []),
        )
    ),
    *(
        (functools.partial(tff_mf.epsilon, *run[:1], sampling=run[2]), {"rounds": run[1], **level}, *wrong)
        for run in SAMPLED.values()
        for level in ({"noise_multiplier": 4.0, "delta": 1e-5},)
        for wrong in (
            ("noise_multiplier", [], [-1.0]),
            ("delta", [], [0.0, 1.0]),
            ("samples", [], [10]),
            ("rounds", [], [0]),
        )
    ),
    (tff_mf.Guarantee, {}, "mu", [], [-1.0, NAN]),
    (tff_mf.Guarantee, {"mu": 1.0}, "adjacency", [], ["add"]),
    (tff_mf.Guarantee, {"mu": 1.0}, "tail", [], [-1e-9, 1.5, NAN]),
    (tff_mf.Guarantee(mu=1.0).epsilon, {}, "delta", [], [0]),
    (tff_mf.Guarantee(mu=1.0).delta, {}, "epsilon", [], [-1]),
    (lambda guarantees: tff_mf.compose_guarantees(*guarantees), {}, "guarantees", [[1.0]], [[]]),
    (tff_mf.adaptive_clipping_guarantee, {"rounds": 9, "sampling": ONCE}, "count_stddev", [], [-1]),
    (tff_mf.restart_sensitivity, {"mechanism": B400, "rounds": 9, "participation": ONCE}, "restart_every", [], [0]),
    *(
        (tff_mf.guarantee, {**RUN, "noise_multiplier": 1.0}, *only)
        for only in (
            ("grid", [], [GRID]),
            ("dimension", [], [10]),
        )
    ),
    (tff_mf.guarantee, {**RUN, "noise_multiplier": 1.0, "dimension": 10}, "grid", [16], []),
    (tff_mf.guarantee, {**RUN, "noise_multiplier": 1.0, "grid": GRID}, "dimension", [], [0, 2**63 - 1]),
    *(
        (
            functools.partial(tff_mf.epsilon, tff_mf.Identity(), 4, tff_mf.Poisson(population=10, clients_per_round=2)),
            {"noise_multiplier": 1.0, "delta": 1e-6},
            *only,
        )
        for only in (("grid", [], [GRID]), ("dimension", [], [3]))
    ),
    (tff_mf.Grid, {"max_clients": 1}, "bits", [16.0], [7, 27]),
    (tff_mf.Grid, {"bits": 16}, "max_clients", [True], [0, 2**36 + 1]),
    *(
        (normals.rounding_error, CELL, *wrong)
        for wrong in (
            ("cell", ["wide"], [0.0, 1e-17]),
            ("limit", [], [14.0]),
            ("delta_tail", [], [1e-60]),
            ("values", [], [0]),
        )
    ),
    (tff_mf.Poisson, {"population": 9}, SIZE, *NO_SIZE),
    (tff_mf.CyclicPoisson, {"groups": 2, "population": 9}, SIZE, *NO_SIZE),
    (tff_mf.BallsInBins, {"groups": 3}, SIZE, *NO_SIZE),
    (tff_mf.BMinSep, {"min_sep": 2, "probability": 0.1}, SIZE, *NO_SIZE),
    (tff_mf.BMinSep.of_population, {"min_sep": 2, "population": 9}, SIZE, *NO_SIZE),
    (tff_mf.MinSep(min_sep=1, max_participations=9).cohorts, {"clients": 20, "rounds": 9}, SIZE, *NO_SIZE),
    (tff_mf.plan, PLANNED, "sampling", ["min-sep"], []),
    (tff_mf.plan, {**PLANNED, "mechanism": None}, "sampling", ["min-sep"], []),
    (tff_mf.plan, PLANNED, "population", [], [99]),
    (tff_mf.plan, {**PLANNED, "dimension": 3}, "grid", [16], [tff_mf.Grid(bits=14, max_clients=9)]),
    (tff_mf.plan, PLANNED, "clip_norm", [], [0.0]),
    (tff_mf.plan, PLANNED, "rounds", [], [20]),
    (tff_mf.plan, PLANNED, "mechanism", [3], ["bltt"]),
    (tff_mf.plan, {**PLANNED, "noise_multiplier": None}, "epsilon", [], [None, 0.0]),
    (tff_mf.plan, {**PLANNED, "sampling": None}, "population", [], [None, 9]),
    (tff_mf.plan, {**PLANNED, "sampling": tff_mf.MinSep(min_sep=1, max_participations=2)}, "population", [], [100]),
    (tff_mf.plan, {**PLANNED, "sampling": tff_mf.FixedEpoch(min_sep=10, max_participations=3)}, "population", [], [9]),
    (tff_mf.plan, {**PLANNED, "sampling": tff_mf.FixedEpoch(min_sep=5, max_participations=2)}, "population", [], [149]),
    (tff_mf.plan, PLANNED_POISSON, "population", [], [999]),
    (tff_mf.plan, PLANNED_POISSON, "clients_per_round", [], [11]),
    (tff_mf.Search, {}, "mean", ["8"], [0.5, 1001, NAN]),
    (tff_mf.Search, {"mean": 8.0}, "shape", [], [-0.1, 1e7, NAN]),
    (tff_mf.Order.of, {"plan": SECRET, "examples": 1000}, "plan", [3], [tff_mf.plan(**PLANNED_POISSON)]),
    (tff_mf.plan, {**PLANNED_POISSON, "secret_cohorts": True}, "mechanism", [], [None]),
]


@pytest.mark.parametrize(("call", "arguments", "name", "types", "values"), ROWS)
def test_a_wrong_argument_is_named(call, arguments, name, types, values):
    for error, wrong in ((InputTypeError, types), (InputValueError, values)):
        for value in wrong:
            with pytest.raises(error) as caught:
                call(**{**arguments, name: value})
            message = str(caught.value)
            assert name in message, (value, message)
            if isinstance(value, int | float | str):
                assert f"{value!r}" in message, (value, message)


def test_a_plan_has_one_level():
    with pytest.raises(InputValueError) as caught:
        tff_mf.plan(**PLANNED, epsilon=1.0)
    assert "epsilon" in str(caught.value)


def test_more_rates_than_a_workload_may_have_are_refused():
    with pytest.raises(InputValueError) as caught:
        tff_mf.LearningRates(rates=np.ones(20_000))
    assert "rounds=20000" in str(caught.value)


@pytest.mark.parametrize("pattern", [(0, 0), (5,), (-1,), ("a",)])
def test_a_wrong_pattern_is_named(pattern):
    with pytest.raises(tff_mf.InputError) as caught:
        tff_mf.pattern_sensitivity(tff_mf.Identity(), 5, [pattern])
    assert repr(pattern[-1]) in str(caught.value)
