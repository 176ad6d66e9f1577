"""The plan of a run: sampling and accountant are one object, and the guarantee is that of what runs."""

import dataclasses

import pytest

import tff_mf

SCHEMA = tff_mf.MinSep(min_sep=10, max_participations=3)
SETTING = {"mechanism": tff_mf.Identity(), "rounds": 30, "delta": 1e-6, "clients_per_round": 10}
POISSON = tff_mf.Poisson(population=1000, clients_per_round=10)


def planned(**changes):
    return tff_mf.plan(**{**SETTING, "sampling": SCHEMA, **changes})


@pytest.mark.parametrize(
    "sampling",
    [SCHEMA, POISSON, tff_mf.BallsInBins(groups=10), tff_mf.SpacedEpochs(min_sep=5, max_participations=3)],
    ids=lambda each: type(each).__name__,
)
def test_the_schema_is_that_of_the_sampling_and_states_epsilon_of_known_cohorts(sampling):
    plan = planned(sampling=sampling, noise_multiplier=4.0)
    assert plan.participation == sampling.schema(30)
    run = (plan.mechanism, plan.rounds, plan.participation)
    assert plan.epsilon == tff_mf.epsilon(*run, noise_multiplier=4.0, delta=1e-6)


def test_only_secret_cohorts_amplify():
    known, secret = (planned(sampling=POISSON, noise_multiplier=1.0, secret_cohorts=each) for each in (False, True))
    assert secret.epsilon == tff_mf.epsilon(tff_mf.Identity(), 30, POISSON, noise_multiplier=1.0, delta=1e-6)
    assert secret.epsilon < 0.1 * known.epsilon
    assert secret.zcdp_rho == known.zcdp_rho
    calibrated = planned(sampling=POISSON, epsilon=2.0, secret_cohorts=True)
    assert (
        1.9
        < calibrated.epsilon
        <= 2.0
        < planned(sampling=POISSON, noise_multiplier=calibrated.noise_multiplier).epsilon
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SCHEMA},
        {"cohort": 100},
        {"restart_every": 10},
        {"restart_every": 10, "adaptive_count_stddev": 5.0},
        {"insecure_seed": 1},
    ],
    ids=str,
)
def test_what_no_theorem_covers_is_not_amplified(changes):
    with pytest.raises(tff_mf.InputError, match="secret_cohorts"):
        planned(**{"sampling": POISSON, "noise_multiplier": 1.0, "secret_cohorts": True, **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sampling": "min-sep"}, "sampling="),
        ({"sampling": POISSON, "population": 999}, "population=999"),
        ({"sampling": POISSON, "clients_per_round": 11}, "clients_per_round=11"),
        ({"population": 99}, "min_sep=10"),
        ({"sampling": tff_mf.MinSep(min_sep=1, max_participations=2), "population": 100}, "max_participations=2"),
        ({"sampling": tff_mf.FixedEpoch(min_sep=10, max_participations=3), "population": 9}, "population=9"),
        ({"clip_norm": 0.0}, "clip_norm="),
        ({"rounds": 20}, "rounds=20"),
    ],
    ids=str,
)
def test_numbers_that_contradict_each_other_are_refused(changes, field):
    with pytest.raises(tff_mf.InputError, match=field):
        planned(**{"noise_multiplier": 1.0, **changes})


@pytest.mark.parametrize("level", [{"epsilon": 2.0}, {"noise_multiplier": 3.0}], ids=str)
def test_a_plan_for_a_model_has_its_grid(level):
    floats = planned(**level, cohort=800)
    plan = floats.for_model(1000)
    assert plan == planned(**level, cohort=800, grid=tff_mf.Grid(bits=14, max_clients=1600), dimension=1000)
    assert plan.noise_multiplier >= floats.noise_multiplier
    assert plan.epsilon <= level.get("epsilon", 1.001 * floats.epsilon)
    assert plan.for_model(10) == plan
    with pytest.raises(tff_mf.InputError, match="dimension=1000"):
        plan.for_model(1001)


def test_a_noise_multiplier_that_was_given_stays():
    plan = planned(noise_multiplier=3.0)
    assert plan.target_epsilon is None
    assert plan.for_model(1000).noise_multiplier == 3.0
    assert dataclasses.replace(planned(epsilon=2.0), noise_multiplier=3.0).target_epsilon == 2.0
