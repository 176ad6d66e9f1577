"""Each kind of sampling keeps what it guarantees, draws as it says, and refuses what it cannot keep."""

import copy
import dataclasses
import itertools
import json
import math

import hypothesis
import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest

import tff_mf
from tff_mf import accounting
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.experiments import sampling
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs import ledger
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.sampling.settings import PARAMETERS, SAMPLINGS, SECRET, SamplingSettings, parameters_of
from tff_mf.problem.draws import SeededDraws

from .shared import drawn

TWO = "2" * 32


def made(word, population=40, clients_per_round=4, rounds=30, min_sep=5, max_participations=None, seed=1, **more):
    limit = max_participations or math.ceil(rounds / min_sep)
    chosen = drawn(word, min_sep=min_sep, max_participations=limit, groups=min_sep, participations=limit)
    chosen = SamplingSettings(sampling=word, **{**chosen.parameters, **more})
    return sampling.plan_cohorts(
        sampling=chosen.drawn_by(population=population, clients_per_round=clients_per_round),
        client_ids=[f"client{i}" for i in range(population)],
        clients_per_round=clients_per_round,
        rounds=rounds,
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


def test_epochs_are_shuffled_anew_and_their_borders_are_kept():
    plan = made("spaced-epochs", rounds=60, min_sep=6, max_participations=6)
    assert {len(rounds) for rounds in rounds_of_clients(plan).values()} == {6}
    assert plan.observed().min_sep == 6
    assert set(plan.cohort(0)) != set(plan.cohort(10))
    for kind, rounds, min_sep in (("spaced-epochs", 60, 6), ("fixed-epochs", 30, 5)):
        with pytest.raises(InputValueError, match=r"max_participations|SpacedEpochs"):
            made(kind, rounds=rounds, min_sep=min_sep, max_participations=5)


def group_of(secret, names, groups=6):
    """Returns the place of every client, as `BallsInBins` asks for it."""
    return secret.draws(names, tff_mf.BallsInBins(groups=groups)).places(np.arange(len(names)), groups)


def test_a_secret_outlasts_a_run_and_is_seen_nowhere(tmp_path):
    setting = {
        "client_ids": [f"client{i}" for i in range(600)],
        "rounds": 12,
        "sampling": tff_mf.BallsInBins(groups=6, clients_per_round=100),
    }
    secret = sampling.CohortSecret.drawn()
    secret.save(tmp_path / "cohorts.key")
    assert (tmp_path / "cohorts.key").stat().st_mode & 0o777 == 0o600
    assert secret.key.hex() not in repr(secret)
    assert "key" not in repr(secret)
    plan = sampling.plan_cohorts(**setting, secret=secret)
    loaded = sampling.CohortSecret.load(tmp_path / "cohorts.key", run=secret.run)
    assert loaded == secret
    sizes = np.array([len(plan.cohort(t)) for t in range(6)])
    assert np.abs(sizes - 100).max() < 6 * math.sqrt(600 * 5 / 36)
    with pytest.raises(InputValueError, match="exists"):
        sampling.CohortSecret.drawn().save(tmp_path / "cohorts.key")
    assert sampling.CohortSecret.load(tmp_path / "cohorts.key", run=secret.run) == secret


def test_another_run_cannot_have_the_same_groups(tmp_path):
    """Their file is refused; the key under another name leads to groups that agree by chance only."""
    secret = sampling.CohortSecret.drawn()
    secret.save(tmp_path / "cohorts.key")
    with pytest.raises(InputValueError, match="secret of another run than run='2222"):
        sampling.CohortSecret.load(tmp_path / "cohorts.key", run=TWO)
    names = [f"client{i}" for i in range(6000)]
    other = sampling.CohortSecret(run=TWO, key=secret.key)
    # Binomial(6000, 1/6).
    assert abs(np.sum(group_of(secret, names) == group_of(other, names)) - 1000) < 7 * math.sqrt(6000 * 5 / 36)
    for name in ("", "first", secret.run[:-1], secret.run[:-1] + "G", secret.run + "\n"):
        with pytest.raises(InputValueError, match="random identifier"):
            sampling.CohortSecret.drawn(run=name)
    with pytest.raises(InputTypeError, match="run=1"):
        sampling.CohortSecret(run=1, key=secret.key)


def test_a_second_run_of_the_same_name_is_told_from_a_resumption(tmp_path):
    """Same folder, same settings, same file of groups: only the run whose ledger goes on gets them."""
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    with ledger.open_ledger(folder / "ledger.jsonl") as begun:
        secret = sampling.CohortSecret.drawn(run=begun.record.run)
        secret.save(tmp_path / "cohorts.key")
    with ledger.open_ledger(folder / "ledger.jsonl") as resumed:
        assert sampling.CohortSecret.load(tmp_path / "cohorts.key", run=resumed.record.run) == secret
    folder.rename(tmp_path / "aside")
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    with ledger.open_ledger(folder / "ledger.jsonl") as second:
        with pytest.raises(InputValueError, match="secret of another run"):
            sampling.CohortSecret.load(tmp_path / "cohorts.key", run=second.record.run)
        with pytest.raises(InputValueError, match="random identifier"):
            sampling.CohortSecret.load(tmp_path / "cohorts.key", run="first")


def test_misuse_of_a_secret_is_refused(tmp_path):
    (tmp_path / "other").write_bytes(f'another file\n"{TWO}"\n'.encode() + bytes(32))
    (tmp_path / "short").write_bytes(f'tff-mf secret of cohorts\n"{TWO}"\n'.encode() + bytes(31))
    setting = {"client_ids": ["a", "b"], "clients_per_round": 1, "rounds": 2}
    setting["sampling"] = tff_mf.BallsInBins(groups=2)
    for wrong in ({}, {"seed": 1, "secret": sampling.CohortSecret.drawn()}):
        with pytest.raises(InputValueError, match="either seed"):
            sampling.plan_cohorts(**setting, **wrong)
    with pytest.raises(InputValueError, match="no secret of cohorts"):
        sampling.CohortSecret.load(tmp_path / "other", run=TWO)
    with pytest.raises(InputValueError, match="no secret of cohorts"):
        sampling.CohortSecret.load(tmp_path / "short", run=TWO)
    with pytest.raises(InputTypeError, match="bytes"):
        sampling.CohortSecret(run=TWO, key="secret")


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_one_seed_or_secret_gives_one_plan_and_another_another(kind):
    chosen = drawn(kind, min_sep=3, max_participations=12, groups=3)
    setting = {"client_ids": [f"c{i}" for i in range(60)], "clients_per_round": 5, "rounds": 12}
    setting["sampling"] = chosen.drawn_by(population=60, clients_per_round=5)
    secrets = (sampling.CohortSecret.drawn() for _ in range(2))
    for one, other in (({"seed": 1}, {"seed": 2}), ({"secret": secret} for secret in secrets)):
        plan = sampling.plan_cohorts(**setting, **one)
        assert plan == sampling.plan_cohorts(**setting, **one)
        assert plan != sampling.plan_cohorts(**setting, **other)


def test_dropped_clients_are_gone_from_the_data_and_stay_in_the_plan():
    plan = made("min-sep", population=400, clients_per_round=40)
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


@pytest.mark.parametrize("word", SAMPLINGS)
def test_a_word_has_the_fields_of_its_sampling_and_refuses_others_by_name(word):
    chosen = drawn(word)
    made_by = chosen.drawn_by(population=100, clients_per_round=5)
    assert chosen.sampler == f"tff_mf.{type(made_by).__name__}"
    assert chosen.is_secret == isinstance(made_by, accounting.SecretSampling) == (word in SECRET)
    assert all(getattr(made_by, name) == value for name, value in chosen.parameters.items() if hasattr(made_by, name))
    assert {*parameters_of(word)} - {"max_participations"} <= {field.name for field in dataclasses.fields(made_by)}
    for name in {*PARAMETERS} - {*parameters_of(word)}:
        with pytest.raises(InputValueError, match=rf"^{name}=3 does not go with sampling='{word}': leave it out"):
            SamplingSettings(sampling=word, **chosen.parameters, **{name: 3})
    for name in chosen.parameters:
        with pytest.raises(InputValueError, match=rf"^{name} missing, which sampling='{word}' needs"):
            SamplingSettings(
                sampling=word, **{other: chosen.parameters[other] for other in chosen.parameters if other != name}
            )
        with pytest.raises(InputValueError, match=rf"{name}=0"):
            SamplingSettings(sampling=word, **{**chosen.parameters, name: 0})
    # What run.json has is the same sampling.
    given = {"rounds": 12, "clients_per_round": 2, "delta": 1e-6}
    stored = json.loads(msgspec.json.encode(RunSettings(**given, **msgspec.structs.asdict(chosen))))
    assert typed.convert(stored, RunSettings).sampling_settings() == chosen


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_the_object_that_is_accounted_for_draws_the_cohorts(kind):
    drawn_by = drawn(kind, min_sep=2, groups=2).drawn_by(population=9, clients_per_round=2)
    clients = [f"c{index}" for index in range(9)]
    plan = sampling.plan_cohorts(sampling=drawn_by, client_ids=clients, clients_per_round=2, rounds=4, seed=1)
    assert np.array_equal(drawn_by.cohorts(9, 4, clients_per_round=2, draws=SeededDraws(1)), plan.indices)


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_a_population_that_is_too_small_is_refused(kind):
    with pytest.raises(InputValueError, match="clients"):
        made(kind, population=3, min_sep=2 if kind == "b-min-sep" else 1)


def _plan(population=12, clients_per_round=2, rounds=10, min_sep=3, max_participations=4, seed=1):
    return sampling.plan_cohorts(
        client_ids=[f"client{i}" for i in range(population)],
        clients_per_round=clients_per_round,
        rounds=rounds,
        sampling=tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations),
        seed=seed,
    )


def _feasible(population, clients_per_round, rounds, min_sep, max_participations):
    return (
        population >= clients_per_round * min(min_sep, rounds)
        and population * max_participations >= rounds * clients_per_round
    )


_SETTINGS = {
    "population": st.integers(1, 30),
    "clients_per_round": st.integers(1, 6),
    "rounds": st.integers(1, 24),
    "min_sep": st.integers(1, 12),
    "max_participations": st.integers(1, 8),
    "seed": st.integers(0, 3),
}


@hypothesis.settings(derandomize=True, max_examples=1000, deadline=None, database=None)
@hypothesis.given(**_SETTINGS)
def test_a_plan_is_made_whenever_one_exists_and_never_breaks_the_schema(seed, **setting):
    if not _feasible(**setting):
        with pytest.raises(InputValueError):
            _plan(**setting, seed=seed)
        return
    plan = _plan(**setting, seed=seed)
    assert plan.rounds == setting["rounds"]
    assert all(len(plan.cohort(t)) == setting["clients_per_round"] for t in range(plan.rounds))
    taken = rounds_of_clients(plan)
    most = max(len(rounds) for rounds in taken.values())
    apart = [later - sooner for rounds in taken.values() for sooner, later in itertools.pairwise(rounds)]
    assert most <= setting["max_participations"]
    assert min(apart, default=99) >= setting["min_sep"]
    assert plan.observed() == sampling.ObservedParticipation(min_sep=min(apart, default=None), max_participations=most)


def test_the_condition_is_necessary_by_brute_force():
    def exists(population, clients_per_round, rounds, participation):
        patterns = list(participation.patterns(rounds))
        reachable = {(0,) * rounds}
        for _ in range(population):
            reachable = {
                filled
                for state in reachable
                for pattern in patterns
                if max(filled := tuple(n + (t in pattern) for t, n in enumerate(state))) <= clients_per_round
            }
        return (clients_per_round,) * rounds in reachable

    for population, clients_per_round, rounds, b, k in itertools.product(
        range(1, 5), (1, 2), (2, 3, 4), (1, 2, 3), (1, 2)
    ):
        expected = exists(population, clients_per_round, rounds, tff_mf.MinSep(min_sep=b, max_participations=k))
        assert _feasible(population, clients_per_round, rounds, b, k) == expected


def test_each_cohort_is_uniform_among_the_eligible():
    counts = np.zeros(6)
    for seed in range(3000):
        plan = _plan(population=8, clients_per_round=1, rounds=3, min_sep=3, max_participations=1, seed=seed)
        eligible = [i for i in range(8) if i not in plan.indices[:2]]
        counts[eligible.index(plan.indices[2, 0])] += 1
    # Chi-squared with 5 degrees of freedom: 30 has probability 1.5e-5.
    assert ((counts - 500) ** 2 / 500).sum() < 30


def test_two_numbers_do_not_show_that_clients_keep_their_place_in_an_epoch():
    fixed = tff_mf.FixedEpoch(min_sep=3, max_participations=2)
    assert not sampling.ObservedParticipation(min_sep=4, max_participations=2).within(fixed)
    assert not sampling.ObservedParticipation(min_sep=3, max_participations=2).within(fixed)
    assert sampling.ObservedParticipation(min_sep=None, max_participations=1).within(fixed)
    arguments = {"client_ids": list("abcdef"), "participation": fixed}
    assert sampling.CohortPlan(**arguments, indices=np.array([[0], [1], [2], [0]])).participation == fixed
    with pytest.raises(InputValueError, match="a multiple of it apart and 4 at most"):
        sampling.CohortPlan(**arguments, indices=np.array([[0], [1], [2], [3], [0]]))


@pytest.mark.parametrize("indices", [[[0], [0]], [[0, 0]], [[0], [9]], [[-2]], [[0.5]], [[]], [0]])
def test_a_plan_made_by_hand_is_checked(indices):
    with pytest.raises(InputValueError, match="indices"):
        sampling.CohortPlan(
            client_ids=("a", "b"),
            participation=tff_mf.MinSep(min_sep=2, max_participations=1),
            indices=np.array(indices),
        )


@pytest.fixture(scope="module")
def client_data():
    import tensorflow_federated as tff

    return tff.simulation.datasets.TestClientData({f"client{i}": {"x": [i, i + 100, i + 200]} for i in range(12)})


def _values(datasets):
    return [[int(element["x"]) for element in dataset] for dataset in datasets]


def test_the_source_gives_each_rounds_cohort_once(client_data):
    plan = _plan()
    source = sampling.MinSepDataSource(client_data, plan)
    iterator = source.iterator()
    assert str(iterator.federated_type) == str(source.federated_type) == "{<x=int32>*}@CLIENTS"
    for t in range(plan.rounds):
        assert iterator.next_round == t
        expected = [[i, i + 100, i + 200] for i in plan.indices[t]]
        assert _values(iterator.select(2 if t % 2 else None)) == expected
    with pytest.raises(InputValueError, match="rounds=10"):
        iterator.select(2)


def test_a_copy_of_an_iterator_goes_its_own_way_over_the_same_data(client_data):
    """`tff.learning.programs.train_model` copies it every round."""
    iterator = sampling.MinSepDataSource(client_data, _plan()).iterator()
    iterator.select()
    copied = copy.deepcopy(iterator)
    iterator.select()
    assert (copied.next_round, iterator.next_round) == (1, 2)
    copied.select()
    assert copied == iterator


def test_an_iterator_is_saved_and_resumed(client_data):
    import tensorflow_federated as tff

    source = sampling.MinSepDataSource(client_data, _plan(seed=5))
    iterator = source.iterator()
    iterator.select()
    saved = iterator.to_bytes()
    resumed = type(iterator).from_bytes(saved)
    assert isinstance(resumed, tff.program.FederatedDataSourceIterator)
    assert resumed == iterator
    assert resumed != source.iterator()
    assert _values(resumed.select()) == _values(source.iterator(first_round=1).select())
    assert len(saved) < 200
    for bad in (b"", b"{}", b"[]", saved.replace(b'"plan": "', b'"plan": "x')):
        with pytest.raises(InputValueError, match="buffer"):
            type(iterator).from_bytes(bad)
