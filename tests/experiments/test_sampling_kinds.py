"""Each kind of sampling keeps what it guarantees, draws as it says, and refuses what it cannot keep."""

import itertools
import math
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tff_mf
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.experiments import sampling
from tff_mf.experiments.reports import _sections
from tff_mf.experiments.run_folder import ledger
from tff_mf.experiments.sampling.settings import SAMPLING_KINDS, SamplingSettings

TWO = "2" * 32


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


# Kinds with which a client may take part in any rounds, and those with groups that take turns.
ANY_ROUND = ("poisson", "random_allocation")
BY_GROUPS = ("cyclic_poisson", "balls_in_bins")

SETTING = {
    "population": st.integers(1, 30),
    "clients_per_round": st.integers(1, 5),
    "rounds": st.integers(1, 24),
    "min_sep": st.integers(1, 8),
    "seed": st.integers(0, 3),
}


@pytest.mark.parametrize("kind", [kind for kind in SAMPLING_KINDS if kind not in ANY_ROUND])
@hypothesis.given(**SETTING)
def test_every_kind_keeps_the_schema_or_is_refused(kind, **setting):
    enough = setting["population"] >= setting["clients_per_round"] * min(setting["min_sep"], setting["rounds"])
    try:
        plan = made(kind, **setting)
    except InputValueError:
        # A cyclic kind has as many groups as min_sep, however few the rounds; epochs may be too short for k.
        assert not enough or kind in (*BY_GROUPS, "min_sep_poisson", "shuffled_epochs", "min_sep")
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


def test_each_client_is_in_one_bin_of_all_with_equal_probability():
    plan = made("balls_in_bins", population=12_003, clients_per_round=2400, rounds=10, max_participations=2)
    taken = rounds_of_clients(plan)
    assert len(taken) == 12_000
    assert all(rounds in ([t, t + 5] for t in range(5)) for rounds in taken.values())
    sizes = np.array([len(plan.cohort(t)) for t in range(5)])
    # Binomial(12,000, 1/5), which no fixed size is: within five standard deviations, and not all equal.
    assert np.abs(sizes - 2400).max() < 5 * math.sqrt(12_000 * 0.16)
    assert len(set(sizes)) > 1
    with pytest.raises(InputValueError, match="max_participations=2 of rounds=10"):
        made("balls_in_bins", rounds=10, max_participations=1)


def test_secret_groups_outlast_a_run_and_are_seen_nowhere(tmp_path):
    setting = {
        "client_ids": [f"client{i}" for i in range(600)],
        "clients_per_round": 100,
        "rounds": 12,
        "participation": tff_mf.FixedEpoch(min_sep=6, max_participations=2),
    }
    secret = sampling.SecretGroups.drawn(6)
    secret.save(tmp_path / "groups.key")
    assert (tmp_path / "groups.key").stat().st_mode & 0o777 == 0o600
    assert secret.key.hex() not in repr(secret)
    assert "key" not in repr(secret)
    plan = sampling.plan_balls_in_bins(**setting, secret=secret)
    assert plan == sampling.plan_balls_in_bins(
        **setting, secret=sampling.SecretGroups.load(tmp_path / "groups.key", run=secret.run)
    )
    assert plan != sampling.plan_balls_in_bins(**setting, secret=sampling.SecretGroups.drawn(6))
    assert all(t % 6 == secret.group_of(client) for t in range(12) for client in plan.cohort(t))
    sizes = np.array([len(plan.cohort(t)) for t in range(6)])
    assert np.abs(sizes - 100).max() < 6 * math.sqrt(600 * 5 / 36)
    with pytest.raises(InputValueError, match="exists"):
        sampling.SecretGroups.drawn(6).save(tmp_path / "groups.key")
    assert sampling.SecretGroups.load(tmp_path / "groups.key", run=secret.run) == secret


def test_another_run_cannot_have_the_same_groups(tmp_path):
    """Their file is refused; the key under another name leads to groups that agree by chance only."""
    secret = sampling.SecretGroups.drawn(6)
    secret.save(tmp_path / "groups.key")
    with pytest.raises(InputValueError, match="groups of another run than run='2222"):
        sampling.SecretGroups.load(tmp_path / "groups.key", run=TWO)
    other = sampling.SecretGroups(groups=6, run=TWO, key=secret.key)
    names = [f"client{i}" for i in range(6000)]
    same = sum(secret.group_of(name) == other.group_of(name) for name in names)
    # Binomial(6000, 1/6).
    assert abs(same - 1000) < 6 * math.sqrt(6000 * 5 / 36)
    for name in ("", "first", secret.run[:-1], secret.run[:-1] + "G", secret.run + "\n"):
        with pytest.raises(InputValueError, match="random identifier"):
            sampling.SecretGroups.drawn(6, run=name)
    with pytest.raises(InputTypeError, match="run=1"):
        sampling.SecretGroups(groups=6, run=1, key=secret.key)


def test_a_second_run_of_the_same_name_is_told_from_a_resumption(tmp_path):
    """Same folder, same settings, same file of groups: only the run whose ledger goes on gets them."""
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    with ledger.open_ledger(folder / "ledger.jsonl") as begun:
        secret = sampling.SecretGroups.drawn(6, run=begun.run)
        secret.save(tmp_path / "groups.key")
    with ledger.open_ledger(folder / "ledger.jsonl") as resumed:
        assert sampling.SecretGroups.load(tmp_path / "groups.key", run=resumed.run) == secret
    folder.rename(tmp_path / "aside")
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    with ledger.open_ledger(folder / "ledger.jsonl") as second:
        with pytest.raises(InputValueError, match="groups of another run"):
            sampling.SecretGroups.load(tmp_path / "groups.key", run=second.run)
        with pytest.raises(InputValueError, match="random identifier"):
            sampling.SecretGroups.load(tmp_path / "groups.key", run="first")


@pytest.mark.parametrize("kind", sorted({*SAMPLING_KINDS}))
def test_reports_say_why_a_sampling_has_no_amplified_epsilon(kind):
    record = types.SimpleNamespace(settings={"sampling": {"kind": kind}})
    texts = _sections._sampling(record)
    assert len(texts) == (kind in ("balls_in_bins", "min_sep_poisson", "random_allocation"))
    assert all("the cohorts are logged" in text and repr(kind) in text for text in texts)
    assert _sections._sampling(types.SimpleNamespace(settings={})) == []


def test_who_takes_part_says_nothing_about_the_group():
    secret = sampling.SecretGroups.drawn(2)
    names = [f"client{i}" for i in range(8000)]
    first = np.array([secret.group_of(names[index]) for index in secret.chosen(names, 4000)])
    # Binomial(4000, 1/2).
    assert abs(first.sum() - 2000) < 6 * math.sqrt(1000)


def test_misuse_of_secret_groups_is_refused(tmp_path):
    (tmp_path / "other").write_bytes(f'tff-mf secret groups 2\nsix\n"{TWO}"\n'.encode() + bytes(32))
    (tmp_path / "short").write_bytes(f'tff-mf secret groups 2\n6\n"{TWO}"\n'.encode() + bytes(31))
    setting = {"client_ids": ["a", "b"], "clients_per_round": 1, "rounds": 2}
    setting["participation"] = tff_mf.FixedEpoch(min_sep=2, max_participations=1)
    for wrong in ({}, {"seed": 1, "secret": sampling.SecretGroups.drawn(2)}):
        with pytest.raises(InputValueError, match="either seed"):
            sampling.plan_balls_in_bins(**setting, **wrong)
    with pytest.raises(InputValueError, match="3 groups"):
        sampling.plan_balls_in_bins(**setting, secret=sampling.SecretGroups.drawn(3))
    with pytest.raises(InputValueError, match="no secret groups"):
        sampling.SecretGroups.load(tmp_path / "other", run=TWO)
    with pytest.raises(InputValueError, match="31 bytes"):
        sampling.SecretGroups.load(tmp_path / "short", run=TWO)
    with pytest.raises(InputTypeError, match="bytes"):
        sampling.SecretGroups(groups=2, run=TWO, key="secret")


def test_poisson_sampling_with_a_separation_is_stationary_from_the_first_round():
    plans = [made("min_sep_poisson", population=900, clients_per_round=100, rounds=12, seed=seed) for seed in range(40)]
    sizes = np.array([[len(plan.cohort(t)) for t in range(12)] for plan in plans])
    # Each size has a variance below that of Binomial(900, 1/9): the coins of one round are independent.
    assert np.abs(sizes.mean(axis=0) - 100).max() < 5 * math.sqrt(900 * 8 / 81 / 40)
    assert plans[0].observed().min_sep == 5
    assert plans[0].observed().max_participations == 3


def test_random_allocation_gives_each_client_the_same_number_of_rounds():
    setting = {"population": 700, "clients_per_round": 40, "rounds": 30, "min_sep": 1, "max_participations": 2}
    plan = made("random_allocation", **setting)
    taken = rounds_of_clients(plan)
    assert len(taken) == 600
    assert {len(rounds) for rounds in taken.values()} == {2}
    assert plan.observed().min_sep == 1
    # 15 clients are expected for each difference of 29, and of 1 as many as rounds allow.
    apart = [later - sooner for sooner, later in taken.values()]
    assert abs(apart.count(1) - 600 * 29 / 435) < 5 * math.sqrt(600 * 29 / 435)
    with pytest.raises(InputValueError, match="min_sep=1 and max_participations=2 only"):
        made("random_allocation", **{**setting, "min_sep": 2})


@pytest.mark.parametrize("changes", [{"min_sep": 2}, {"min_sep": 1, "max_participations": 29}])
def test_poisson_sampling_bounds_nothing_and_says_so(changes):
    with pytest.raises(InputValueError, match="max_participations=30 only"):
        made("poisson", **changes)


@pytest.mark.parametrize("kind", SAMPLING_KINDS)
def test_one_seed_gives_one_plan_and_another_another(kind):
    setting = {"min_sep": 1, "population": 200} if kind in ANY_ROUND else {}
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
