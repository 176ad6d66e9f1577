"""Published figures, which `published.json` holds with their sources."""

import json
import pathlib

import pytest

import tff_mf

PUBLISHED = json.loads((pathlib.Path(__file__).parent / "published.json").read_text())


@pytest.mark.parametrize("row", PUBLISHED["sensitivities_and_losses"]["rows"], ids=lambda row: row[0])
def test_sensitivities_and_losses_of_the_production_blts(row):
    name, rounds, min_sep, max_participations, sensitivity, max_loss, rms_loss = row
    mechanism = tff_mf.BLT.production(name)
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    assert mechanism.optimized_for == tff_mf.OptimizedFor(rounds=rounds, participation=schema)
    assert tff_mf.explain_sensitivity(mechanism, rounds, schema).exact
    assert tff_mf.sensitivity(mechanism, rounds, schema) == pytest.approx(sensitivity, abs=5.1e-7)
    assert tff_mf.max_loss(mechanism, rounds, schema) == pytest.approx(max_loss, abs=5.1e-4)
    assert tff_mf.rms_loss(mechanism, rounds, schema) == pytest.approx(rms_loss, abs=5.1e-4)


@pytest.mark.parametrize("row", PUBLISHED["zcdp"]["rows"], ids=str)
def test_rho_of_the_production_runs(row):
    name, sigma, rounds, min_sep, max_participations, rho, digits = row
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    ours = tff_mf.zcdp_rho(tff_mf.BLT.production(name), rounds, schema, noise_multiplier=sigma)
    assert round(ours, digits) == rho


@pytest.mark.parametrize("row", PUBLISHED["gaussian"]["rows"], ids=str)
def test_epsilon_of_the_gaussian(row):
    sigma, epsilon = row
    once, delta = tff_mf.SingleParticipation(), PUBLISHED["gaussian"]["delta"]
    ours = tff_mf.epsilon(tff_mf.Identity(), 1, once, noise_multiplier=sigma, delta=delta)
    assert ours == pytest.approx(epsilon, rel=2e-5)
    calibrated = tff_mf.calibrate_noise_multiplier(tff_mf.Identity(), 1, once, epsilon=epsilon, delta=delta)
    assert calibrated == pytest.approx(sigma, abs=5.1e-6)
