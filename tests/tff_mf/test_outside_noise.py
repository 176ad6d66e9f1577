"""Recursions from outside: what they cost, queries of them, and those that are not C⁻¹z, which are refused."""

import dataclasses

import numpy as np
import pytest

import tff_mf
from tff_mf.accounting import grid_charge
from tff_mf.mechanisms import Recursion
from tff_mf.mechanisms.recursion import DRAWN, NEW, Case

tf = pytest.importorskip("tensorflow")
from tff_mf import queries  # noqa: E402

from .test_noise_laws import ENGINES, GRID, geometric_with_a_recursion  # noqa: E402
from .test_registry import any_matrix, geometric, mixed_matrix, registered_for_one_test  # noqa: E402, F401

SPECS = tf.TensorSpec([3])


def query_of(mechanism, **changes):
    return queries.build_query(
        mechanism, **{"record_specs": SPECS, "clip_norm": 2.0, "noise_multiplier": 1.5, **changes}
    )


def test_an_outsider_has_a_charge_near_that_of_the_same_blt():
    blt, mechanism = tff_mf.BLT(theta=[0.75], omega=[0.5]), geometric_with_a_recursion()
    ours, theirs = (
        grid_charge.charge(each, 40, 4, noise_multiplier=1.0, grid=GRID, dimension=1000) for each in (blt, mechanism)
    )
    assert theirs.mu == pytest.approx(ours.mu)
    assert ours.sensitivity == 0 < theirs.sensitivity < 1e-8


def until(last, *, rounds=None, **changes):
    """Right for `last` rounds, and of another structure after them."""

    def recursion(self):
        good = Case(past=((0, self.alpha),), after=(((0, self.beta), (NEW, 1.0)),))
        cases = good, dataclasses.replace(good, **changes)
        case = lambda done, tables, operations: operations.minimum(done // last, 1)  # noqa: E731
        return Recursion(rows=1, cases=cases, case=case, rounds=rounds)

    return recursion


def test_a_recursion_that_differs_in_later_rounds_adds_to_the_sensitivity():
    """Beyond the rounds that are compared."""
    mechanism = geometric(recursion=until(100, rounds=200, past=((0, 0.0),)))
    assert grid_charge.charge(mechanism, 200, 4, noise_multiplier=1.0, grid=GRID, dimension=1000).sensitivity > 0.5


def test_a_query_of_an_outsider():
    query = query_of(geometric_with_a_recursion())
    event = query.dp_event(40, tff_mf.MinSep(min_sep=10, max_participations=4))
    assert event == query_of(tff_mf.BLT(theta=[0.75], omega=[0.5])).dp_event(
        40, tff_mf.MinSep(min_sep=10, max_participations=4)
    )


def linear(scale=1.0, past=None, after=None):
    return lambda self: Recursion.linear(
        scale=scale, past=past or [self.alpha], after=after or [[(0, self.beta), (NEW, 1.0)]]
    )


HOSTILE = {
    "repeats noise": linear(scale=0.0, past=[-1.0], after=[[(0, 1.0), (DRAWN, 1.0)]]),
    "adds none": linear(scale=0.0),
    "adds 1 % less": linear(scale=0.99),
    "adds independent noise": linear(past=[0.0]),
    "is another mechanism's": linear(past=[0.4]),
    "ends after 20 rounds": until(20, scale=0.0),
    "is not a number": linear(scale=float("nan")),
    "is no recursion": lambda self: object(),
}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_matrix_without_a_recursion_or_an_end_has_no_noise(engine):
    mechanism = any_matrix(mixed_matrix(40), max_rounds=None)
    for grid in (None, GRID):
        with pytest.raises(tff_mf.InputError, match="has no last round"):
            engine.build(mechanism, dimension=2, stddev=1.0, grid=grid)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("recursion", HOSTILE.values(), ids=HOSTILE)
def test_a_recursion_that_is_not_the_inverse_is_refused(engine, recursion):
    mechanism = geometric(recursion=recursion)
    uses = [lambda grid=grid: engine.build(mechanism, dimension=2, stddev=1.0, grid=grid) for grid in (None, GRID)]
    for use in (*uses, lambda: query_of(mechanism)):
        with pytest.raises(tff_mf.InputError, match=r"recursion of kind 'geometric' is (not C⁻¹z: row|<object)"):
            use()


def test_matrices_that_do_not_fit_have_no_noise():
    mechanism = geometric(inverse_coefficients=lambda self, rounds: np.eye(rounds)[0])
    for engine in ENGINES.values():
        with pytest.raises(tff_mf.InputError, match="is not the inverse of its encoder"):
            engine.build(mechanism, dimension=2, stddev=1.0)


def test_a_subclass_inherits_no_noise():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(tff_mf.BLT):
        pass

    mechanism = Other(theta=[0.5], omega=[0.5])
    for engine in ENGINES.values():
        with pytest.raises(tff_mf.InputError, match="Other is not registered"):
            engine.build(mechanism, dimension=2, stddev=1.0)
    with pytest.raises(tff_mf.InputError, match="Other is not registered"):
        query_of(mechanism)


def test_keys_are_repeated_by_a_query_that_was_asked_to():
    query = query_of(tff_mf.BLT.production("b400"))

    def two_rounds(query):
        first, state, _ = query.get_noised_result(query.initial_sample_state(), query.initial_global_state())
        second, state, _ = query.get_noised_result(query.initial_sample_state(), state)
        return np.stack([first, second]), state.noise.past_keys.numpy()

    released, keys = two_rounds(query)
    again, repeated = two_rounds(query.repeating(keys))
    np.testing.assert_array_equal(repeated, keys)
    np.testing.assert_array_equal(again, released)
    assert not np.any(two_rounds(query)[1] == keys)
    assert query.repeating(keys).insecure
    assert not query.insecure
    with pytest.raises(tff_mf.InputError, match="no privacy guarantee"):
        query.repeating(keys).dp_event(2, tff_mf.SingleParticipation())
