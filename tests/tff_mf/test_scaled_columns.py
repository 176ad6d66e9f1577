"""Scaled columns: matrices, sensitivity against brute force, and the searches for them."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.linalg

import tff_mf
from tff_mf.sensitivities.toeplitz import running_sums


def made(rounds, *, falling=False, seed=0):
    scales = np.random.default_rng(seed).uniform(0.5, 2, size=rounds)
    scales = np.sort(scales)[::-1] if falling else scales
    return tff_mf.ScaledBLT(theta=[0.9, 0.4], omega=[0.3, 0.4], scales=scales.tolist())


def turning(rounds, *, seed=0):
    """One of the bounds on entries of CᵀC of both signs."""
    generator = np.random.default_rng(seed)
    return tff_mf.ScaledBLT(
        theta=generator.uniform(0.5, 1, size=3),
        omega=generator.uniform(0, 1, size=3),
        turn=[generator.uniform(0, np.pi), 0, generator.uniform(0, 1)],
        phase=generator.uniform(-np.pi, np.pi, size=3),
        scales=generator.uniform(0.5, 2, size=rounds),
    )


def test_the_matrix_of_a_blt_that_turns_and_its_recursion():
    mechanism = turning(12)
    column = np.eye(1, 12)[0]
    for theta, omega, turn, phase in zip(
        mechanism.theta, mechanism.omega, mechanism.turn, mechanism.phase, strict=True
    ):
        column[1:] += [omega * theta**power * math.cos(turn * power + phase) for power in range(11)]
    encoder = scipy.linalg.toeplitz(column, np.zeros(12)) @ np.diag(mechanism.scales)
    np.testing.assert_allclose(mechanism.encoder(12), encoder, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(mechanism.inverse(12) @ encoder, np.eye(12), atol=1e-10)
    np.testing.assert_allclose(mechanism.recursion().responses(12) @ encoder, np.eye(12), atol=1e-10)
    assert mechanism.buffers == mechanism.recursion().rows == 5


@pytest.mark.parametrize("seed", range(50))
def test_what_is_cast_has_the_weights_that_run(seed):
    """A pair's weights are cosines and sines: angles in float32 alone would give others than those accounted for."""
    generator = np.random.default_rng(seed)
    mechanism = dataclasses.replace(turning(6, seed=seed), theta=1 - generator.uniform(0, 1, 3) * [1e-8, 0.5, 1e-3])
    cast = mechanism.cast_to_float32()
    assert cast.cast_to_float32() == cast
    assert max(cast.theta) <= 1
    numbers = [*zip(cast.theta, cast.turn, strict=True), *zip(cast.omega, cast.phase, strict=True)]
    weights = np.array([[length * math.cos(angle), length * math.sin(angle)] for length, angle in numbers])
    np.testing.assert_allclose(weights.astype(np.float32), weights, rtol=0, atol=1e-15)
    np.testing.assert_allclose(cast.encoder(6), mechanism.encoder(6), atol=1e-5)


def test_a_short_sum_is_not_lost_beside_sums_that_it_is_no_part_of():
    """Sums of one block may differ by more than float64 has digits: a short column's norm is a short sum."""
    values = np.array([1.0] * 7 + [0.0] * 5 + [1e20] + [0.0] * 27)
    np.testing.assert_allclose(running_sums(values), [math.fsum(values[: end + 1]) for end in range(40)], rtol=1e-15)


def test_many_participations_in_entries_of_both_signs_are_not_rounded_down():
    """64 of them, whose sum of products may lose some thousand units in the last place."""
    rounds, schema = 256, tff_mf.FixedEpoch(min_sep=4, max_participations=64)
    mechanism = turning(rounds, seed=1)
    encoder = mechanism.encoder(rounds).astype(np.longdouble)
    largest = max(np.sum(np.abs(encoder[:, place::4].T @ encoder[:, place::4])) for place in range(4))
    assert tff_mf.sensitivity(mechanism, rounds, schema) >= np.sqrt(largest) * (1 - 1e-12)
