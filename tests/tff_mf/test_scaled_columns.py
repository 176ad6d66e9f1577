"""Scaled columns: matrices, sensitivity against brute force, and the searches for them."""

import math

import numpy as np
import pytest
import scipy.linalg

import tff_mf
from tff_mf.sensitivities.toeplitz import running_sums


def test_the_matrix_of_scaled_columns_and_its_recursion():
    scales = np.random.default_rng(0).uniform(0.5, 2, size=12)
    mechanism = tff_mf.ScaledBLT(theta=[0.9, 0.4], omega=[0.3, 0.4], scales=scales.tolist())
    column = [1.0, *(0.3 * 0.9**power + 0.4 * 0.4**power for power in range(11))]
    encoder = scipy.linalg.toeplitz(column, np.zeros(12)) @ np.diag(scales)
    np.testing.assert_allclose(mechanism.encoder(12), encoder, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(mechanism.inverse(12) @ encoder, np.eye(12), atol=1e-10)
    np.testing.assert_allclose(mechanism.recursion().responses(12) @ encoder, np.eye(12), atol=1e-10)
    assert mechanism.buffers == mechanism.recursion().rows == 2


@pytest.mark.parametrize(("first", "last"), [(0, 5), (0, 4), (1, 5), (0, 2), (3, 5)])
def test_two_rounds_that_outweigh_all_others_count_however_far_apart(first, last):
    scales = np.full(6, 1e-3)
    scales[[first, last]] = 1
    mechanism = tff_mf.ScaledBLT(theta=[0.99], omega=[0.5], scales=scales.tolist())
    pair = np.sum(mechanism.encoder(6)[:, [first, last]], axis=1)
    schema = tff_mf.MinSep(min_sep=2, max_participations=2)
    assert tff_mf.sensitivity(mechanism, 6, schema) >= np.linalg.norm(pair) * (1 - 1e-12)


def test_a_short_sum_is_not_lost_beside_sums_that_it_is_no_part_of():
    """Sums of one block may differ by more than float64 has digits: a short column's norm is a short sum."""
    values = np.array([1.0] * 7 + [0.0] * 5 + [1e20] + [0.0] * 27)
    np.testing.assert_allclose(running_sums(values), [math.fsum(values[: end + 1]) for end in range(40)], rtol=1e-15)
