"""Recursions from outside: on a grid and in floats, in both engines; and what is not C⁻¹z, which is refused."""

import dataclasses

import numpy as np
import pytest

import tff_mf
from tff_mf import grids, normals
from tff_mf.mechanisms import Recursion
from tff_mf.mechanisms.recursion import DRAWN, NEW, Case

tf = pytest.importorskip("tensorflow")
from tff_mf import queries  # noqa: E402

from .grid_oracle import assert_recursion  # noqa: E402
from .test_noise import InNumPy, InTensorFlow, assert_close, rows_of  # noqa: E402
from .test_registry import any_matrix, geometric, mixed_matrix, registered_for_one_test  # noqa: E402, F401

SPECS = tf.TensorSpec([3])
GRID = tff_mf.Grid(bits=16, max_clients=100)
ENGINES = pytest.mark.parametrize("engine", [InNumPy, InTensorFlow], ids=["numpy", "tensorflow"])


def own(self):
    """x_t = z_t − αs, then s ← βs + x_t."""
    return Recursion.linear(past=[self.alpha], after=[[(0, self.beta), (NEW, 1.0)]])


def query_of(mechanism, **changes):
    return queries.build_query(
        mechanism, **{"record_specs": SPECS, "clip_norm": 2.0, "noise_multiplier": 1.5, **changes}
    )


OUTSIDE = {
    "own": lambda: (geometric(recursion=own), 20),
    "rows of a Toeplitz inverse": lambda: (geometric(), 20),
    "rows of an inverse": lambda: (any_matrix(mixed_matrix(40)), 40),
}


@ENGINES
@pytest.mark.parametrize("make", OUTSIDE.values(), ids=OUTSIDE)
def test_an_outsider_has_noise(engine, make):
    mechanism, rounds = make()
    stream = engine.build(mechanism, dimension=4, stddev=2.0)
    rows, state = rows_of(stream, rounds, engine.compiled(stream))
    z = engine.drawn_again(stream, state, 4, 2.0)
    assert_close(rows, mechanism.cast_to_float32().inverse(rounds) @ z)


@ENGINES
@pytest.mark.parametrize("make", [OUTSIDE["own"], OUTSIDE["rows of an inverse"]], ids=["own", "rows of an inverse"])
def test_an_outsider_runs_on_a_grid(engine, make):
    mechanism, rounds = make()
    stream = engine.build(mechanism, dimension=3, stddev=2.0, grid=GRID)
    rows, state = rows_of(stream, rounds, engine.compiled(stream))
    drawn = np.stack([normals.draw(key, 3) for key in engine.keys(state)])
    deviation = 2.0 * 2**16
    found = grids.recursion(mechanism, deviation=deviation, largest_normal=grids.LARGEST_NORMAL)
    assert_recursion(mechanism, found, rows.astype(np.float64), drawn, deviation)
    other = InNumPy if engine is InTensorFlow else InTensorFlow
    same = other.build(mechanism, dimension=3, stddev=2.0, grid=GRID).repeating(engine.keys(state))
    np.testing.assert_array_equal(rows_of(same, rounds)[0], rows)


def test_an_outsider_has_a_charge_near_that_of_the_same_blt():
    blt, mechanism = tff_mf.BLT(theta=[0.75], omega=[0.5]), geometric(recursion=own)
    ours, theirs = (
        grids.charge(each, 40, 4, noise_multiplier=1.0, grid=GRID, dimension=1000) for each in (blt, mechanism)
    )
    assert theirs.mu == pytest.approx(ours.mu)
    assert ours.sensitivity == 0 < theirs.sensitivity < 1e-8


def test_a_recursion_that_differs_in_later_rounds_adds_to_the_sensitivity():
    """Beyond the rounds that are compared: a case of its own."""

    def late(self):
        good = Case(past=((0, self.alpha),), after=(((0, self.beta), (NEW, 1.0)),))
        none = dataclasses.replace(good, past=((0, 0.0),))
        return Recursion(
            rows=1,
            cases=(good, none),
            case=lambda done, tables, operations: operations.minimum(done // 100, 1),
            rounds=200,
        )

    charge = grids.charge(geometric(recursion=late), 200, 4, noise_multiplier=1.0, grid=GRID, dimension=1000)
    assert charge.sensitivity > 0.5


def test_a_query_of_an_outsider():
    query = query_of(geometric(recursion=own))
    assert type(query) is queries.MatrixFactorizationQuery
    event = query.dp_event(40, tff_mf.MinSep(min_sep=10, max_participations=4))
    assert event == query_of(tff_mf.BLT(theta=[0.75], omega=[0.5])).dp_event(
        40, tff_mf.MinSep(min_sep=10, max_participations=4)
    )


@ENGINES
def test_rows_of_an_inverse_have_an_end(engine):
    stream = engine.build(any_matrix(mixed_matrix(40)), dimension=4, stddev=2.0)
    with pytest.raises(engine.refused(), match="defined for 40 rounds"):
        stream.next(stream.replay(np.zeros([40, 2], np.int64)))
    stream = engine.build(geometric(), dimension=2, stddev=1.0)
    assert stream.limited_to(100).fingerprint == stream.fingerprint
    with pytest.raises(tff_mf.InputError, match="rounds=16385 is more than the 16384"):
        stream.limited_to(2**14 + 1)


@ENGINES
@pytest.mark.parametrize("grid", [None, GRID])
def test_a_matrix_without_a_recursion_or_an_end_has_no_noise(engine, grid):
    with pytest.raises(tff_mf.InputError, match="has no last round"):
        engine.build(any_matrix(mixed_matrix(40), max_rounds=None), dimension=2, stddev=1.0, grid=grid)


def test_many_rows_of_an_inverse_take_no_grid():
    with pytest.raises(tff_mf.InputError, match="has no integer recursion"):
        InNumPy.build(geometric(), dimension=2, stddev=1.0, grid=GRID)


def linear(scale=1.0, past=None, after=None):
    return lambda self: Recursion.linear(
        scale=scale, past=past or [self.alpha], after=after or [[(0, self.beta), (NEW, 1.0)]]
    )


def late(self):
    """Right for 20 rounds, and without noise after them."""
    good = Case(past=((0, self.alpha),), after=(((0, self.beta), (NEW, 1.0)),))
    return Recursion(
        rows=1,
        cases=(good, dataclasses.replace(good, scale=0.0)),
        case=lambda done, tables, operations: operations.minimum(done // 20, 1),
    )


HOSTILE = {
    "repeats noise": linear(scale=0.0, past=[-1.0], after=[[(0, 1.0), (DRAWN, 1.0)]]),
    "adds none": linear(scale=0.0),
    "adds 1 % less": linear(scale=0.99),
    "adds independent noise": linear(past=[0.0]),
    "is another mechanism's": linear(past=[0.4]),
    "ends after 20 rounds": late,
    "is not a number": linear(scale=float("nan")),
}


@ENGINES
@pytest.mark.parametrize("recursion", HOSTILE.values(), ids=HOSTILE)
def test_a_recursion_that_is_not_the_inverse_is_refused(engine, recursion):
    mechanism = geometric(recursion=recursion)
    uses = [lambda grid=grid: engine.build(mechanism, dimension=2, stddev=1.0, grid=grid) for grid in (None, GRID)]
    for use in (*uses, lambda: query_of(mechanism)):
        with pytest.raises(tff_mf.InputError, match="recursion of kind 'geometric' is not C⁻¹z: row"):
            use()


def test_what_is_no_recursion_is_refused():
    with pytest.raises(tff_mf.InputError, match=r"return a mechanisms\.Recursion"):
        query_of(geometric(recursion=lambda self: object()))


def test_matrices_that_do_not_fit_have_no_noise():
    mechanism = geometric(recursion=own, inverse_coefficients=lambda self, rounds: np.eye(rounds)[0])
    with pytest.raises(tff_mf.InputError, match="is not the inverse of its encoder"):
        query_of(mechanism)


def test_a_subclass_inherits_no_noise():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(tff_mf.BLT):
        pass

    for use in (
        lambda: query_of(Other(theta=[0.5], omega=[0.5])),
        lambda: InTensorFlow.build(Other(theta=[0.5], omega=[0.5]), dimension=2, stddev=1.0),
    ):
        with pytest.raises(tff_mf.InputError, match="Other is not registered"):
            use()


def test_a_query_of_one_kind_takes_no_other():
    arguments = {"record_specs": SPECS, "clip_norm": 1.0, "noise_multiplier": 1.0}
    for query, mechanism, message in (
        (queries.BLTQuery, tff_mf.Identity(), "BLTQuery takes: a mechanism of the kind blt"),
        (queries.BandedQuery, geometric(), "BandedQuery takes: a mechanism of the kind banded or banded_toeplitz"),
        (queries.TreeQuery, tff_mf.Tree(4), "TreeQuery takes: a mechanism of the kind tree with variant='online'"),
        (queries.IdentityQuery, "identity", "mechanism='identity' must be a Mechanism"),
    ):
        with pytest.raises(tff_mf.InputError, match=message):
            query(mechanism, **arguments)


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
    for wrong in (keys.astype(np.int32), keys[:, :1], keys[0]):
        with pytest.raises(tff_mf.InputError, match="must be int64"):
            query.repeating(wrong)
