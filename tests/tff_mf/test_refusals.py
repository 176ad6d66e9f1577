"""Wrong arguments of mechanisms, schemas, workloads, losses and searches: the error names the argument and its value.

A row has a function, valid arguments, one of them, and what it must not be: of a wrong type, and of a wrong value.
"""

import numpy as np
import pytest

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError

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
    (tff_mf.BandedInverse, {}, "inverse_column", *NO_COLUMN),
    (tff_mf.BandedToeplitz.square_root, {}, "bands", [1.0, None], [0, -1]),
    (tff_mf.BandedInverse.square_root, {}, "bands", [1.0, None], [0, -1]),
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
            (tff_mf.optimize_banded_inverse, {"bands": 342}),
            (tff_mf.optimize_dense, {}),
        )
        for field, wrong in (("rounds", OF_ROUNDS), ("participation", ([6], [])))
    ),
    *(
        (search, {**SEARCH, **more}, "objective", [None], ["mean"])
        for search, more in (
            (tff_mf.optimize_blt, {"buffers": 2}),
            (tff_mf.optimize_banded_toeplitz, {"bands": 342}),
            (tff_mf.optimize_banded_inverse, {"bands": 342}),
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
        (search, {**SEARCH, "bands": 342}, field, *wrong)
        for search in (tff_mf.optimize_banded_toeplitz, tff_mf.optimize_banded_inverse)
        for field, wrong in (("workload", ([1, MANY], [])), ("rounds", ([], [10**8])), ("bands", ([2.0], [0, 2053])))
    ),
    (tff_mf.optimize_dense, {"rounds": 2, "participation": ONCE}, "workload", ["sum"], [MANY]),
    (tff_mf.optimize_dense, {"participation": ONCE}, "rounds", [], [10**6]),
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


def test_more_rates_than_a_workload_may_have_are_refused():
    with pytest.raises(InputValueError) as caught:
        tff_mf.LearningRates(rates=np.ones(20_000))
    assert "rounds=20000" in str(caught.value)


@pytest.mark.parametrize("pattern", [(0, 0), (5,), (-1,), ("a",)])
def test_a_wrong_pattern_is_named(pattern):
    with pytest.raises(tff_mf.InputError) as caught:
        tff_mf.pattern_sensitivity(tff_mf.Identity(), 5, [pattern])
    assert repr(pattern[-1]) in str(caught.value)
