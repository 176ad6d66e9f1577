import itertools

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


def test_optimized_for_checks_that_the_workload_fits():
    once = tff_mf.SingleParticipation()
    workload = tff_mf.LearningRates(rates=[1.0, 0.5])
    assert tff_mf.OptimizedFor(rounds=2, participation=once, workload=workload).workload == workload
    assert tff_mf.OptimizedFor(rounds=2, participation=once).workload == tff_mf.PrefixSum()
    with pytest.raises(InputValueError, match="rounds=3 exceeds the 2 rounds"):
        tff_mf.OptimizedFor(rounds=3, participation=once, workload=workload)
    with pytest.raises(InputTypeError, match="workload="):
        tff_mf.OptimizedFor(rounds=3, participation=once, workload="momentum")
