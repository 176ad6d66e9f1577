"""benchmarks/fft_mechanism.py: the FFT mechanism by its definition, and its sensitivity by brute force."""

import itertools
import pathlib
import runpy

import numpy as np
import pytest

import tff_mf

PAGE = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "benchmarks" / "fft_mechanism.py"))


@pytest.mark.parametrize("rounds", [1, 2, 5, 12, 64])
def test_the_factors_have_prefix_sums_as_their_product(rounds):
    decoder, encoder = PAGE["factors"](rounds)
    np.testing.assert_allclose(decoder @ encoder, np.tri(rounds), atol=1e-12)
    for product in (encoder.T @ encoder, decoder @ decoder.T):
        np.testing.assert_allclose(product, PAGE["gram"](rounds), atol=1e-12)


@pytest.mark.parametrize("rounds", [2, 5, 12, 64])
def test_the_lower_triangular_matrices_have_the_noise_of_the_decoders(rounds):
    decoder, encoder = PAGE["factors"](rounds)
    prefix = np.tri(rounds)
    for mechanism, whole in zip(PAGE["mechanisms"](rounds), (decoder, prefix @ np.linalg.pinv(encoder)), strict=True):
        noise = prefix @ mechanism.inverse(rounds)
        np.testing.assert_allclose(noise @ noise.T, whole @ whole.T, atol=1e-9)


@pytest.mark.parametrize(("min_sep", "max_participations"), [(1, 2), (2, 3), (3, 2), (7, 1)])
def test_no_client_moves_them_more_than_the_original_or_the_bound(min_sep, max_participations):
    rounds = 7
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    _, original = PAGE["factors"](rounds)
    own, optimal = PAGE["mechanisms"](rounds)
    largest = dict.fromkeys(("original", "own", "optimal"), 0.0)
    matrices = {"original": original, "own": own.encoder(rounds), "optimal": optimal.encoder(rounds)}
    for pattern in schema.patterns(rounds):
        for signs in itertools.product((1, -1), repeat=len(pattern)):
            for name, matrix in matrices.items():
                moved = np.linalg.norm(matrix[:, list(pattern)] @ np.array(signs))
                assert name != "own" or moved <= np.linalg.norm(original[:, list(pattern)] @ np.array(signs)) + 1e-9
                largest[name] = max(largest[name], moved)
    assert largest["optimal"] == pytest.approx(largest["original"], rel=1e-9)
    for name, mechanism in (("own", own), ("optimal", optimal)):
        assert tff_mf.sensitivity(mechanism, rounds, schema) >= largest[name] * (1 - 1e-12)


def test_banded_toeplitz_has_less_error_for_one_and_for_several_participations():
    for max_participations in (1, 6):
        found = PAGE["losses"](48, max_participations)
        toeplitz, fft = found["banded Toeplitz, b bands"], found["FFT, optimal decoder"]
        # Even against what a client was found to attain, not only against the bound.
        assert toeplitz[0] < fft[1]
        assert fft[1] <= found["FFT, sensitivity of C"][1] * (1 + 1e-9)
        assert all(attained <= loss * (1 + 1e-9) for loss, attained in found.values())
