import dataclasses
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.sensitivities import losses

from .oracles import restarted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense(tff_mf.Mechanism):
    kind = "dense"
    of: tff_mf.Mechanism

    def encoder(self, rounds):
        return self.of.encoder(rounds)

    def inverse(self, rounds):
        return self.of.inverse(rounds)

    def cast_to_float32(self):
        return self


def decoder(mechanism, rounds):
    return np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(mechanism.encoder(rounds))


@given(st.integers(1, 40), st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3), st.floats(0.0, 1.0))
def test_errors_against_dense_matrices(rounds, theta, total):
    mechanism = tff_mf.BLT(theta=theta, omega=[total / 3] * 3)
    squares = decoder(mechanism, rounds) ** 2
    for each in (mechanism, Dense(of=mechanism)):
        assert tff_mf.rms_error(each, rounds) == pytest.approx(np.sqrt(squares.sum() / rounds), rel=1e-9)
        assert tff_mf.max_error(each, rounds) == pytest.approx(np.sqrt(squares.sum(axis=1).max()), rel=1e-9)


def test_identity_has_the_error_of_a_random_walk():
    assert tff_mf.max_error(tff_mf.Identity(), 100) == pytest.approx(10.0)
    assert tff_mf.rms_error(tff_mf.Identity(), 99) == pytest.approx(50**0.5)


# Of the inverse of the first, the coefficients are (−3)^i.
UNSTABLE = [
    *(tff_mf.BandedToeplitz(column=[1.0, 3.0]), tff_mf.BandedToeplitz(column=[1.0, -3.0])),
    *(Dense(of=tff_mf.BandedToeplitz(column=[1.0, 3.0])), tff_mf.BLT(theta=[1.0, 0.5], omega=[40.0, 30.0])),
]


@pytest.mark.parametrize("mechanism", UNSTABLE)
@pytest.mark.parametrize(
    "workload", [None, tff_mf.Momentum(momentum=0.9), tff_mf.MomentumWithRates(rates=[1.0] * 1000, momentum=0.9)]
)
def test_an_unstable_inverse_has_infinite_errors_and_losses_and_no_warning(mechanism, workload):
    schema = tff_mf.MinSep(min_sep=10, max_participations=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for error, loss in ((tff_mf.rms_error, tff_mf.rms_loss), (tff_mf.max_error, tff_mf.max_loss)):
            assert error(mechanism, 1000, workload) == loss(mechanism, 1000, schema, workload) == np.inf


class Halved(tff_mf.BLT):
    """A mechanism from outside that derives from BLT, with half the noise."""

    def coefficients(self, rounds):
        return 2 * super().coefficients(rounds)

    def inverse_coefficients(self, rounds):
        return super().inverse_coefficients(rounds) / 2


def test_the_closed_form_of_a_blt_is_not_used_for_a_class_that_derives_from_it():
    blt, halved = (kind(theta=[0.9, 0.5], omega=[0.2, 0.1]) for kind in (tff_mf.BLT, Halved))
    assert tff_mf.rms_error(halved, 100) == pytest.approx(tff_mf.rms_error(blt, 100) / 2, rel=1e-12)
    assert tff_mf.max_error(halved, 100) == pytest.approx(tff_mf.max_error(blt, 100) / 2, rel=1e-12)


@pytest.mark.parametrize("mechanism", [tff_mf.Tree(12), tff_mf.BLT(theta=[0.9], omega=[0.2]), tff_mf.Identity()])
@pytest.mark.parametrize("workload", [tff_mf.PrefixSum(), tff_mf.Momentum(momentum=0.9)])
@pytest.mark.parametrize("every", [None, 5, 12])
def test_the_error_of_each_round_is_the_norm_of_its_row(mechanism, workload, every):
    rounds = 12
    encoder = restarted(mechanism.encoder(every or rounds), rounds, every or rounds)
    rows = np.linalg.norm(workload.matrix(rounds) @ np.linalg.inv(encoder), axis=1)
    found = losses.round_errors(mechanism, rounds, restart_every=every, workload=workload)
    np.testing.assert_allclose(found, rows, rtol=1e-9)
    whole = losses.restart_errors(mechanism, rounds, restart_every=every or rounds, workload=workload)
    assert whole == pytest.approx((np.sqrt(np.mean(rows**2)), rows.max()), rel=1e-9)
