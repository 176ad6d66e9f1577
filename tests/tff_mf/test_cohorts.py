"""Cohorts follow the law that the theorem of their sampling assumes, jointly for several clients."""

import collections
import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

import tff_mf
from tests.tff_mf import secret_rounds_oracle as oracle
from tff_mf.problem.draws import SeededDraws, SystemDraws

# A test of random numbers from the system fails once in so many runs of it.
RARE = 1e-12


def law_of(histories, chances):
    """Returns the chances of the patterns of a client, of those that the oracle of ε has."""
    return {tuple(row): chance for row, chance in zip(histories.astype(int).tolist(), chances, strict=True)}


def product(*laws):
    """Returns the joint law of independent clients."""
    return {
        tuple(pattern for pattern, _ in each): float(np.prod([share for _, share in each]))
        for each in itertools.product(*(law.items() for law in laws))
    }


def joint(sampling, clients, rounds):
    """Returns the joint law of all clients; those of two groups that take turns have coins of probability ½."""
    first, *second = [law_of(*each) for each in oracle.laws(sampling, rounds)]
    if not second:
        return product(*[first] * clients)
    law = collections.Counter()
    for chosen in itertools.combinations(range(4), 2):
        for patterns, share in product(*[first if client in chosen else second[0] for client in range(4)]).items():
            law[patterns] += share / 6
    return law


# With numbers of clients and rounds.
SETTINGS = {
    "Poisson": (tff_mf.Poisson(population=3, clients_per_round=1), 3, 2),
    "CyclicPoisson": (tff_mf.CyclicPoisson(groups=2, population=4, clients_per_round=1), 4, 3),
    "BallsInBins": (tff_mf.BallsInBins(groups=3), 2, 4),
    "BMinSep": (tff_mf.BMinSep(min_sep=3, probability=0.4), 2, 4),
}


def excess(sampling, clients, rounds, draws, runs):
    """Returns χ² of the joint patterns of all clients in many runs, over the quantile that is exceeded so rarely."""
    counts, law = collections.Counter(), joint(sampling, clients, rounds)
    for _ in range(runs):
        cohorts = sampling.cohorts(clients, rounds, draws=draws)
        present = np.zeros((clients + 1, rounds), int)
        present[cohorts, np.arange(rounds)[:, np.newaxis]] = 1
        counts[tuple(map(tuple, present[:clients].tolist()))] += 1
    likely = {pattern: share * runs for pattern, share in law.items() if share}
    assert counts.keys() <= likely.keys()
    found = sum((counts[pattern] - expected) ** 2 / expected for pattern, expected in likely.items())
    return found / chi2.isf(RARE, len(likely) - 1)


@pytest.mark.parametrize("runs", [4000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("draws", [SeededDraws(7), SystemDraws()], ids=["seeded", "of the system"])
@pytest.mark.parametrize("name", SETTINGS)
def test_cohorts_follow_the_law_that_is_accounted_for(name, draws, runs):
    assert excess(*SETTINGS[name], draws, runs) < 1


def test_the_sampling_and_the_cohorts_have_one_set_of_numbers():
    """What the accountant is given cannot differ from what the sampler draws."""
    poisson = tff_mf.Poisson(population=30, clients_per_round=3)
    with pytest.raises(tff_mf.InputError, match="clients=40 must be population=30"):
        poisson.cohorts(40, 5)
    with pytest.raises(tff_mf.InputError, match="clients_per_round=4"):
        poisson.cohorts(30, 5, clients_per_round=4)
    with pytest.raises(tff_mf.InputError, match="clients_per_round is missing"):
        tff_mf.MinSep(min_sep=2, max_participations=2).cohorts(30, 4)
    with pytest.raises(tff_mf.InputError, match="too few"):
        tff_mf.BallsInBins(groups=4, clients_per_round=10).cohorts(30, 8)


def test_a_schema_from_outside_is_not_drawn_by_the_rules_of_another():
    class Weekly(tff_mf.MinSep):
        def _has(self, pattern):
            return all(t % 7 == 0 for t in pattern) and super()._has(pattern)

    with pytest.raises(tff_mf.InputError, match="draw your own"):
        Weekly(min_sep=7, max_participations=2).cohorts(30, 14, clients_per_round=2)


def test_a_place_that_would_be_more_likely_is_drawn_again(monkeypatch):
    words = iter([[2**64 - 1, 4], [7]])
    draws = SystemDraws()
    monkeypatch.setattr(draws, "words", lambda count: np.array(next(words), np.uint64))
    assert draws.places(np.arange(2), 3).tolist() == [1, 1]


@pytest.mark.parametrize("rounds", [1, 7, 10])
def test_rounds_of_every_client_are_a_pattern_of_the_schema(rounds):
    """Of as many clients as are needed, and of some more, however few participations are left."""
    for min_sep, most, each in itertools.product((1, 2, 3), (1, 2, 3), (1, 2)):
        schema = tff_mf.MinSep(min_sep=min(min_sep, rounds), max_participations=min(most, (rounds - 1) // min_sep + 1))
        least = max(schema.min_sep * each, -(-rounds * each // schema.max_participations))
        for clients in (least, least + 1, 2 * least + 3):
            cohorts = schema.cohorts(clients, rounds, clients_per_round=each)
            assert len(cohorts) == rounds
            for client in range(clients):
                assert schema.allows([t for t, cohort in enumerate(cohorts) if client in cohort])


@given(*[st.integers(1, most) for most in (40, 12, 8, 6, 4)])
def test_cohorts_that_do_not_exist_are_refused_with_changes_after_which_they_do(clients, rounds, each, min_sep, most):
    most = min(most, (rounds - 1) // min_sep + 1)
    given = {"clients_per_round": each, "min_sep": min_sep, "max_participations": most}

    def cohorts(clients_per_round, **schema):
        return tff_mf.MinSep(**schema).cohorts(clients, rounds, clients_per_round=clients_per_round)

    if clients >= max(min(min_sep, rounds) * each, -(-rounds * each // most)):
        assert len(cohorts(**given)) == rounds
        return
    with pytest.raises(tff_mf.InputError, match=f"the population has {clients}") as refused:
        cohorts(**given)
    said = str(refused.value).split("; ")[1]
    assert ("no cohort fits" in said) == (clients < min(each, max(min(min_sep, rounds), -(-rounds // most))))
    for change in said.removesuffix(" would fit.").split(" or ") if "would fit" in said else []:
        changed = given | {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", change)}
        assert len(cohorts(**changed)) == rounds, change


def test_an_epoch_may_be_as_short_as_clients_wait():
    cohorts = tff_mf.FixedEpoch(min_sep=3, max_participations=4).cohorts(6, 12, clients_per_round=2)
    assert [sorted(np.ravel(cohorts[begin : begin + 3])) for begin in range(0, 12, 3)] == [list(range(6))] * 4
