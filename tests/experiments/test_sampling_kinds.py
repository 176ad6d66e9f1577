"""Each kind of sampling keeps what it guarantees, draws as it says, and refuses what it cannot keep."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tff_mf
from tff_mf.errors import InputValueError
from tff_mf.experiments import sampling
from tff_mf.experiments.sampling.settings import SAMPLING_KINDS, SamplingSettings


def made(kind, population=40, clients_per_round=4, rounds=30, min_sep=5, max_participations=None, seed=1, **clock):
    limit = max_participations or math.ceil(rounds / min_sep)
    return sampling.plan(
        SamplingSettings(kind=kind, **clock),
        client_ids=[f"client{i}" for i in range(population)],
        clients_per_round=clients_per_round,
        rounds=rounds,
        participation=tff_mf.MinSep(min_sep=min_sep, max_participations=limit),
        seed=seed,
    )


def rounds_of_clients(plan):
    taken = {}
    for t in range(plan.rounds):
        cohort = plan.cohort(t)
        assert len(set(cohort)) == len(cohort)
        for client in cohort:
            taken.setdefault(client, []).append(t)
    return taken


SETTING = {
    "population": st.integers(1, 30),
    "clients_per_round": st.integers(1, 5),
    "rounds": st.integers(1, 24),
    "min_sep": st.integers(1, 8),
    "seed": st.integers(0, 3),
}


@pytest.mark.parametrize("kind", [kind for kind in SAMPLING_KINDS if kind != "poisson"])
@hypothesis.given(**SETTING)
def test_every_kind_keeps_the_schema_or_is_refused(kind, **setting):
    enough = setting["population"] >= setting["clients_per_round"] * min(setting["min_sep"], setting["rounds"])
    try:
        plan = made(kind, **setting)
    except InputValueError:
        # A cyclic kind has as many groups as min_sep, however few the rounds; epochs may be too short for k.
        assert not enough or kind in ("cyclic_poisson", "shuffled_epochs", "min_sep")
        return
    for rounds in rounds_of_clients(plan).values():
        assert len(rounds) <= math.ceil(setting["rounds"] / setting["min_sep"])
        assert all(later - sooner >= setting["min_sep"] for sooner, later in itertools.pairwise(rounds))


@hypothesis.given(population=st.integers(4, 40), rounds=st.integers(1, 60), seed=st.integers(0, 5))
def test_a_shuffled_epoch_has_each_client_at_most_once(population, rounds, seed):
    epoch = population // 4
    plan = made(
        "shuffled_epochs", population, rounds=rounds, min_sep=max(1, epoch // 2), max_participations=60, seed=seed
    )
    for client_rounds in rounds_of_clients(plan).values():
        assert len({t // epoch for t in client_rounds}) == len(client_rounds)


def test_epochs_are_shuffled_anew_and_their_borders_are_kept():
    plan = made("shuffled_epochs", rounds=60, min_sep=6, max_participations=6)
    assert {len(rounds) for rounds in rounds_of_clients(plan).values()} == {6}
    assert plan.observed().min_sep == 6
    assert set(plan.cohort(0)) != set(plan.cohort(10))
    with pytest.raises(InputValueError, match="shuffled_epochs"):
        made("shuffled_epochs", rounds=60, min_sep=6, max_participations=5)


def test_fixed_epochs_bring_each_client_back_in_the_same_place():
    plan = made("fixed_epochs", rounds=28)
    patterns = set(tff_mf.FixedEpoch(min_sep=5, max_participations=6).patterns(28))
    assert {tuple(rounds) for rounds in rounds_of_clients(plan).values()} <= patterns
    assert plan.cohort(3) == plan.cohort(8)
    with pytest.raises(InputValueError, match="max_participations=6"):
        made("fixed_epochs", max_participations=5)


def test_a_timer_of_rounds_keeps_its_distance_but_not_the_assumed_number():
    plan = made("timer", population=20, rounds=50, max_participations=2)
    assert plan.observed().min_sep >= 5
    assert not plan.observed().within(tff_mf.MinSep(min_sep=5, max_participations=2))


def test_a_timer_of_hours_keeps_hours_and_its_rounds_are_known_afterwards():
    plan = made("timer", 60, 2, 400, min_sep=12, timer_hours=12.0, round_minutes=60.0)
    # By night more rounds than twelve fit into twelve hours, and fewer by day.
    apart = [
        later - sooner for taken in rounds_of_clients(plan).values() for sooner, later in itertools.pairwise(taken)
    ]
    assert plan.participation == tff_mf.MinSep(
        min_sep=min(apart), max_participations=plan.observed().max_participations
    )
    assert min(apart) < 12 < max(apart)


def test_rounds_wait_for_devices_whose_timer_runs():
    plan = made("timer", population=4, clients_per_round=4, rounds=5, min_sep=1, timer_hours=100.0, round_minutes=1.0)
    assert plan.observed() == sampling.ObservedParticipation(min_sep=1, max_participations=5)


def test_poisson_cohorts_have_the_distribution_of_independent_coins():
    rounds = 4000
    plan = made("poisson", population=20, clients_per_round=3, rounds=rounds, min_sep=1)
    sizes = np.array([len(plan.cohort(t)) for t in range(rounds)])
    # Binomial(20, 0.15): mean 3, variance 2.55; five standard errors.
    assert abs(sizes.mean() - 3) < 5 * math.sqrt(2.55 / rounds)
    assert abs(sizes.var() - 2.55) < 5 * 2.55 * math.sqrt(2 / rounds)
    counts = np.array([len(taken) for taken in rounds_of_clients(plan).values()])
    assert np.abs(counts / rounds - 0.15).max() < 5 * math.sqrt(0.15 * 0.85 / rounds)


def test_cyclic_poisson_takes_each_client_from_its_own_group():
    plan = made("cyclic_poisson", population=43, clients_per_round=4, rounds=2000)
    for rounds in rounds_of_clients(plan).values():
        assert len({t % 5 for t in rounds}) == 1
    assert len(rounds_of_clients(plan)) == 40
    sizes = np.array([len(plan.cohort(t)) for t in range(2000)])
    # Eight clients a group, each with probability 4 / ⌊43 / 5⌋.
    assert abs(sizes.mean() - 4) < 5 * math.sqrt(2 / 2000)
    assert sizes.min() < 4 < sizes.max()


@pytest.mark.parametrize("changes", [{"min_sep": 2}, {"min_sep": 1, "max_participations": 29}])
def test_poisson_sampling_bounds_nothing_and_says_so(changes):
    with pytest.raises(InputValueError, match="max_participations=30 only"):
        made("poisson", **changes)


@pytest.mark.parametrize("kind", SAMPLING_KINDS)
def test_one_seed_gives_one_plan_and_another_another(kind):
    setting = {"min_sep": 1} if kind == "poisson" else {}
    assert made(kind, seed=1, **setting) == made(kind, seed=1, **setting)
    assert made(kind, seed=1, **setting) != made(kind, seed=2, **setting)


def test_dropped_clients_are_gone_from_the_data_and_stay_in_the_plan():
    plan = made("min_sep", population=400, clients_per_round=40)
    reporting = sampling.without_dropped(plan, 0.25, seed=7)
    assert sampling.without_dropped(plan, 0.0, seed=7) is plan
    assert reporting == sampling.without_dropped(plan, 0.25, seed=7)
    kept = 0
    for t in range(plan.rounds):
        assert set(reporting.cohort(t)) <= set(plan.cohort(t))
        kept += len(reporting.cohort(t))
    assert abs(kept / 1200 - 0.75) < 5 * math.sqrt(0.25 * 0.75 / 1200)
    assert plan.observed().max_participations >= reporting.observed().max_participations
    with pytest.raises(InputValueError, match="dropout=1"):
        sampling.without_dropped(plan, 1, seed=7)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kind": "random"}, "cyclic_poisson"),
        ({"kind": "poisson", "timer_hours": 3.0}, "timer_hours go with sampling='timer'"),
        ({"kind": "timer", "timer_hours": 3.0}, "needs round_minutes"),
        ({"kind": "timer", "timer_hours": 3.0, "round_minutes": 0.0}, "round_minutes"),
    ],
)
def test_wrong_settings_are_refused(settings, named):
    with pytest.raises(InputValueError, match=named):
        SamplingSettings(**settings)


@pytest.mark.parametrize("kind", SAMPLING_KINDS)
def test_a_population_that_is_too_small_is_refused(kind):
    with pytest.raises(InputValueError, match="clients"):
        made(kind, population=3, min_sep=1)
