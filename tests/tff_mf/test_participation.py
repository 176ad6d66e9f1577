import itertools

import numpy as np
import pytest

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError


def test_min_sep_patterns_are_those_of_the_definition():
    schema = tff_mf.MinSep(min_sep=3, max_participations=2)
    subsets = [
        pattern
        for size in range(8)
        for pattern in itertools.combinations(range(7), size)
        if size <= 2 and all(b - a >= 3 for a, b in itertools.combinations(pattern, 2))
    ]
    assert sorted(schema.patterns(7)) == sorted(subsets)


def test_min_sep_is_the_difference_of_rounds():
    assert (0, 2) in set(tff_mf.MinSep(min_sep=2, max_participations=2).patterns(3))
    assert (0, 1) not in set(tff_mf.MinSep(min_sep=2, max_participations=2).patterns(3))


def test_single_participation_is_min_sep_with_one():
    single = tff_mf.SingleParticipation()
    assert (single.max_participations, single.min_sep) == (1, 1)
    assert list(single.patterns(3)) == [(), (0,), (1,), (2,)]


def test_the_earliest_pattern_fits_exactly():
    schema = tff_mf.MinSep(min_sep=4, max_participations=3)
    assert schema.check(9) == 9
    with pytest.raises(InputValueError, match=r"needs 9 rounds.*rounds=8.*max_participations=2 fits"):
        schema.check(8)


@pytest.mark.parametrize("field", ["min_sep", "max_participations"])
@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, float("nan"), float("inf"), "3", None, True, [3]])
def test_bad_fields_are_named(field, value):
    with pytest.raises((InputValueError, InputTypeError), match=f"{field}="):
        tff_mf.MinSep(**{"min_sep": 1, "max_participations": 1, field: value})


@pytest.mark.parametrize("rounds", [0, -5, 2.0, float("nan"), None, "9", True])
def test_bad_rounds_are_named(rounds):
    with pytest.raises((InputValueError, InputTypeError), match="rounds="):
        tff_mf.SingleParticipation().check(rounds)


def test_optimized_for_checks_that_the_participations_fit():
    with pytest.raises(InputValueError, match="rounds=5"):
        tff_mf.OptimizedFor(rounds=5, participation=tff_mf.MinSep(min_sep=3, max_participations=3))
    with pytest.raises(InputTypeError, match="participation="):
        tff_mf.OptimizedFor(rounds=5, participation="min_sep")


def test_a_mechanism_takes_nothing_else_as_its_setting():
    with pytest.raises(InputTypeError, match="optimized_for="):
        tff_mf.Identity(optimized_for=5)
    with pytest.raises(InputTypeError, match="optimized_for="):
        tff_mf.BLT(theta=[0.5], omega=[0.1], optimized_for="b400")


def test_fixed_epoch_patterns_are_those_of_the_definition():
    schema = tff_mf.FixedEpoch(min_sep=3, max_participations=2)
    subsets = {
        tuple(sorted(chosen))
        for start in range(10)
        for size in range(3)
        for chosen in itertools.combinations([each for each in (start, start + 3) if each < 10], size)
    }
    patterns = list(schema.patterns(10))
    assert sorted(patterns) == sorted(subsets)
    assert set(patterns) <= set(tff_mf.MinSep(min_sep=3, max_participations=2).patterns(10))


def test_fixed_epoch_patterns_may_skip_epochs_but_not_exceed_them():
    patterns = set(tff_mf.FixedEpoch(min_sep=2, max_participations=3).patterns(9))
    assert (0, 4) in patterns
    assert not {(0, 6), (0, 2, 6), (0, 3)} & patterns


@pytest.mark.parametrize("field", ["min_sep", "max_participations"])
@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), "3", None, True])
def test_bad_fields_of_fixed_epoch_are_named(field, value):
    with pytest.raises((InputValueError, InputTypeError), match=f"{field}="):
        tff_mf.FixedEpoch(**{"min_sep": 1, "max_participations": 1, field: value})


@pytest.mark.parametrize("converged", [1, 0.0, "yes", np.True_])
def test_optimized_for_checks_converged(converged):
    with pytest.raises(InputTypeError, match="converged="):
        tff_mf.OptimizedFor(rounds=2, participation=tff_mf.SingleParticipation(), converged=converged)


def test_optimized_for_checks_that_the_workload_fits():
    once = tff_mf.SingleParticipation()
    workload = tff_mf.LearningRates(rates=[1.0, 0.5])
    assert tff_mf.OptimizedFor(rounds=2, participation=once, workload=workload).workload == workload
    assert tff_mf.OptimizedFor(rounds=2, participation=once).workload == tff_mf.PrefixSum()
    with pytest.raises(InputValueError, match="rounds=3 exceeds the 2 rounds"):
        tff_mf.OptimizedFor(rounds=3, participation=once, workload=workload)
    with pytest.raises(InputTypeError, match="workload="):
        tff_mf.OptimizedFor(rounds=3, participation=once, workload="momentum")
