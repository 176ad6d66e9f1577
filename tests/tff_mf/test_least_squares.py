"""docs/least_squares.py: the norms that its guarantee rests on, its minimizer, and what it finds."""

import pathlib
import runpy

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

import tff_mf

PAGE = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "docs" / "least_squares.py"))
DIMENSION = PAGE["DIMENSION"]


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100.0))
def test_no_record_is_longer_than_one(seed, scale):
    generator = np.random.default_rng(seed)
    rows = PAGE["statistics"](scale * generator.normal(size=(20, 5)), scale * generator.normal(size=20))
    assert np.max(np.linalg.norm(rows, axis=1)) <= 1 + 1e-12
    assert rows.shape == (20, 5 + 15)


def test_a_record_of_the_largest_norm_is_exactly_one():
    rows = PAGE["statistics"](np.eye(3)[:1], np.ones(1))
    assert np.linalg.norm(rows) == pytest.approx(1, rel=1e-12)


def test_the_vector_of_a_matrix_has_its_norm_and_is_its_inverse():
    matrices = np.random.default_rng(3).normal(size=(50, 4, 4))
    matrices += matrices.transpose(0, 2, 1)
    vectors = PAGE["svec"](matrices)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.linalg.norm(matrices, axis=(1, 2)), rtol=1e-12)
    np.testing.assert_allclose(PAGE["unsvec"](vectors[7], 4), matrices[7], rtol=1e-12)


def test_a_replaced_record_moves_its_matrix_by_less_than_twice():
    x = np.random.default_rng(4).normal(size=(2, 400, 3))
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    outer = x[..., :, None] * x[..., None, :]
    assert np.max(np.linalg.norm(outer[0] - outer[1], axis=(1, 2))) <= 2**0.5 + 1e-12


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_the_minimizer_against_a_general_one(seed):
    generator = np.random.default_rng(seed)
    quadratic = generator.normal(size=(3, 3))
    quadratic, linear = quadratic + quadratic.T, generator.normal(size=3)
    found = PAGE["minimizer"](quadratic, linear, 2.0)

    def loss(theta):
        return theta @ quadratic @ theta - 2 * linear @ theta

    starts = generator.normal(size=(4, 3))
    inside = {"type": "ineq", "fun": lambda theta: 4.0 - theta @ theta}
    best = min(scipy.optimize.minimize(loss, start, constraints=inside, method="SLSQP").fun for start in starts)
    assert np.linalg.norm(found) <= 2 + 1e-6
    assert loss(found) <= best + 1e-5 * (1 + abs(best))


def test_without_noise_it_is_least_squares():
    x, y = PAGE["records"](300, 0)
    width = DIMENSION + DIMENSION * (DIMENSION + 1) // 2
    models = PAGE["least_squares"](x, y, np.zeros((300, width)), spread=np.zeros(300))
    x, y = PAGE["bounded"](x, y)
    np.testing.assert_allclose(models[-1], np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-6)


@pytest.mark.once
def test_correlated_noise_in_the_statistics_is_worth_it():
    """At ε = 4: trees beat independent noise, and noise in the statistics beats the paper's tree on gradients."""
    rounds = 512
    mechanisms = {"identity": tff_mf.Identity(), "tree": tff_mf.Tree(rounds, variant="vanilla")}
    found = PAGE["compare"](mechanisms, rounds=rounds, seeds=2, epsilon=4.0)
    for name, mechanism in mechanisms.items():
        reached = tff_mf.epsilon(
            mechanism, rounds, tff_mf.SingleParticipation(), noise_multiplier=found[name][0], delta=1e-6
        )
        assert reached <= 4.0
    assert found["tree"][1] < found["identity"][1] / 2
    assert found["tree"][1] < found["tree"][3]


@pytest.mark.once
def test_the_script_prints_a_row_for_each_mechanism(capsys):
    PAGE["main"](rounds=24, seeds=1)
    assert [line.split("sigma")[0].strip() for line in capsys.readouterr().out.splitlines()[2:]] == [
        *("no noise", "identity", "tree, vanilla (the paper's)", "tree, full", "BLT")
    ]
