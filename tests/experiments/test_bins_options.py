"""--sampling balls-in-bins of plan and optimize: estimates compare, a certificate states."""

import json

import pytest

import tff_mf

from .shared import printed, result_of


@pytest.fixture(autouse=True)
def fewer_samples(monkeypatch):
    """A certificate of a few samples is a looser one."""
    for each in (tff_mf.guarantee, tff_mf.calibrate_noise_multiplier, tff_mf.epsilon):
        monkeypatch.setitem(each.__kwdefaults__, "samples", 20_000)


SETTING = ["--rounds", 32, "--population", 80, "--clients-per-round", 10, "--epsilon", 2, "--delta", 1e-4]
SAMPLED = [*SETTING, "--sampling", "balls-in-bins"]


def test_optimize_certifies_what_it_found(tmp_path):
    made = result_of("optimize", "banded-toeplitz", *SAMPLED, "--bands", 6, "--out", tmp_path / "f")
    mechanism = tff_mf.load(tmp_path / "f")
    assert made["bands"] == mechanism.bands <= 6
    assert (made["participation"], made["min_sep"], made["max_participations"]) == ("FixedEpoch", 8, 4)
    sigma = made["amplified_noise_multiplier"]
    again = tff_mf.guarantee(mechanism, 32, tff_mf.BallsInBins(groups=8), noise_multiplier=sigma).at(delta=1e-4)
    assert made["amplified_epsilon"] <= 2
    assert again.failure <= 1e-7
    # `optimize` knows no model, and so no grid.
    assert "(groups=8) that nobody knows, real numbers and not the integers of a grid" in made["amplified_statement"]
    assert again.epsilon == pytest.approx(made["amplified_epsilon"], rel=0.01)
    # What is not amplified stands where it always stood, and the error is near the estimate.
    schema = tff_mf.FixedEpoch(min_sep=8, max_participations=4)
    assert made["noise_multiplier"] == tff_mf.calibrate_noise_multiplier(mechanism, 32, schema, epsilon=2, delta=1e-4)
    assert made["epsilon"] <= 2 < made["epsilon_if_cohorts_are_known"]
    assert sigma * tff_mf.rms_error(mechanism, 32) == pytest.approx(made["amplified_error_estimate"], rel=0.03)
    assert "only if cohorts are drawn at random and in secret" in made["amplified_statement"]


def test_account_and_calibrate_certify_a_mechanism_that_is_named():
    setting = ["tree-full", *SAMPLED[:6], *SAMPLED[8:], "--groups", 8]
    on_grid = [*setting, "--dimension", 1000, "--grid", 12]
    for flags in (setting, on_grid):
        made = result_of("calibrate", *flags, "--epsilon", 2)
        sigma = made["amplified_noise_multiplier"]
        stated = result_of("account", *flags, "--noise-multiplier", sigma)
        assert (stated["participation"], stated["min_sep"], stated["max_participations"]) == ("FixedEpoch", 8, 4)
        assert stated["amplified_epsilon"] == pytest.approx(2, rel=0.02)
        assert made["amplified_epsilon"] <= 2 < stated["epsilon"] == made["epsilon_if_cohorts_are_known"]
        assert stated["amplified_failure"] <= 1e-4 / 1000
        numbers = "integers of 12 bits" if "--grid" in flags else "real numbers and not the integers of a grid"
        assert f"(groups=8) that nobody knows, {numbers}" in stated["amplified_statement"]


def test_account_and_calibrate_know_b_min_sep(tmp_path):
    tff_mf.save(tff_mf.BandedToeplitz.square_root(2), tmp_path / "f")
    cohorts = ["--population", 400, "--clients-per-round", 10, "--rounds", 8, "--delta", 1e-3]
    flags = [tmp_path / "f", *cohorts, "--sampling", "b-min-sep", "--min-sep", 4]
    made = json.loads(printed("calibrate", *flags, "--epsilon", 2, "--json"))
    sigma = made["amplified_noise_multiplier"]
    stated = json.loads(printed("account", *flags, "--noise-multiplier", sigma, "--json"))
    assert (stated["participation"], stated["min_sep"], stated["max_participations"]) == ("MinSep", 4, 2)
    sampling = tff_mf.BMinSep.of_population(min_sep=4, population=400, clients_per_round=10)
    again = tff_mf.epsilon(tff_mf.load(tmp_path / "f"), 8, sampling, noise_multiplier=sigma, delta=1e-3)
    assert stated["amplified_epsilon"] == pytest.approx(again, rel=0.02)
    assert made["amplified_epsilon"] <= 2 < stated["epsilon"] == made["epsilon_if_cohorts_are_known"]
    assert stated["amplified_failure"] <= 1e-3 / 1000
    assert "b-min-sep sampling (min_sep=4) that nobody knows" in stated["amplified_statement"]
    # A search is for the schema that holds beside it, and its noise for both.
    found = result_of("optimize", "banded", *flags[1:], "--epsilon", 2, "--out", tmp_path / "g")
    assert found["bands"] == 4
    assert found["amplified_noise_multiplier"] < found["noise_multiplier"]


def test_a_certificate_names_the_clients_for_whose_cohorts_a_sum_has_room():
    flags = ["--population", 100_000, "--clients-per-round", 100, "--rounds", 4, "--delta", 1e-6, "--dimension", 10]
    sampled = [*flags, "--sampling", "balls-in-bins", "--groups", 4, "--noise-multiplier", 4, "--json"]
    stated = json.loads(printed("account", "identity", *sampled))["amplified_statement"]
    # 25,000 in each of four groups would overfill a sum, and end every run.
    assert "from 400 clients" in stated


def test_plan_compares_all_by_estimates_and_certifies_one():
    plain = result_of("plan", *SETTING)
    found = result_of("plan", *SAMPLED)
    assert (found["claim"], found["recommended"]) == (plain["claim"], plain["recommended"])
    rows = {row["name"]: row for row in found["amplified"]}
    errors = [row["rms_error_estimate"] for row in found["amplified"]]
    assert errors == sorted(errors)
    assert {"banded-toeplitz, for balls in bins", "blt, for balls in bins", "blt", "banded", "identity"} <= set(rows)
    assert "balls in bins" in next(iter(rows))
    chosen = found["amplified_chosen"]
    assert rows[chosen["name"]]["rms_error_estimate"] <= 1.1 * errors[0]
    assert chosen["rms_error"] == pytest.approx(rows[chosen["name"]]["rms_error_estimate"], rel=0.03)
    assert chosen["amplified_epsilon"] <= 2 < chosen["epsilon_if_cohorts_are_known"]
    # Of two with nearly the same error, the one with less memory.
    assert all(
        row["memory_rows"] >= rows[chosen["name"]]["memory_rows"]
        for row in found["amplified"]
        if row["rms_error_estimate"] <= 1.1 * errors[0]
    )
