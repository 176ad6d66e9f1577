"""Whatever a client did, a report states no less than that client could move, and says what no schema has."""

import itertools
import re

import numpy as np
import pytest
import run_folders
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments import sampling

from .shared import gaussian_delta, moved, violated

SIGMA = 5.0
DELTA = 1e-6
rng = np.random.default_rng(3)
ANY = np.tril(rng.normal(size=(12, 12)), -1) + np.diag(rng.uniform(0.5, 2, 12))


def is_of(schema, pattern):
    """The definitions, by themselves: of appendix C.2 of the BLT paper, and of Choquette-Choo et al. (2023)."""
    b, k = schema.min_sep, schema.max_participations
    if isinstance(schema, tff_mf.FixedEpoch):
        return len(set(pattern)) == len(pattern) and any(
            set(pattern) <= {j + index * b for index in range(k)} for j in range(max(pattern, default=0) + 1)
        )
    return len(pattern) <= k and all(abs(s - t) >= b for s, t in itertools.combinations(pattern, 2))


schemas = st.builds(
    lambda kind, b, k: kind(min_sep=b, max_participations=k),
    st.sampled_from([tff_mf.MinSep, tff_mf.FixedEpoch]),
    st.integers(1, 5),
    st.integers(1, 4),
)


@st.composite
def runs(draw):
    """A schema that fits 12 rounds, rounds that ran, and the rounds of one client."""
    schema = draw(schemas.filter(lambda each: (each.max_participations - 1) * each.min_sep < 12))
    ran = draw(st.integers(1, 12))
    within = st.sampled_from([each for each in schema.patterns(ran) if each])
    anything = st.sets(st.integers(0, ran - 1), min_size=1, max_size=5).map(sorted).map(tuple)
    return schema, ran, draw(within | anything)


@given(schemas, st.lists(st.integers(0, 14), max_size=5))
def test_a_schema_allows_its_own_patterns_and_no_other(schema, rounds):
    """Of a round that is named twice, none does."""
    assert schema.allows(rounds) == is_of(schema, tuple(rounds))
    assert schema.allows(each + 7 for each in rounds) == is_of(schema, tuple(rounds))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs())
@pytest.mark.parametrize("mechanism", [tff_mf.Dense(matrix=ANY), tff_mf.Tree(12)], ids=["dense", "tree"])
def test_a_headline_is_never_below_what_a_client_could_move(tmp_path_factory, mechanism, case):
    schema, ran, pattern = case
    rounds = [["a"] if t in pattern else [f"b{t}"] for t in range(ran)]
    privacy = run_folders.plan(mechanism=mechanism, rounds=12, sampling=schema, noise_multiplier=SIGMA, delta=DELTA)
    folder = tmp_path_factory.mktemp("run") / "run"
    report = run_folders.finished(folder, rounds=rounds, planned=rounds, privacy=privacy)
    if not is_of(schema, pattern):
        assert violated(report) == {"participation"}
        assert "ε≤" not in report.headline
        return
    assert violated(report) == set()
    stated = float(re.search(r"ε≤([0-9.]+)", report.headline)[1])
    mu = moved(mechanism.cast_to_float32().encoder(12)[:ran, :ran], pattern) / SIGMA
    assert gaussian_delta(stated, mu) <= DELTA
    if ran < 12:
        for name in ("planned", "realised"):
            assert stated >= getattr(report, name).epsilon


def test_a_schema_of_the_observed_numbers_refutes_nothing(tmp_path):
    """Of a run of over 4096 rounds only b and k are looked at, and of fixed epochs the step: rounds b apart anywhere
    move more."""
    schema = tff_mf.FixedEpoch(min_sep=3, max_participations=3)
    rounds = [["a"] if t in (1, 4, 7) else [f"b{t}"] for t in range(4100)]
    mechanism = tff_mf.BandedToeplitz(column=[1, 0, 0, 0, 0.9])
    privacy = run_folders.plan(sampling=schema, mechanism=mechanism, rounds=4100)
    report = run_folders.finished(tmp_path / "run", rounds=rounds, planned=rounds, privacy=privacy)
    planned, realised = (getattr(report, name).mu for name in ("planned", "realised"))
    assert realised == pytest.approx(planned, rel=1e-12)
    assert violated(report) == set()
    # The same log under a claim of min-sep, for which rounds may be b apart anywhere.
    schema = tff_mf.MinSep(min_sep=3, max_participations=3)
    apart = run_folders.plan(sampling=schema, mechanism=mechanism, rounds=4100)
    report = run_folders.finished(tmp_path / "apart", rounds=rounds, planned=rounds, privacy=apart)
    assert report.realised.mu > planned * 1.001
    assert violated(report) == set()


@given(st.lists(st.sets(st.integers(0, 11), max_size=4).map(sorted), min_size=1, max_size=3), schemas)
def test_a_plan_of_cohorts_is_made_exactly_if_every_pattern_is_of_its_schema(patterns, schema):
    indices = np.full((12, len(patterns)), -1)
    for client, rounds in enumerate(patterns):
        indices[rounds, client] = client
    clients = tuple("abc"[: len(patterns)])
    try:
        sampling.CohortPlan(client_ids=clients, participation=schema, indices=indices)
        planned = True
    except tff_mf.InputError:
        planned = False
    assert planned == all(is_of(schema, tuple(each)) for each in patterns)
