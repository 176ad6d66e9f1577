"""BLTs: coefficients, inverses, published figures, and closed forms for any number of rounds, against sums."""

import json
import math
import pathlib

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.mechanisms.blt import earliest_pattern_norm, never_rises, prefix_sum_errors
from tff_mf.sensitivities import toeplitz


@st.composite
def blts(draw):
    """BLTs with c₀ ≥ c₁, as every useful one has."""
    buffers = draw(st.integers(1, 5))
    theta = draw(st.lists(st.floats(1e-3, 1.0), min_size=buffers, max_size=buffers))
    share = draw(st.lists(st.floats(1e-3, 1.0), min_size=buffers, max_size=buffers))
    total = draw(st.floats(0.01, 1.0))
    return tff_mf.BLT(theta=theta, omega=[total * each / sum(share) for each in share])


@given(blts())
def test_coefficients_are_those_of_equation_2(mechanism):
    expected = [1.0] + [
        sum(omega * theta ** (i - 1) for theta, omega in zip(mechanism.theta, mechanism.omega, strict=True))
        for i in range(1, 12)
    ]
    np.testing.assert_allclose(mechanism.coefficients(12), expected, rtol=1e-13)
    np.testing.assert_array_equal(mechanism.encoder(12)[:, 0], mechanism.coefficients(12))
    np.testing.assert_array_equal(mechanism.encoder(12)[0, 1:], np.zeros(11))


BILLION = 10**9
SIX = tff_mf.MinSep(min_sep=166_666_666, max_participations=6)


@st.composite
def cases(draw):
    buffers = draw(st.integers(1, 4))
    decays = st.one_of(st.floats(1e-3, 1.0), st.floats(1e-12, 1e-2).map(lambda gap: 1 - gap), st.just(1.0))
    theta = draw(st.lists(decays, min_size=buffers, max_size=buffers))
    omega = draw(st.lists(st.floats(0.0, 3.0), min_size=buffers, max_size=buffers))
    if draw(st.booleans()):
        omega = [each / max(1.0, 1.001 * sum(omega)) for each in omega]
    rounds = draw(st.integers(1, 3000) | st.integers(50_000, 100_000))
    max_participations = draw(st.integers(1, min(rounds, 1500)))
    min_sep = draw(st.integers(1, max(1, (rounds - 1) // max(max_participations - 1, 1))))
    return tff_mf.BLT(theta=theta, omega=omega), rounds, min_sep, max_participations


@pytest.mark.once
@given(cases(), st.sampled_from([tff_mf.MinSep, tff_mf.FixedEpoch]))
def test_closed_sensitivity_is_that_of_the_listed_coefficients(case, schema):
    mechanism, rounds, min_sep, max_participations = case
    participation = schema(min_sep=min_sep, max_participations=max_participations)
    column = mechanism.coefficients(rounds)
    closed = earliest_pattern_norm(mechanism, rounds, min_sep, max_participations, raised=False)
    assert closed == pytest.approx(math.sqrt(toeplitz._earliest_square(column, participation)), rel=2e-13)
    if max_participations == 1 or schema is tff_mf.FixedEpoch or never_rises(mechanism):
        assert closed == pytest.approx(toeplitz._of_column(column, participation).value, rel=2e-13)
    else:
        raised = earliest_pattern_norm(mechanism, rounds, min_sep, max_participations, raised=True)
        majorant = np.maximum.accumulate(column[::-1])[::-1]
        assert raised == pytest.approx(toeplitz._of_column(majorant, participation).value, rel=2e-13)
        assert raised >= closed


@given(cases())
def test_closed_errors_are_those_of_the_listed_coefficients(case):
    mechanism, rounds, _, _ = case
    closed = prefix_sum_errors(mechanism, rounds)
    if closed is not None and sum(mechanism.omega) <= 1:
        # The listed ones come from θ̂ near 1, whose rounding grows with the rounds.
        assert closed[1] ** 0.5 == pytest.approx(tff_mf.max_error(mechanism, rounds), rel=1e-10)
        assert closed[0] ** 0.5 == pytest.approx(tff_mf.rms_error(mechanism, rounds), rel=1e-10)


def precise_norm(mechanism, rounds, min_sep, max_participations):
    """Sums the exponentials between participations with 60 digits."""
    with mpmath.workdps(60):
        theta, omega = ([mpmath.mpf(each) for each in values] for values in (mechanism.theta, mechanism.omega))
        states, total = [mpmath.mpf(0)] * len(theta), mpmath.mpf(0)
        for index in range(max_participations):
            total += (1 + sum(w * s for w, s in zip(omega, states, strict=True))) ** 2
            after = [1 + t * s for t, s in zip(theta, states, strict=True)]
            length = (min_sep if index < max_participations - 1 else rounds - index * min_sep) - 1
            for i, p in enumerate(theta):
                for j, q in enumerate(theta):
                    ratio = p * q
                    series = length if ratio == 1 else (1 - ratio**length) / (1 - ratio)
                    total += omega[i] * omega[j] * after[i] * after[j] * series
            states = [s * t**length for s, t in zip(after, theta, strict=True)]
        return float(mpmath.sqrt(total))


@pytest.mark.parametrize("gap", [0.0, 2.0**-53, 1e-12, 1e-9, 3e-8, 1e-3])
def test_a_billion_rounds_agree_with_sixty_digits(gap):
    mechanism = tff_mf.BLT(theta=[1 - gap, 1 - 7 * gap, 0.9], omega=[1e-5, 0.01, 0.5])
    found = tff_mf.explain_sensitivity(mechanism, BILLION, SIX)
    assert found.exact
    assert found.value == pytest.approx(precise_norm(mechanism, BILLION, SIX.min_sep, 6), rel=1e-14)


def test_a_sum_of_omega_above_one_by_less_than_rounding_is_a_bound():
    assert never_rises(tff_mf.BLT(theta=[0.5, 0.5], omega=[0.5, 0.5]))
    mechanism = tff_mf.BLT(theta=[0.5, 0.5], omega=[1.0, 1e-30])
    assert not tff_mf.explain_sensitivity(mechanism, BILLION, SIX).exact
    assert tff_mf.explain_sensitivity(mechanism, BILLION, tff_mf.SingleParticipation()).exact


def test_many_rounds_of_coefficients_that_rise_have_the_norm_of_the_majorant():
    mechanism, arguments = tff_mf.BLT(theta=[0.5, 0.5], omega=[0.7, 0.6]), (BILLION, SIX.min_sep, 6)
    found = tff_mf.sensitivity(mechanism, BILLION, SIX)
    assert found == earliest_pattern_norm(mechanism, *arguments, raised=True)
    assert found > 1.1 * earliest_pattern_norm(mechanism, *arguments, raised=False)


def test_rounds_without_a_closed_form_are_refused():
    mechanism = tff_mf.BLT(theta=[0.5], omega=[0.9])
    with pytest.raises(tff_mf.InputError, match="rounds=1000000000 exceeds"):
        tff_mf.max_error(mechanism, BILLION)
    with pytest.raises(tff_mf.InputError, match="rounds=1000000000 exceeds"):
        tff_mf.max_error(tff_mf.BLT.production("b400"), BILLION, tff_mf.Momentum(momentum=0.9))
    with pytest.raises(tff_mf.InputError, match="exceeds"):
        tff_mf.sensitivity(mechanism, 2**60, SIX)


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
