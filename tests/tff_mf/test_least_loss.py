"""The bound that no mechanism's loss is below, against optima at few rounds and against the dual of the dense one."""

import itertools

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

import tff_mf

SCHEMAS = [(1, 12), (3, 4), (5, 3), (12, 1), (3, 2), (2, 5)]
NAMES = ["all", "epochs", "partial", "once", "fewer", "two"]
LOSSES = {"rms": tff_mf.rms_loss, "max": tff_mf.max_loss}


def schema_of(min_sep, most):
    if most == 1:
        return tff_mf.SingleParticipation()
    return tff_mf.MinSep(min_sep=min_sep, max_participations=most)


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize(("min_sep", "most"), SCHEMAS, ids=NAMES)
def test_no_mechanism_has_less(min_sep, most, objective):
    schema = schema_of(min_sep, most)
    least = tff_mf.least_loss(12, schema, objective)
    assert least > 0
    mechanisms = [tff_mf.optimize_dense(rounds=12, participation=schema), tff_mf.Identity(), tff_mf.Tree(12)]
    mechanisms += [tff_mf.optimize_blt(rounds=12, participation=schema, buffers=2, objective=objective)]
    mechanisms += [tff_mf.optimize_banded(rounds=12, participation=schema, bands=min(min_sep, 12), unit_norms=False)]
    for mechanism in mechanisms:
        assert least <= LOSSES[objective](mechanism, 12, schema)


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize(("min_sep", "most"), [(1, 5), (2, 3), (2, 2), (5, 1), (3, 2)])
def test_the_optimum_of_few_rounds_by_brute_force_is_near_and_not_below(min_sep, most, objective):
    rounds, lower = 5, np.tril_indices(5)
    schema = schema_of(min_sep, most)
    signed = np.array(
        [
            np.sum([sign * np.eye(rounds)[place] for sign, place in zip(signs, pattern, strict=True)], axis=0)
            for size in range(1, most + 1)
            for pattern in itertools.combinations(range(rounds), size)
            if schema.allows(pattern)
            for signs in itertools.product((-1, 1), repeat=size)
        ]
    )

    def largest(values, power):
        top = values.max()
        return top if power is None else top * np.sum((values / top) ** power) ** (1 / power)

    def loss(entries, power=None):
        """The loss of C with these entries; with a power, each maximum is a sum of powers, which is smooth."""
        encoder = np.zeros((rounds, rounds))
        encoder[lower] = entries
        variances = np.square(np.linalg.solve(encoder.T, np.tril(np.ones((rounds, rounds))).T)).sum(axis=0)
        squares = np.square(signed @ encoder.T).sum(axis=1)
        error = variances.mean() if objective == "rms" else largest(variances, power)
        return np.sqrt(error * largest(squares, power))

    entries = np.eye(rounds)[lower]
    for power in (4, 16, 64, 256, 1024):
        entries = scipy.optimize.minimize(loss, entries, args=(power,), method="BFGS").x
    least = tff_mf.least_loss(rounds, schema, objective)
    assert 0.95 * loss(entries) <= least <= loss(entries) * (1 + 1e-9)


@pytest.mark.parametrize("rounds", [30, 400])
def test_with_one_participation_it_is_the_optimum(rounds):
    once = tff_mf.SingleParticipation()
    best = tff_mf.rms_loss(tff_mf.optimize_dense(rounds=rounds, participation=once), rounds, once)
    assert 0.998 * best <= tff_mf.least_loss(rounds, once) <= best


def test_it_grows_with_what_a_client_may_do_and_with_the_strictness_of_the_loss():
    few, many = (tff_mf.MinSep(min_sep=32, max_participations=most) for most in (2, 4))
    assert 0 < tff_mf.least_loss(128, few) < tff_mf.least_loss(128, many) < tff_mf.least_loss(128, many, "max")


def test_of_more_rounds_than_it_searches_it_is_the_nuclear_norm():
    rounds, schema = 2501, tff_mf.MinSep(min_sep=500, max_participations=6)
    # (AAᵀ)⁻¹ is tridiagonal.
    diagonal = np.append(np.full(rounds - 1, 2.0), 1.0)
    squares = scipy.linalg.eigvalsh_tridiagonal(diagonal, np.full(rounds - 1, -1.0))
    nuclear = np.sum(1 / np.sqrt(squares))
    assert tff_mf.least_loss(rounds, schema) == pytest.approx(nuclear / np.sqrt(rounds * 500), rel=1e-7)
    assert tff_mf.least_loss(rounds, tff_mf.MinSep(min_sep=500, max_participations=2)) == 0.0
