"""The statement of a run: numbers, rounding, and when it withholds them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments.output.digits import rounded_up
from tff_mf.experiments.privacy.plan import plan_privacy
from tff_mf.experiments.sampling import ObservedParticipation

SCHEMA = tff_mf.MinSep(min_sep=10, max_participations=3)


def plan(**changes):
    arguments = {
        "mechanism": tff_mf.BLT.production("b100"),
        "rounds": 50,
        "participation": SCHEMA,
        "delta": 1e-6,
        "clients_per_round": 20,
        "cohort": 1000,
        "epsilon": 4.0,
    }
    return plan_privacy(**{**arguments, **changes})


def observed(min_sep=10, max_participations=3):
    return ObservedParticipation(min_sep=min_sep, max_participations=max_participations)


def test_the_cohort_has_the_target_and_the_clients_that_trained_have_less():
    made = plan()
    assert 4 - 1e-8 < made.epsilon <= 4
    assert made.noise_multiplier_as_run == pytest.approx(made.noise_multiplier / 50)
    exact = tff_mf.epsilon(made.mechanism, 50, SCHEMA, noise_multiplier=made.noise_multiplier_as_run, delta=1e-6)
    assert made.epsilon_as_run == exact > 100
    statement = made.statement(observed())
    assert "ε≤4.000" in statement
    assert f"of the clients that really train: ε≤{rounded_up(exact)}" in statement
    assert "cohorts of 1000" in statement


def test_without_a_simulated_cohort_there_is_one_epsilon():
    made = plan(cohort=None)
    assert made.epsilon == made.epsilon_as_run
    assert "cohort" not in made.statement(observed())


@pytest.mark.parametrize("seen", [observed(min_sep=9), observed(max_participations=4), observed(min_sep=0)])
def test_a_violated_participation_withholds_the_number(seen):
    statement = plan().statement(seen)
    assert statement.startswith("NO ε CAN BE STATED: participation: ")
    assert "ε≤" not in statement
    # Nobody who came twice in one round is nobody who came twice.
    assert f"observed min-sep {seen.min_sep}" in statement


def test_clients_that_took_part_once_are_within_any_schema():
    assert "ε≤4.000" in plan().statement(observed(min_sep=None, max_participations=1))


def test_a_repeatable_run_has_no_number():
    made = plan(insecure_seed=3)
    assert math.isinf(made.epsilon)
    assert made.as_dict()["epsilon"] is None
    assert made.as_dict()["epsilon_as_run"] is None
    assert made.as_dict()["zcdp_rho"] is None
    statement = made.statement(observed())
    assert statement.startswith("TEST ONLY")
    assert "ε" not in statement


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"population": 10**6}, "δ = 1e-06 is no smaller than 1 / 1000000"), ({"violations": ["log: cut"]}, "log: cut")],
)
def test_whatever_a_report_refuses_a_statement_refuses(changes, text):
    statement = plan().statement(observed(), **changes)
    assert statement.startswith("NO ε CAN BE STATED")
    assert text in statement
    assert "ε≤" not in statement


def test_no_noise_is_unbounded():
    made = plan(epsilon=None, noise_multiplier=0.0)
    assert made.as_dict()["epsilon"] is None
    assert made.statement(observed()).startswith("NO ε CAN BE STATED: noise")


@given(st.floats(1e-9, 1e9))
def test_printed_epsilon_is_never_smaller(value):
    assert value <= float(rounded_up(value)) <= value + 0.0011 + 1e-9 * value


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"epsilon": None}, "epsilon"),
        ({"noise_multiplier": 1.0}, "noise_multiplier"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"cohort": 19}, "cohort"),
        ({"clients_per_round": 0}, "clients_per_round"),
        ({"rounds": 20}, "max_participations"),
        ({"insecure_seed": -1}, "insecure_seed"),
        ({"epsilon": None, "noise_multiplier": float("inf")}, "noise_multiplier"),
    ],
)
def test_bad_arguments(changes, field):
    with pytest.raises(tff_mf.InputError, match=field):
        plan(**changes)
