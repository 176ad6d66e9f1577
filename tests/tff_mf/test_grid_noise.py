"""Noise on a grid: streams against exact integers and fractions, and sums as functions of Cx + z."""

import types

import numpy as np
import pytest

import tff_mf
from tff_mf import grids, normals
from tff_mf.noise import numpy as streams

tf = pytest.importorskip("tensorflow")
from tff_mf.errors import InputValueError  # noqa: E402
from tff_mf.noise.tensorflow import _recursion, build_stream, exact_normal  # noqa: E402

from .grid_oracle import assert_recursion, couplings, exact_scales  # noqa: E402
from .test_noise import InNumPy, InTensorFlow, plausible  # noqa: E402

GRID = tff_mf.Grid(bits=16, max_clients=100)
BLT = tff_mf.BLT.production("b400")


ENGINES = pytest.mark.parametrize("engine", [InNumPy, InTensorFlow], ids=["numpy", "tensorflow"])
FEW = {
    "blt": lambda rounds: BLT,
    "toeplitz": lambda rounds: tff_mf.BandedToeplitz.square_root(29),
    "inverse": lambda rounds: tff_mf.BandedInverse.square_root(3),
    "full": tff_mf.Tree,
}


def streamed(mechanism, *, dimension=5, stddev=3.0, grid=GRID, **arguments):
    return build_stream(mechanism, dimension=dimension, stddev=stddev, grid=grid, **arguments)


def rows_of(stream, rounds):
    step, state, rows = tf.function(stream.next, reduce_retracing=True), stream.init(), []
    for _ in range(rounds):
        row, state = step(state)
        rows.append(row.numpy())
    return np.stack(rows), state


def found_of(mechanism, stddev=3.0):
    return grids.recursion(mechanism, deviation=stddev * 2**16, largest_normal=grids.LARGEST_NORMAL)


def rounded(monkeypatch, engine, mechanism, products):
    """The integers n of a stream for given s_t·z_t, float64 [rounds, dimension]: keys name the round."""
    rounds, dimension = products.shape
    stream = engine.build(mechanism, dimension=dimension, stddev=3.0, grid=GRID)
    stream = stream.repeating(np.stack([np.arange(rounds), np.zeros(rounds, np.int64)], axis=1))
    if engine is InNumPy:
        stream._scale = lambda step: np.float64(1)
        stream._generator = types.SimpleNamespace(
            write=lambda key, begin, out: np.copyto(out, products[key[0]]), part=10**6
        )
    else:
        known = tf.constant(products)

        def parts(key, size, use, dtypes):
            return use(known[key[0]], 0, size)

        monkeypatch.setattr(_recursion, "in_parts", parts)
        monkeypatch.setattr(_recursion._Round, "_scale", lambda self: 1.0)
        stream._stddev = np.float64(1)
    step, state, rows = engine.compiled(stream), stream.init(), []
    for _ in range(rounds):
        row, state = step(state)
        rows.append(np.asarray(row))
    return np.stack(rows)


def test_a_stream_is_the_recursion_in_exact_fractions(make_mechanism):
    rounds = 16
    mechanism = make_mechanism(rounds)
    stream = streamed(mechanism, dimension=3)
    rows, state = rows_of(stream, rounds)
    drawn = np.stack([exact_normal(key, 3).numpy() for key in state.past_keys])
    assert_recursion(mechanism, found_of(mechanism), rows, drawn, 3.0 * 2**16)
    # In NumPy, the same bits.
    ours = streams.build_stream(mechanism, dimension=3, stddev=3.0, grid=GRID).repeating(state.past_keys.numpy())
    after = ours.init()
    for row in rows:
        noise, after = ours.next(after)
        np.testing.assert_array_equal(noise, row)


def test_numpy_streams_the_same_integers_for_a_seed():
    arguments = {"dimension": 3, "stddev": 3.0, "grid": GRID, "insecure_seed": 5}
    rows, _ = rows_of(build_stream(BLT, **arguments), 9)
    ours, state = streams.build_stream(BLT, **arguments), None
    for row in rows:
        noise, state = ours.next(state or ours.init())
        np.testing.assert_array_equal(noise, row)


@pytest.mark.parametrize("make_mechanism", FEW.values(), ids=FEW)
def test_coordinates_in_several_parts_have_the_bits_of_numpy(monkeypatch, make_mechanism):
    for module in (normals, normals._philox):
        monkeypatch.setattr(module, "PART", 2**10)
    monkeypatch.setattr(streams._generators.TensorFlow, "part", 2**10)
    arguments = {"dimension": 2**11 + 3, "stddev": 3.0, "grid": GRID, "insecure_seed": 5}
    mechanism = make_mechanism(9)
    rows, _ = rows_of(build_stream(mechanism, **arguments), 9)
    ours = streams.build_stream(mechanism, **arguments)
    state = ours.init()
    for row in rows:
        noise, state = ours.next(state)
        np.testing.assert_array_equal(noise, row)


def shifted(monkeypatch, engine, mechanism, rounds, *, dimension=4, lattice=2.0**-10):
    """Returns n of z, and y − x′ of the z′ for which W = Cx + z is the same, in units of the grid: integers x."""
    generator = np.random.default_rng(0)
    products = np.rint(generator.normal(size=(rounds, dimension)) * 2e5 / lattice) * lattice
    data = np.zeros((rounds, dimension))
    # A client of the clip norm in some rounds: others' data is the same in both.
    data[rng_rounds(generator, rounds)] = generator.integers(-4000, 4000, size=dimension)
    moved = products + data + couplings(found_of(mechanism), rounds) @ data
    return rounded(monkeypatch, engine, mechanism, products), rounded(monkeypatch, engine, mechanism, moved) - data


def rng_rounds(generator, rounds):
    return generator.choice(rounds, size=max(1, rounds // 50), replace=False)


EXACT = {
    "vanilla": lambda rounds: tff_mf.Tree(rounds, variant="vanilla"),
    "blt of sums": lambda rounds: tff_mf.BLT(theta=[1.0], omega=[0.25]),
    "dyadic toeplitz": lambda rounds: tff_mf.BandedToeplitz(column=[1.0, 0.5, 0.375, 0.25]),
}


@ENGINES
@pytest.mark.parametrize("name", EXACT)
def test_equal_releases_give_equal_sums_bit_for_bit(monkeypatch, engine, name):
    first, second = shifted(monkeypatch, engine, EXACT[name](2000), 2000)
    np.testing.assert_array_equal(first, second)


@ENGINES
@pytest.mark.parametrize("make_mechanism", [FEW["blt"], FEW["full"]], ids=["blt", "full"])
def test_equal_releases_give_equal_sums_up_to_the_error(monkeypatch, engine, make_mechanism):
    """W is the same up to the rounding of Cx in this test, so that sums differ where a cell ends within that: rarely.

    n then is another integer, by one, and later rounds follow: their differences are those of past n.
    """
    first, second = shifted(monkeypatch, engine, make_mechanism(40), 40, dimension=2000)
    assert np.mean(first != second) < 1e-3


def test_rounding_after_a_recursion_in_floats_depends_on_more_than_the_release():
    rounds = 60
    generator = np.random.default_rng(0)
    products, data = generator.normal(size=(rounds, 50)) * 2e7, np.zeros((rounds, 50))
    data[5] = generator.integers(-4000, 4000, size=50)
    moved = products + data + couplings(found_of(BLT), rounds) @ data
    inverse = BLT.cast_to_float32().inverse(rounds).astype(np.float32)
    first, second = (np.rint((inverse @ z.astype(np.float32)).astype(np.float64)) for z in (products, moved))
    assert np.mean(first != second - data) > 0.05


@ENGINES
@pytest.mark.parametrize("fault", ["round", "noise in the past"])
def test_the_shift_test_finds_faults(monkeypatch, engine, fault):
    """Half to even does not commute with shifts by odd integers; nor does an L that has seen z."""
    mechanism = tff_mf.BandedToeplitz(column=[1.0, 0.5])
    changes = {"round": lambda v: v - 0.5, "noise in the past": lambda v: v - abs(v) * 2.0**-6}[fault]
    if engine is InNumPy:
        floor, nearest = np.floor, np.rint if fault == "round" else np.floor
        faulty = types.SimpleNamespace(**{**vars(np), "floor": lambda v, out: np.copyto(out, nearest(changes(v)))})
        assert floor is np.floor
        monkeypatch.setattr(streams._advance, "np", faulty)
    else:
        floor, nearest = tf.floor, tf.round if fault == "round" else tf.floor
        monkeypatch.setattr(_recursion.tf, "floor", lambda value: nearest(changes(value)))
    # Sums with one half behind the point are frequent on this lattice.
    first, second = shifted(monkeypatch, engine, mechanism, 60, dimension=50, lattice=0.5)
    assert not np.array_equal(first, second)


def test_numpy_gives_the_same_bits():
    """A BLT, whose buffers are float64: one operation after another."""
    blt = BLT.cast_to_float32()
    stream = streamed(BLT, dimension=7)
    rows, state = rows_of(stream, 100)
    buffers = [np.zeros(7) for _ in blt.theta]
    for row, key in zip(rows, state.past_keys.numpy(), strict=True):
        terms = [weight * buffer for weight, buffer in zip(blt.omega, buffers, strict=True)]
        past = terms[0]
        for term in terms[1:]:
            past = past + term
        integers = np.floor(normals.draw(key, 7) * (3.0 * 2**16) - (past - 0.5))
        np.testing.assert_array_equal(integers, row)
        buffers = [decay * buffer + integers for decay, buffer in zip(blt.theta, buffers, strict=True)]


# The oracle of exact fractions is stricter, and the normals have tests of their own.
@pytest.mark.long
def test_covariance_over_streams(make_mechanism):
    rounds = 12
    mechanism = make_mechanism(rounds)
    noise, _ = rows_of(streamed(mechanism, dimension=4096, stddev=1.7), rounds)
    white = noise.T @ mechanism.encoder(rounds).T / (1.7 * 2**16)
    assert plausible(white, 1.0)
    assert not plausible(white, 1.1)
    assert not plausible(white, 0.9)


@pytest.mark.parametrize("make_mechanism", FEW.values(), ids=FEW)
def test_a_replay_has_the_same_bits_and_a_state_never_repeats(make_mechanism):
    mechanism = make_mechanism(13)
    stream = streamed(mechanism, dimension=3)
    rows, state = rows_of(stream, 12)
    again = stream.replay(state.past_keys)
    for one, other in zip(state.rows, again.rows, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    repeated, _ = rows_of(stream.repeating(state.past_keys.numpy()), 12)
    np.testing.assert_array_equal(repeated, rows)
    step = tf.function(stream.next)
    assert not np.array_equal(step(state)[0].numpy(), step(state)[0].numpy())


def test_the_round_after_the_last_one_is_refused():
    stream = streamed(tff_mf.Tree(3), dimension=2)
    _, state = rows_of(stream, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="3 rounds"):
        stream.next(state)


def test_a_state_of_another_grid_is_refused():
    state = streamed(BLT).init()
    for other in (tff_mf.Grid(bits=17, max_clients=100), tff_mf.Grid(bits=16, max_clients=101)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="other noise"):
            streamed(BLT, grid=other).next(state)
    assert build_stream(BLT, dimension=5, stddev=3.0).fingerprint != streamed(BLT).fingerprint


def test_coefficients_of_other_digits_are_another_stream(monkeypatch):

    def fingerprint() -> bytes:
        mechanism = tff_mf.BandedToeplitz(column=[1.0, 1 / 3])
        return build_stream(mechanism, dimension=1, stddev=1.0, grid=tff_mf.Grid(bits=16, max_clients=4)).fingerprint

    before = fingerprint()
    assert fingerprint() == before
    monkeypatch.setattr("tff_mf.mechanisms.past_rows._MOST_BITS", 20)
    assert fingerprint() != before


def test_a_refused_round_is_nan_where_assertions_are_stripped(monkeypatch):
    stream = streamed(BLT)
    state = streamed(BLT, stddev=4.0).init()
    monkeypatch.setattr(tf.debugging, "assert_equal", lambda *_, **__: None)
    row, _ = stream.next(state)
    assert np.all(np.isnan(row.numpy()))


@pytest.mark.parametrize("make_mechanism", [FEW["blt"]], ids=["blt"])
def test_no_noise_is_zero(make_mechanism):
    rows, _ = rows_of(streamed(make_mechanism(5), stddev=0.0), 5)
    assert not rows.any()


def test_a_dense_mechanism_is_for_small_models():
    dense = tff_mf.Dense(matrix=np.eye(40))
    with pytest.raises(InputValueError, match="dimension=10000000 is refused"):
        streamed(dense, dimension=10**7)


def test_an_unstable_mechanism_ends_before_its_integers_are_inexact():
    stream = streamed(tff_mf.BandedToeplitz(column=[1.0, -1.5]), dimension=2)
    found = found_of(tff_mf.BandedToeplitz(column=[1.0, -1.5]))
    last = found.rounds
    assert last < 60
    rows, state = rows_of(stream, last)
    assert np.abs(rows).max() <= found.largest <= 2**52
    with pytest.raises(tf.errors.InvalidArgumentError, match="all of them have run"):
        stream.next(state)


@pytest.mark.long
def test_scales_are_rounded_up(make_mechanism):
    mechanism = make_mechanism(20)
    for t, exact in enumerate(exact_scales(mechanism, 20)):
        scale = found_of(mechanism).recursion.step(t).scale
        assert exact * (1 - 1e-15) <= scale <= exact * (1 + 1e-12)
