"""Each kind of sampling keeps what it guarantees, draws as it says, and refuses what it cannot keep."""

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
from tff_mf.base.errors import InputValueError
from tff_mf.experiments import sampling
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.sampling import PARAMETERS, SAMPLINGS, SECRET, SamplingSettings, parameters_of
from tff_mf.problem.draws import SeededDraws

from .shared import drawn


def made(sampler, population=12, clients_per_round=2, rounds=10, **more):
    """The cohorts of a population by a sampling, from a seed unless a secret is given."""
    clients = [f"client{number}" for number in range(population)]
    return sampling.plan_cohorts(
        sampling=sampler,
        client_ids=clients,
        rounds=rounds,
        clients_per_round=clients_per_round,
        **(more or {"seed": 1}),
    )


def min_sep(b, k):
    return tff_mf.MinSep(min_sep=b, max_participations=k)


def rounds_of_clients(plan):
    taken = {}
    for t in range(plan.rounds):
        cohort = plan.cohort(t)
        assert len(set(cohort)) == len(cohort)
        for client in cohort:
            taken.setdefault(client, []).append(t)
    return taken


def test_a_secret_outlasts_a_run_and_is_seen_nowhere(tmp_path):
    secret, sampler, path = sampling.CohortSecret.drawn(), tff_mf.BallsInBins(groups=6), tmp_path / "cohorts.key"
    secret.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret.key.hex() not in repr(secret)
    assert "key" not in repr(secret)
    assert sampling.CohortSecret.load(path, run=secret.run) == secret
    plan = made(sampler, 600, 100, 12, secret=secret)
    sizes = np.array([len(plan.cohort(t)) for t in range(6)])
    assert np.abs(sizes - 100).max() < 6 * math.sqrt(600 * 5 / 36)
    with pytest.raises(InputValueError, match="exists"):
        sampling.CohortSecret.drawn().save(path)
    # Another run cannot have the same groups: under another name, the key leads to groups that agree by chance only.
    other = "2" * 32
    with pytest.raises(InputValueError, match="secret of another run than run='2222"):
        sampling.CohortSecret.load(path, run=other)
    names = [f"client{number}" for number in range(6000)]
    both = [
        sampling.CohortSecret(run=run, key=secret.key).draws(names, sampler).places(np.arange(6000), 6)
        for run in (secret.run, other)
    ]
    assert np.mean(both[0] == both[1]) == pytest.approx(1 / 6, abs=0.04)


def test_misuse_of_a_secret_is_refused(tmp_path):
    secret, two = sampling.CohortSecret.drawn(), "2" * 32
    for name in ("", secret.run[:-1] + "G", secret.run + "\n"):
        with pytest.raises(InputValueError, match="random identifier"):
            sampling.CohortSecret.drawn(run=name)
    for content in (f'another file\n"{two}"\n'.encode() + bytes(32), f'tff-mf secret of cohorts\n"{two}"\n'.encode()):
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(InputValueError, match="no secret of cohorts"):
            sampling.CohortSecret.load(tmp_path / "key", run=two)
    for wrong in ({"seed": None}, {"seed": 1, "secret": secret}):
        with pytest.raises(InputValueError, match="either seed"):
            made(tff_mf.BallsInBins(groups=2), **wrong)


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_one_seed_or_secret_gives_one_plan_by_the_object_that_is_accounted_for(kind):
    sampler = drawn(kind, min_sep=3, max_participations=12, groups=3).drawn_by(population=60, clients_per_round=5)
    secrets = ({"secret": sampling.CohortSecret.drawn()} for _ in range(2))
    for one, other in (({"seed": 1}, {"seed": 2}), secrets):
        digests = [made(sampler, 60, 5, 12, **source).digest for source in (one, one, other)]
        assert digests[0] == digests[1] != digests[2]
    indices = sampler.cohorts(60, 12, clients_per_round=5, draws=SeededDraws(1))
    assert np.array_equal(indices, made(sampler, 60, 5, 12, seed=1).indices)
    few = drawn(kind, min_sep=2 if kind == "b-min-sep" else 1, max_participations=30, groups=1)
    with pytest.raises(InputValueError, match="clients"):
        made(few.drawn_by(population=3, clients_per_round=4), 3, 4, 30)


@pytest.mark.parametrize("word", SAMPLINGS)
def test_a_word_has_the_fields_of_its_sampling_and_refuses_others_by_name(word):
    chosen = drawn(word)
    given, made_by = chosen.parameters, chosen.drawn_by(population=100, clients_per_round=5)
    assert chosen.sampler == f"tff_mf.{type(made_by).__name__}"
    assert chosen.is_secret == isinstance(made_by, accounting.SecretSampling) == (word in SECRET)
    assert all(getattr(made_by, name) == value for name, value in given.items() if hasattr(made_by, name))
    assert {*parameters_of(word)} - {"max_participations"} <= {field.name for field in dataclasses.fields(made_by)}
    for name in {*PARAMETERS} - {*parameters_of(word)}:
        with pytest.raises(InputValueError, match=rf"^{name}=3 does not go with sampling='{word}': leave it out"):
            SamplingSettings(sampling=word, **given, **{name: 3})
    for name in given:
        with pytest.raises(InputValueError, match=rf"^{name} missing, which sampling='{word}' needs"):
            SamplingSettings(sampling=word, **{other: given[other] for other in given if other != name})
        with pytest.raises(InputValueError, match=rf"{name}=0"):
            SamplingSettings(sampling=word, **{**given, name: 0})
    # What run.json has is the same sampling.
    settings = RunSettings(rounds=12, clients_per_round=2, delta=1e-6, **msgspec.structs.asdict(chosen))
    assert typed.convert(json.loads(msgspec.json.encode(settings)), RunSettings).sampling_settings() == chosen


def _feasible(population, clients_per_round, rounds, b, k):
    return population >= clients_per_round * min(b, rounds) and population * k >= rounds * clients_per_round


@hypothesis.settings(derandomize=True, max_examples=1000, deadline=None, database=None)
@hypothesis.given(
    st.integers(1, 30), st.integers(1, 6), st.integers(1, 24), st.integers(1, 12), st.integers(1, 8), st.integers(0, 3)
)
def test_a_plan_is_made_whenever_one_exists_and_never_breaks_the_schema(population, size, rounds, b, k, seed):
    if not _feasible(population, size, rounds, b, k):
        with pytest.raises(InputValueError):
            made(min_sep(b, k), population, size, rounds, seed=seed)
        return
    plan = made(min_sep(b, k), population, size, rounds, seed=seed)
    assert [len(plan.cohort(t)) for t in range(plan.rounds)] == [size] * rounds
    taken = rounds_of_clients(plan)
    most = max(len(of_client) for of_client in taken.values())
    apart = [later - sooner for of_client in taken.values() for sooner, later in itertools.pairwise(of_client)]
    assert most <= k
    assert min(apart, default=99) >= b


@pytest.mark.parametrize("indices", [[[0], [0]], [[0, 0]]])
def test_no_plan_breaks_its_schema(indices):
    with pytest.raises(InputValueError, match="indices"):
        sampling.CohortPlan(client_ids=("a", "b"), participation=min_sep(2, 1), indices=np.array(indices))
