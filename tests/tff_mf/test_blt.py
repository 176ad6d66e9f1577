import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import tff_mf


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


@given(blts())
def test_inverse_parameters_give_the_inverse(mechanism):
    theta, omega = mechanism.inverse_parameters()
    powers = theta[:, None] ** np.arange(29)
    column = np.concatenate([[1.0], omega @ powers])
    np.testing.assert_allclose(mechanism.encoder(30) @ column, np.eye(30)[0], atol=1e-12)
    assert np.all(omega <= 0)
    assert np.all(np.diff(theta) <= 0)


def test_coinciding_decays_are_one_buffer():
    twice = tff_mf.BLT(theta=[0.7, 0.7], omega=[0.1, 0.2])
    once = tff_mf.BLT(theta=[0.7], omega=[0.1 + 0.2])
    np.testing.assert_allclose(twice.inverse_coefficients(50), once.inverse_coefficients(50), atol=1e-15)


def test_parameters_are_plain_floats_from_any_sequence():
    from_array = tff_mf.BLT(theta=np.array([0.5, 0.25]), omega=(np.float32(0.5), 0))
    assert from_array == tff_mf.BLT(theta=[0.5, 0.25], omega=[0.5, 0.0])
    assert all(type(value) is float for value in (*from_array.theta, *from_array.omega))
