"""Laws that every mechanism obeys, for a test class of its author: see docs/adding-a-mechanism.md.

What breaks one of them has noise that is correlated by one C, and an ε that is computed for another.
"""

import abc
import dataclasses
import itertools

import numpy as np
import pytest

import tff_mf
from tff_mf.mechanisms import BandedMechanism, ToeplitzMechanism, on_grid
from tff_mf.noise import numpy as streams

GRID = tff_mf.Grid(bits=16, max_clients=100)


def largest_norm(matrix, patterns):
    """Largest norm over all patterns, and over the contributions +1 and −1 in each of their rounds."""
    squares = [0.0]
    for pattern in patterns:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(pattern))))
        squares.append(np.max(np.sum(np.square(signs @ matrix[:, list(pattern)].T), axis=1)))
    return float(np.sqrt(max(squares)))


def assert_near(found, expected):
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float64
    assert found.shape == expected.shape
    assert np.all(np.abs(found - expected) <= 1e-9 * np.max(np.abs(expected)))


class MechanismLaws(abc.ABC):
    """Subclass it, name the subclass `Test…`, and define `make`.

    Attributes:
        rounds: Rounds of most laws; take more than the mechanism has rows of memory, twice.
    """

    rounds = 40

    @abc.abstractmethod
    def make(self, rounds):
        """Returns a mechanism that can run so many rounds, the same one for the same number."""

    def test_inverse_is_the_inverse_of_the_encoder(self):
        mechanism = self.make(self.rounds)
        encoder, inverse = mechanism.encoder(self.rounds), mechanism.inverse(self.rounds)
        for matrix in (encoder, inverse):
            assert not np.any(np.triu(matrix, 1))
            assert np.all(np.diagonal(matrix) > 0)
        assert_near(inverse @ encoder, np.eye(self.rounds))

    def test_coefficients_and_diagonals_are_those_of_the_encoder(self):
        mechanism, rounds = self.make(self.rounds), self.rounds
        if isinstance(mechanism, ToeplitzMechanism):
            assert_near(mechanism.coefficients(rounds), mechanism.encoder(rounds)[:, 0].copy())
            assert_near(mechanism.inverse_coefficients(rounds), mechanism.inverse(rounds)[:, 0].copy())
            assert_near(ToeplitzMechanism.encoder(mechanism, rounds), mechanism.encoder(rounds))
            assert_near(ToeplitzMechanism.inverse(mechanism, rounds), mechanism.inverse(rounds))
        if isinstance(mechanism, BandedMechanism):
            assert mechanism.diagonals(rounds).shape == (mechanism.bands, rounds)
            assert_near(BandedMechanism.encoder(mechanism, rounds), mechanism.encoder(rounds))

    def test_a_matrix_of_fewer_rounds_is_the_first_part_of_one_of_more(self):
        mechanism = self.make(self.rounds)
        for rounds in range(1, self.rounds):
            for of in (mechanism.encoder, mechanism.inverse):
                assert_near(of(rounds), of(self.rounds)[:rounds, :rounds].copy())

    def test_rounds_after_the_last_are_refused(self):
        mechanism = self.make(self.rounds)
        if mechanism.max_rounds is None:
            assert_near(
                mechanism.encoder(2 * self.rounds)[: self.rounds, : self.rounds], mechanism.encoder(self.rounds)
            )
            return
        for of in (mechanism.encoder, mechanism.inverse):
            with pytest.raises(tff_mf.InputError, match="rounds"):
                of(mechanism.max_rounds + 1)

    def test_a_cast_is_a_fixed_point_near_the_mechanism(self):
        mechanism = self.make(self.rounds)
        cast = mechanism.cast_to_float32()
        assert type(cast) is type(mechanism)
        np.testing.assert_allclose(cast.encoder(self.rounds), mechanism.encoder(self.rounds), rtol=1e-3, atol=1e-5)
        assert_near(cast.cast_to_float32().encoder(self.rounds), cast.encoder(self.rounds))

    def test_the_recursion_is_the_inverse(self):
        for mechanism in (self.make(self.rounds), self.make(self.rounds).cast_to_float32()):
            assert_near(mechanism.recursion().responses(self.rounds), mechanism.inverse(self.rounds))

    def test_the_recursion_on_a_grid_is_nearly_the_inverse(self):
        mechanism = self.make(self.rounds)
        found = on_grid(mechanism, deviation=2.0**17)
        assert found.rounds >= self.rounds
        assert found.column_change < 1e-6 * np.linalg.norm(mechanism.encoder(self.rounds))
        assert found.error(self.rounds) < 1e-3

    def test_a_file_gives_the_mechanism_back(self, tmp_path):
        mechanism, schema = self.make(self.rounds), tff_mf.MinSep(min_sep=3, max_participations=2)
        optimized_for = tff_mf.OptimizedFor(rounds=self.rounds, participation=schema)
        for each in (mechanism, dataclasses.replace(mechanism, optimized_for=optimized_for)):
            tff_mf.save(each, tmp_path / "file")
            read = tff_mf.load(tmp_path / "file")
            assert type(read) is type(each)
            assert read == each
            assert read.content_digest() == mechanism.content_digest()
            np.testing.assert_array_equal(read.encoder(self.rounds), each.encoder(self.rounds))

    def test_nothing_of_a_mechanism_can_be_changed(self):
        mechanism = self.make(self.rounds)
        for value in vars(mechanism).values():
            assert not isinstance(value, list | dict | set | bytearray)
            assert not isinstance(value, np.ndarray) or not value.flags.writeable
        with pytest.raises(dataclasses.FrozenInstanceError):
            mechanism.optimized_for = None

    @pytest.mark.parametrize("rounds", [1, 3, 7])
    def test_sensitivity_is_not_below_what_a_client_attains(self, rounds):
        mechanism = self.make(rounds)
        for min_sep in range(1, rounds + 1):
            for count in range(1, (rounds - 1) // min_sep + 2):
                for kind in (tff_mf.MinSep, tff_mf.FixedEpoch):
                    schema = kind(min_sep=min_sep, max_participations=count)
                    result = tff_mf.explain_sensitivity(mechanism, rounds, schema)
                    attained = largest_norm(mechanism.encoder(rounds), schema.patterns(rounds))
                    assert result.value >= attained * (1 - 1e-10)
                    assert not result.exact or result.value <= attained * (1 + 1e-10)

    @pytest.mark.parametrize("grid", [None, GRID], ids=["floats", "grid"])
    def test_noise_times_c_is_independent(self, grid):
        """4,096 coordinates are as many streams: covariances are within 7 of their standard deviations."""
        mechanism, dimension = self.make(self.rounds), 4096
        stream = streams.build_stream(mechanism, dimension=dimension, stddev=3.0, grid=grid)
        state, rows = stream.init(), []
        for _ in range(self.rounds):
            row, state = stream.next(state)
            rows.append(row)
        white = mechanism.encoder(self.rounds) @ np.stack(rows).astype(np.float64) / float(stream.stddev)
        covariance = white @ white.T / dimension
        assert np.abs(covariance - np.eye(self.rounds)).max() < 7 * (2 / dimension) ** 0.5
