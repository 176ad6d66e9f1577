"""Audits: right noise passes, and noise that is wrong on purpose is found out, or refused."""

import itertools
import json
import math
import pathlib

import numpy as np
import pytest
import run_folders
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.reports import auditing
from tff_mf.experiments.reports.auditing import _audit
from tff_mf.mechanisms import registry

from .shared import invoke, result_of

_OF_SETTING = ("coordinates", "noise_scale", "adjacency")
SCHEMA = tff_mf.MinSep(min_sep=5, max_participations=3)
B100 = tff_mf.BLT.production("b100")


def audit(**changes):
    more = {"coordinates": 8192, **{name: changes.pop(name) for name in _OF_SETTING if name in changes}}
    planned = {"mechanism": B100, "rounds": 20, "sampling": SCHEMA, "noise_multiplier": 4.0, **changes}
    return auditing.audit(auditing.Setting(plan=tff_mf.plan(delta=1e-6, clients_per_round=1, **planned), **more))


def failed(found):
    return {test.name for test in found.tests if not test.passed}


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize(
    "mechanism",
    [
        B100,
        tff_mf.Identity(),
        tff_mf.Tree(20),
        tff_mf.Tree(20, variant="online"),
        tff_mf.Tree(20, variant="vanilla"),
        tff_mf.BandedToeplitz(column=[1.0, 0.5, 0.25]),
        tff_mf.Dense(matrix=np.tril(np.full((20, 20), 0.1)) + np.eye(20)),
    ],
    ids=lambda mechanism: mechanism.kind,
)
def test_right_noise_passes(mechanism):
    found = audit(mechanism=mechanism)
    assert failed(found) == set()
    assert found.passed
    assert len(found.tests) == 8
    assert 0.5 * found.claimed_epsilon < found.canaries.epsilon_gaussian <= found.claimed_epsilon
    assert found.control.epsilon_gaussian > found.claimed_epsilon


@pytest.mark.parametrize(("rounds", "samples"), [(20, 16384), (4096, 4096), (2**15, 1024)])
def test_longer_runs_are_audited_in_fewer_coordinates(rounds, samples):
    own = {"mechanism": tff_mf.Identity(), "rounds": rounds, "sampling": tff_mf.SingleParticipation()}
    plan = tff_mf.plan(**own, delta=1e-6, clients_per_round=1, noise_multiplier=4.0)
    assert auditing.Setting(plan=plan).samples == samples


def test_half_of_the_noise_is_found_out():
    found = audit(noise_scale=0.5)
    assert {"variance", "canaries"} <= failed(found)
    assert found.canaries.epsilon_gaussian > found.claimed_epsilon


def test_a_fixed_seed_is_found_out():
    assert failed(audit(insecure_seed=3)) == {"repeats", "fresh steps"}


def rows(seed, rounds=12, coordinates=4096):
    return np.random.default_rng(seed).normal(size=(rounds, coordinates))


def coming_back(rows, of, at, by):
    """Rows of which one is another row, shifted."""
    again = rows.copy()
    again[at] = np.roll(of, by)
    return again


NOISE = 3.0 * np.linalg.solve(B100.encoder(12), rows(1))
LAPLACE = np.random.default_rng(1).laplace(scale=2**-0.5, size=(12, 4096))
# A test, noise that passes it, and noise that is wrong on purpose, with a text of what is found.
WRONG = {
    "another mechanism": (
        lambda encoder: _audit.correlation(_audit.whitened(NOISE, encoder, 3.0)),
        B100.encoder(12),
        {"": tff_mf.BLT(theta=[0.5], omega=[0.9]).encoder(12), "correlation": np.eye(12)},
    ),
    "another shape": (_audit.normality, rows(1), {"": LAPLACE}),
    "a row that comes back": (
        lambda pair: _audit.repeats(*pair),
        (rows(1), rows(2)),
        {
            "rounds 3 and 8": (coming_back(rows(1), rows(1)[2], 7, 1000), rows(2)),
            "another stream": (rows(1), coming_back(rows(2), rows(1)[4], 5, -17)),
        },
    ),
    "noise of a state twice": (
        lambda pair: _audit.fresh_steps(*pair, 1.0),
        rows(1)[:2],
        {"": (rows(1)[0], rows(1)[0])},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_noise_that_is_wrong_is_found_out(name):
    test, right, wrong = WRONG[name]
    assert test(right).passed
    for text, noise in wrong.items():
        found = test(noise)
        assert not found.passed
        assert text in found.text


def test_what_only_one_test_can_find_passes_the_others():
    assert _audit.variance(rows(1)).passed
    assert _audit.correlation(coming_back(rows(1), rows(1)[2], 7, 1000)).passed


schemas = st.builds(
    lambda kind, b, k: kind(min_sep=b, max_participations=min(k, 10 // b + 1)),
    st.sampled_from([tff_mf.MinSep, tff_mf.FixedEpoch]),
    st.integers(1, 5),
    st.integers(1, 4),
)
rng = np.random.default_rng(7)
MECHANISMS = [
    B100,
    tff_mf.Identity(),
    tff_mf.Tree(11),
    tff_mf.BandedToeplitz(column=[1.0, -0.5, 0.25]),
    tff_mf.Dense(matrix=np.tril(rng.normal(size=(11, 11)), -1) + np.eye(11)),
]


@given(st.sampled_from(MECHANISMS), schemas)
def test_nobody_found_moves_further_than_the_sensitivity(mechanism, schema):
    reached, pattern = auditing.reached_sensitivity(mechanism.encoder(11), schema)
    found = tff_mf.explain_sensitivity(mechanism, 11, schema)
    assert reached <= found.value * (1 + 1e-9)
    assert tuple(pattern) in set(schema.patterns(11))
    if found.exact:
        assert reached == pytest.approx(found.value, rel=1e-6)


@pytest.mark.parametrize("mechanism", [B100, tff_mf.Tree(300), tff_mf.Identity()], ids=lambda each: each.kind)
@pytest.mark.parametrize("kind", [tff_mf.MinSep, tff_mf.FixedEpoch])
def test_the_search_finds_the_worst_client_of_a_long_run(mechanism, kind):
    schema = kind(min_sep=40, max_participations=5)
    reached, pattern = auditing.reached_sensitivity(mechanism.encoder(300), schema)
    assert all(late - soon >= 40 for soon, late in itertools.pairwise(pattern))
    assert 0.97 * tff_mf.sensitivity(mechanism, 300, schema) <= reached
    assert reached <= tff_mf.sensitivity(mechanism, 300, schema) * (1 + 1e-9)


def test_a_sensitivity_that_is_too_small_is_found_out(monkeypatch):
    monkeypatch.setattr(_audit, "reached_sensitivity", lambda *arguments: (200.0, (0, 3)))
    (test,) = (each for each in audit().tests if each.name == "sensitivity")
    assert not test.passed
    assert "rounds 1, 4" in test.text


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(0.05, 4))
def test_canaries_never_show_more_than_is_true(seed, mu):
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(2, 8192))
    found = auditing.canary_bound(scores[0] + mu, scores[1], threshold=mu / 2, delta=1e-6, confidence=0.9999)
    truth = tff_mf.Guarantee(mu=mu)
    assert found.mu <= mu
    assert found.epsilon <= truth.epsilon(1e-6)
    assert found.epsilon_gaussian <= truth.epsilon(1e-6)
    assert found.mu >= 0.8 * mu - 0.1
    assert found.epsilon_gaussian <= found.at_most


def test_canaries_that_all_say_the_same_show_something_finite():
    many = np.ones(1000)
    perfect = auditing.canary_bound(many, -many, threshold=0, delta=1e-6)
    assert 3 < perfect.epsilon < 7
    assert perfect.epsilon_gaussian == pytest.approx(perfect.at_most)
    nothing = auditing.canary_bound(-many, many, threshold=0, delta=1e-6)
    assert (nothing.epsilon, nothing.mu) == (0, 0)


def test_the_command_audits_an_artifact():
    arguments = ["audit", "identity", "--rounds", 12, "--min-sep", 4, "--max-participations", 3, "--coordinates", 2048]
    found = result_of(*arguments)
    assert found["passed"]
    assert found["canaries"]["epsilon_gaussian"] <= found["claimed_epsilon"]
    assert invoke(*arguments, "--noise-scale", 0.5).exit_code == 1


RUN = {"mechanism": tff_mf.Tree(6), "rounds": 20, "restart_every": 6, "coordinates": 2048}


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize(("adjacency", "count_stddev"), [("zero-out", None), ("zero-out", 3.0), ("replace-one", 3.0)])
def test_right_noise_of_a_restarted_run_passes_for_what_is_claimed(adjacency, count_stddev):
    found = audit(**RUN, adjacency=adjacency, adaptive_count_stddev=count_stddev)
    assert failed(found) == set()
    sums = tff_mf.guarantee(tff_mf.Tree(6), 20, SCHEMA, noise_multiplier=4.0, restart_every=6, adjacency=adjacency).mu
    counts = 0.0 if count_stddev is None else 3**0.5 / 3.0
    assert found.claimed_epsilon == pytest.approx(tff_mf.Guarantee(mu=np.hypot(sums, counts)).epsilon(1e-6), rel=1e-9)
    assert np.hypot(sums, counts) - 0.3 < found.canaries.mu <= np.hypot(sums, counts)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_count_that_is_claimed_to_move_by_a_half_is_found_out(monkeypatch, adjacency):
    """What was claimed before: the sensitivity of a client that is absent, which is no neighbour here."""

    def absent(rounds, participation, *, count_stddev, adjacency, grid):
        return tff_mf.Guarantee(mu=participation.max_participations**0.5 / 2 / count_stddev, adjacency=adjacency)

    monkeypatch.setattr(tff_mf.accounting, "adaptive_clipping_guarantee", absent)
    assert failed(audit(**RUN, adaptive_count_stddev=0.5, adjacency=adjacency)) == {"canaries"}


def test_counts_with_half_of_their_noise_are_found_out(monkeypatch):
    from tff_mf.experiments.reports.auditing import _emitted

    emit = _emitted.emit

    def less(mechanism, rounds, **more):
        return emit(mechanism, rounds, **more) * (0.5 if mechanism == tff_mf.Identity() else 1.0)

    monkeypatch.setattr(_emitted, "emit", less)
    assert {"counts: variance", "counts: normality"} <= failed(audit(**RUN, adaptive_count_stddev=0.5))


def test_the_audit_of_a_run_is_of_all_that_it_claims(tmp_path):
    own = {"rounds": 18, "sampling": SCHEMA, "clients_per_round": 3, "noise_multiplier": 4.0}
    privacy = run_folders.plan(mechanism=tff_mf.Tree(6), **own)
    more = {"restart_every": 6, "adaptive_count_stddev": 2.0, "adjacency": "replace-one"}
    reports.write_record(tmp_path, privacy, **more)
    found = result_of("audit", tmp_path, "--coordinates", 2048)
    planned = reports.build(tmp_path, realised=False)["accountant"]["planned"]["epsilon"]
    assert (found["passed"], found["adjacency"]) == (True, "replace-one")
    assert found["claimed_epsilon"] == pytest.approx(planned, rel=1e-9)
    (tmp_path / "audit.json").write_text(json.dumps(found))
    canaries = found["canaries"]
    shown = reports.build(tmp_path, realised=False)["audit"]["shown_epsilon"]
    assert shown == max(canaries["epsilon"], canaries["epsilon_gaussian"]) > min(canaries.values())
    # Of half of the noise such an audit says what the whole noise says: it could not fail.
    setting = reports.audit_setting(reports.read_record(tmp_path), privacy.mechanism)
    assert auditing.disagreements(found, setting) == []
    values = {test["name"]: test for test in found["tests"]}
    values["control"]["value"] = values["canaries"]["value"]
    [problem] = auditing.disagreements({**found, "control": canaries}, setting)
    assert "control" in problem


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("noise_multiplier", [1e4, 100.0, 10.0, 1.0])
def test_a_sound_run_with_a_small_epsilon_passes(noise_multiplier):
    """What canaries cannot show of half of the noise is no fault of the noise; half of it is found all the same."""
    about = {
        "mechanism": tff_mf.Identity(),
        "rounds": 4,
        "sampling": tff_mf.SingleParticipation(),
        "noise_multiplier": noise_multiplier,
        "coordinates": 4096,
    }
    found = audit(**about)
    assert [test.text for test in found.tests if not test.passed] == []
    told = "nothing follows" not in found.tests[-1].text
    assert told == (noise_multiplier < 10)
    assert not audit(**about, noise_scale=0.5).passed


PLUGIN = pathlib.Path(__file__).parents[2] / "docs" / "not_adaptive.py"
DIMENSION, SIGMA = 4096, 4.0


@pytest.fixture(autouse=True)
def registered_for_one_test(monkeypatch):
    monkeypatch.setattr(registry._kinds, "_KINDS", dict(registry._kinds._KINDS))


def test_an_audit_refuses_it():
    arguments = ["--rounds", "20", "--min-sep", "1", "--max-participations", "2", "--coordinates", str(DIMENSION)]
    found = invoke("--plugin", PLUGIN, "audit", "not-adaptive", *arguments, catch_exceptions=True)
    # The command prints an InputError in one line, with exit status 2.
    assert isinstance(found.exception, tff_mf.InputError)
    assert "the recursion of kind 'not_adaptive' is" in str(found.exception)


def noise(seed):
    """The two rows of D.1 by its definition, float64 `[2, DIMENSION]`."""
    first, second = np.random.default_rng(seed).normal(size=(2, DIMENSION))
    share = 5 * math.sqrt(math.log(DIMENSION)) / DIMENSION
    direction = first / np.linalg.norm(first)
    return np.stack([first, second - (1 - share) * (second @ direction) * direction])


def test_the_statistics_of_fixed_directions_do_not_find_it():
    rows, others = noise(1), noise(2)
    tests = [_audit.variance(rows), _audit.correlation(rows), _audit.normality(rows)]
    assert all(test.passed for test in [*tests, _audit.repeats(rows, others)])


def test_an_adaptive_adversary_is_always_right():
    """It submits x₂ = ±a / ‖a‖: the sign of ⟨a, b⟩ tells which, where independent noise of σ = 4 leaves 60 %."""
    right = independent = 0
    for seed in range(60):
        for side in (1, -1):
            first, second = SIGMA * noise([seed, side + 1])
            direction = first / np.linalg.norm(first)
            right += np.sign((side * direction + second) @ direction) == side
            fresh = SIGMA * np.random.default_rng([seed, side + 1, 7]).normal()
            independent += np.sign(side + fresh) == side
    assert right == 120
    # P(N(1, σ²) > 0), within six standard deviations.
    expected = stats.norm.cdf(1 / SIGMA)
    assert abs(independent - 120 * expected) < 6 * math.sqrt(120 * expected * (1 - expected))
