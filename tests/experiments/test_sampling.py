import copy
import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.experiments import sampling


def _plan(population=12, clients_per_round=2, rounds=10, min_sep=3, max_participations=4, seed=1):
    return sampling.plan_cohorts(
        client_ids=[f"client{i}" for i in range(population)],
        clients_per_round=clients_per_round,
        rounds=rounds,
        sampling=tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations),
        seed=seed,
    )


def _rounds_of_each_client(plan):
    taken = {}
    for t in range(plan.rounds):
        for client_id in plan.cohort(t):
            taken.setdefault(client_id, []).append(t)
    return taken


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
    for t in range(plan.rounds):
        assert len(set(plan.cohort(t))) == setting["clients_per_round"]
    taken = _rounds_of_each_client(plan)
    most = max(len(rounds) for rounds in taken.values())
    apart = [later - sooner for rounds in taken.values() for sooner, later in itertools.pairwise(rounds)]
    assert most <= setting["max_participations"]
    assert min(apart, default=99) >= setting["min_sep"]
    assert plan.observed() == sampling.ObservedParticipation(min_sep=min(apart, default=None), max_participations=most)


@hypothesis.settings(derandomize=True, max_examples=400, deadline=None, database=None)
@hypothesis.given(**_SETTINGS)
def test_every_remedy_that_a_refusal_names_does_fit(seed, **setting):
    try:
        _plan(**setting, seed=seed)
    except InputValueError as error:
        remedies = str(error).split("; ")[1]
        if remedies.startswith("no cohort fits"):
            assert not any(_feasible(**{**setting, "clients_per_round": m}) for m in range(1, 7))
            return
        for remedy in remedies.removesuffix(" would fit.").split(" or "):
            changes = {name: int(value) for name, value in (part.split("=") for part in remedy.split(" with "))}
            _plan(**{**setting, **changes}, seed=seed)


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


def test_stackoverflow_scale_is_planned_in_seconds():
    plan = _plan(population=342_477, clients_per_round=100, rounds=2052, min_sep=342, max_participations=6)
    assert plan.observed().within(tff_mf.MinSep(min_sep=342, max_participations=6))


def test_observed_of_the_rounds_that_were_run():
    plan = _plan(population=6, clients_per_round=2, rounds=9, min_sep=3, max_participations=3)
    assert plan.observed(rounds=3) == sampling.ObservedParticipation(min_sep=None, max_participations=1)
    assert plan.observed() == sampling.ObservedParticipation(min_sep=3, max_participations=3)


def test_two_numbers_do_not_show_that_clients_keep_their_place_in_an_epoch():
    fixed = tff_mf.FixedEpoch(min_sep=3, max_participations=2)
    assert not sampling.ObservedParticipation(min_sep=4, max_participations=2).within(fixed)
    assert not sampling.ObservedParticipation(min_sep=3, max_participations=2).within(fixed)
    assert sampling.ObservedParticipation(min_sep=None, max_participations=1).within(fixed)
    arguments = {"client_ids": list("abcdef"), "participation": fixed}
    assert sampling.CohortPlan(**arguments, indices=np.array([[0], [1], [2], [0]])).participation == fixed
    with pytest.raises(InputValueError, match="a multiple of it apart and 4 at most"):
        sampling.CohortPlan(**arguments, indices=np.array([[0], [1], [2], [3], [0]]))


def test_bad_clients_and_rounds_are_refused():
    """Wrong values of other arguments are those of tests/fuzz/test_api.py."""
    for clients in ([], "abc", ["a", "a"], ["a", 1]):
        with pytest.raises((InputValueError, InputTypeError), match="client_ids"):
            sampling.plan_cohorts(
                client_ids=clients, clients_per_round=1, rounds=1, sampling=tff_mf.SingleParticipation(), seed=0
            )
    for number in (10, -1):
        with pytest.raises(InputValueError, match=f"round={number}"):
            _plan().cohort(number)


@pytest.mark.parametrize("indices", [[[0], [0]], [[0, 0]], [[0], [9]], [[-2]], [[0.5]], [[]], [0]])
def test_a_plan_made_by_hand_is_checked(indices):
    with pytest.raises(InputValueError, match="indices"):
        sampling.CohortPlan(
            client_ids=("a", "b"),
            participation=tff_mf.MinSep(min_sep=2, max_participations=1),
            indices=np.array(indices),
        )


def test_cohorts_cannot_be_changed_afterwards():
    with pytest.raises(ValueError):
        _plan().indices[0, 0] = 0


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


def test_the_source_refuses_another_size_of_cohort_without_using_up_a_round(client_data):
    iterator = sampling.MinSepDataSource(client_data, _plan()).iterator()
    for k in (1, 3, 0, -2, 2.0, "2", True):
        with pytest.raises((InputValueError, InputTypeError), match="k="):
            iterator.select(k)
    assert iterator.next_round == 0


def test_the_source_preprocesses(client_data):
    import tensorflow as tf

    source = sampling.MinSepDataSource(client_data, _plan(), lambda dataset: dataset.map(lambda e: e["x"] + 1).batch(2))
    assert str(source.federated_type) == "{int32[?]*}@CLIENTS"
    first = source.iterator().select()[0]
    assert isinstance(first, tf.data.Dataset)
    i = source.plan.indices[0, 0]
    assert [batch.numpy().tolist() for batch in first] == [[i + 1, i + 101], [i + 201]]


def test_the_way_to_a_dataset_is_traced_once(client_data):
    traces = []

    def preprocess(dataset):
        traces.append(1)
        return dataset

    iterator = sampling.MinSepDataSource(client_data, _plan(rounds=9), preprocess).iterator()
    iterator.select()
    before = len(traces)
    for _ in range(8):
        iterator.select()
    assert len(traces) == before


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


def test_the_source_refuses_a_plan_for_other_clients(client_data):
    with pytest.raises(InputValueError, match="lacks 3 clients"):
        sampling.MinSepDataSource(client_data, _plan(population=15))
    with pytest.raises(InputTypeError, match="client_data=7"):
        sampling.MinSepDataSource(7, _plan())
    with pytest.raises(InputTypeError, match="plan=None"):
        sampling.MinSepDataSource(client_data, None)
    with pytest.raises(InputValueError, match="first_round=11"):
        sampling.MinSepDataSource(client_data, _plan()).iterator(first_round=11)
