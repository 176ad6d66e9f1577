"""Laws of noise over (mechanism × engine × floats or grid): what streams compute, record, continue and refuse.

An engine is a class of a few functions, and a mechanism a line of a table. An oracle is a dense matrix in float64 or a
sum of exact fractions, of z that is drawn again from the keys of a state.
"""

import dataclasses
import functools
import pkgutil
import types
from typing import Any

import hypothesis
import numpy as np
import pytest
import scipy.signal
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf import noise
from tff_mf.mechanisms import Recursion, on_grid
from tff_mf.mechanisms._mechanism import _KINDS
from tff_mf.mechanisms.recursion import NEW, PAST, Case
from tff_mf.noise import _generators
from tff_mf.noise import numpy as streams
from tff_mf.numerics import normals

try:
    import jax

    from tff_mf.noise import _jax_normals
    from tff_mf.noise import jax as in_jax

    jax.config.update("jax_enable_x64", True)
except ImportError:
    jax = None

try:
    import torch

    from tff_mf.noise import torch as in_torch
except ImportError:
    torch = None

try:
    import tensorflow as tf

    from tff_mf.noise.tensorflow import _normals, _recursion, build_stream
except ImportError:
    tf = None

from ..conftest import ENDED, OTHER_NOISE, SMALLER, STREAMED
from .grid_oracle import assert_recursion, couplings, exact_scales
from .oracles import schemas
from .outside import any_matrix, geometric, geometric_class, geometric_with_a_recursion, mixed_matrix

GRID = tff_mf.Grid(bits=16, max_clients=100)
BLT = tff_mf.BLT.production("b400")
DIMENSION, STDDEV = 4096, 3.0
# Where few coordinates suffice: exact normals of JAX are compiled once for each number of them.
FEW = 8


class InNumPy:
    """What laws ask of streams in NumPy, which are the reference on a grid; every engine has a class like this one.

    `refused` are the errors of a round that must not run. `leaves` are all arrays of a state, `drawn_again` is z of
    keys in floats. The last one replaces the sizes of parts.
    """

    refused = (tff_mf.InputError,)

    def build(self, mechanism, **settings):
        return streams.build_stream(mechanism, **settings)

    def compiled(self, stream):
        return stream.next

    def keys(self, state):
        return state["keys"]

    def leaves(self, state):
        return [state[name].copy() for name in sorted(state)]

    def drawn_again(self, stream, keys):
        """The independent rows z of keys, in floats."""
        z = np.empty((len(keys), stream.dimension))
        for key, row in zip(keys, z, strict=True):
            for begin in range(0, len(row), stream._generator.part):
                stream._generator.write(key, begin, row[begin : begin + stream._generator.part])
        return z

    def take_small_parts(self, monkeypatch):
        monkeypatch.setattr(streams, "_PRODUCT", 2**7)
        for name in ("Philox", "TensorFlow"):
            monkeypatch.setattr(getattr(_generators, name), "part", 2**10)


class InTensorFlow:
    """What laws ask of streams in TensorFlow."""

    refused: Any = tf and (tf.errors.InvalidArgumentError,)

    def build(self, mechanism, **settings):
        return build_stream(mechanism, **settings)

    def compiled(self, stream):
        return tf.function(stream.next, reduce_retracing=True)

    def keys(self, state):
        return state.past_keys.numpy()

    def leaves(self, state):
        return [leaf.numpy() for leaf in tf.nest.flatten(state)]

    def drawn_again(self, stream, keys):
        return _tensorflow_normals(stream.dimension)(keys).numpy().astype(np.float64)

    def take_small_parts(self, monkeypatch):
        monkeypatch.setattr(_recursion, "_LARGEST_PART", 16)
        monkeypatch.setattr(_recursion, "_PART", 64)


class InJAX:
    """What laws ask of streams in JAX."""

    refused: Any = jax and (tff_mf.InputError, jax.errors.JaxRuntimeError)

    def build(self, mechanism, **settings):
        return in_jax.build_stream(mechanism, **settings)

    def compiled(self, stream):
        step = jax.jit(stream.next)
        return lambda state: jax.block_until_ready(step(state))

    def keys(self, state):
        return state.past_keys

    def leaves(self, state):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]

    def drawn_again(self, stream, keys):
        draw = jax.jit(_jax_normals.standard_normal, static_argnums=1)
        return np.array([draw(key.view(np.uint32), stream.dimension) for key in keys], np.float64)

    def take_small_parts(self, monkeypatch):
        monkeypatch.setattr(in_jax, "_PRODUCT", 2**7)
        monkeypatch.setattr(_jax_normals, "_PART", 2**8)


class InTorch:
    """What laws ask of streams in PyTorch."""

    refused = (tff_mf.InputError,)

    def build(self, mechanism, **settings):
        return in_torch.build_stream(mechanism, **settings)

    def compiled(self, stream):
        return stream.next

    def keys(self, state):
        return state["keys"].numpy()

    def leaves(self, state):
        return [state[name].numpy().copy() for name in sorted(state)]

    def drawn_again(self, stream, keys):
        return np.array([stream._draw(key).numpy() for key in keys], np.float64)

    def take_small_parts(self, monkeypatch):
        monkeypatch.setattr(in_torch, "_PRODUCT", 2**7)


@functools.cache
def _tensorflow_normals(dimension):
    def of_keys(keys):
        return tf.map_fn(lambda key: _normals.standard_normal(key, dimension), keys, fn_output_signature=tf.float32)

    return tf.function(of_keys, reduce_retracing=True)


NUMPY = InNumPy()
# With what each needs.
ALL_ENGINES = {
    "numpy": (NUMPY, np),
    "tensorflow": (InTensorFlow(), tf),
    "jax": (InJAX(), jax),
    "torch": (InTorch(), torch),
}
ENGINES = {name: engine for name, (engine, needed) in ALL_ENGINES.items() if needed is not None}


def geometric_that_remembers_its_past():
    """From outside, twice the C of the other: x_t = z_t/2 − L_t with L = αs, then s ← (β/α)·L + x_t."""
    plain = geometric_class()
    return geometric(
        coefficients=lambda self, rounds: 2 * plain.coefficients(self, rounds),
        inverse_coefficients=lambda self, rounds: plain.inverse_coefficients(self, rounds) / 2,
        recursion=lambda self: Recursion.linear(
            past=[self.alpha], after=[[(PAST, self.beta / self.alpha), (NEW, 1.0)]], scale=0.5
        ),
    )


MECHANISMS = STREAMED | {
    "outside, with a recursion": lambda rounds: geometric_with_a_recursion(),
    "outside, that remembers its past": lambda rounds: geometric_that_remembers_its_past(),
    "outside, without": lambda rounds: any_matrix(mixed_matrix(rounds)),
}
# Of the others, 64: more than twice all of their blocks. 45 is a forest of four trees.
ROUNDS = {"tree, full": 45, "tree, online": 21, "tree, vanilla": 45, "dense": 13, "outside, without": 40}
# In JAX, in floats: one with one case, and one with many. On a grid, test_optax.py compiles steps of these.
COMPILED = ("blt of 4 buffers", "tree, full")


def rows_of(stream, rounds, step=None, state=None):
    state, rows = stream.init() if state is None else state, []
    for _ in range(rounds):
        row, state = (step or stream.next)(state)
        rows.append(np.asarray(row))
    return np.stack(rows) if rows else rows, state


class Run:
    """What a stream has drawn: its rows, the state in the middle, and the last one.

    A step of JAX takes seconds to compile, and is not compiled as a whole unless a test asks for it.
    """

    def __init__(self, engine, mechanism, rounds, *, compiled=None, grid=None, **settings):
        compiled = not isinstance(engine, InJAX) if compiled is None else compiled
        self.engine, self.mechanism, self.rounds, self.grid = engine, mechanism, rounds, grid
        self.settings = {"dimension": DIMENSION, "stddev": STDDEV, "grid": grid, **settings}
        self.stream = engine.build(mechanism, **self.settings)
        self.step = engine.compiled(self.stream) if compiled else self.stream.next
        self.done = (rounds + 1) // 2
        first, self.middle = rows_of(self.stream, self.done, self.step)
        later, self.state = rows_of(self.stream, rounds - self.done, self.step, self.middle)
        self.rows, self.keys = np.stack([*first, *later]), engine.keys(self.state)

    def assert_is_the_inverse_times_z(self):
        """In floats C⁻¹z; on a grid the integers of NumPy for the same keys, and the recursion in exact fractions."""
        if self.grid is None:
            z = self.engine.drawn_again(self.stream, self.keys) * self.settings["stddev"]
            assert_close(self.rows, self.mechanism.cast_to_float32().inverse(self.rounds) @ z)
            return
        same = NUMPY.build(self.mechanism, **self.settings).repeating(self.keys)
        np.testing.assert_array_equal(rows_of(same, self.rounds)[0], self.rows)
        if self.engine is NUMPY:
            assert self.rows.dtype == np.int64
            some = [0, len(self.rows[0]) // 2, -1]
            drawn = np.stack([normals.draw(key, len(self.rows[0]))[some] for key in self.keys])
            found = found_of(self.mechanism, self.settings["stddev"])
            assert_recursion(self.mechanism, found, self.rows[:, some].astype(np.float64), drawn, found.deviation)


@pytest.fixture(scope="module", params=ENGINES.values(), ids=ENGINES)
def engine(request):
    return request.param


@pytest.fixture(scope="module", params=[None, GRID], ids=["floats", "grid"])
def grid(request):
    return request.param


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.once] if name in SMALLER else []) for name in MECHANISMS],
)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def run(name, engine, grid, request):
    compiled = True if (grid is None and name in COMPILED) or request.config.getoption("--long") else None
    rounds = ROUNDS.get(name, 64)
    return Run(engine, MECHANISMS[name](rounds), rounds, compiled=compiled, grid=grid)


def found_of(mechanism, stddev=STDDEV):
    return on_grid(mechanism, deviation=stddev * 2**GRID.bits)


def assert_close(rows, expected):
    assert np.abs(rows - expected).max() <= 1e-5 * np.abs(expected).max()


def assert_same(engine, state, other):
    for ours, theirs in zip(engine.leaves(state), engine.leaves(other), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def plausible(white, scale):
    """Whether independent Gaussians of standard deviation `scale` would look like `white`, [streams, rounds]."""
    streams, rounds = white.shape
    covariance = white.T @ white / streams
    total = streams * np.diag(covariance).sum() / scale**2
    correlations = streams * covariance[np.triu_indices(rounds, 1)] ** 2
    diagonal = 2 * min(scipy.stats.chi2.cdf(total, streams * rounds), scipy.stats.chi2.sf(total, streams * rounds))
    return diagonal > 1e-9 and scipy.stats.chi2.sf(correlations.sum() / scale**4, correlations.size) > 1e-9


def test_every_kind_is_in_the_table():
    kinds = {make(8).kind for make in STREAMED.values()}
    assert kinds == {kind for kind, of in _KINDS.items() if of.__module__.startswith("tff_mf.")}


def test_every_engine_is_in_the_table():
    modules = {module.name for module in pkgutil.iter_modules(noise.__path__)}
    assert ALL_ENGINES.keys() == {name for name in modules if not name.startswith("_")}


def test_noise_is_the_inverse_times_the_recorded_noise(run):
    assert len(run.keys) == run.rounds
    run.assert_is_the_inverse_times_z()


def test_covariance(run):
    """Noise times C is z again: 4,096 coordinates are as many independent streams."""
    unit = STDDEV if run.grid is None else STDDEV * 2**run.grid.bits
    white = run.rows.T.astype(np.float64) @ run.mechanism.encoder(run.rounds).T / unit
    assert plausible(white, 1.0)
    assert not plausible(white, 1.1)
    assert not plausible(white, 0.9)


def test_a_state_stepped_twice_never_repeats_noise(run):
    done, before = run.done, run.engine.leaves(run.middle)
    for step in {run.stream.next, run.step}:
        (first, after_first), (second, after_second) = step(run.middle), step(run.middle)
        assert np.mean(np.asarray(first) == np.asarray(second)) < 0.01
        one, other = run.engine.keys(after_first), run.engine.keys(after_second)
        np.testing.assert_array_equal(one[:done], run.keys[:done])
        np.testing.assert_array_equal(other[:done], run.keys[:done])
        words = [run.keys.ravel(), one[done], other[done]]
        assert len(np.unique(np.concatenate(words))) == 2 * run.rounds + 4
    for leaf, old in zip(run.engine.leaves(run.middle), before, strict=True):
        np.testing.assert_array_equal(leaf, old)


def test_recorded_keys_rebuild_the_state_and_not_what_follows(run):
    again = run.stream.replay(run.engine.keys(run.middle))
    assert_same(run.engine, again, run.middle)
    assert np.mean(np.asarray(run.step(again)[0]) == np.asarray(run.step(run.middle)[0])) < 0.01


def test_the_round_after_the_last_is_refused(run):
    limited, end = run.stream.limited_to(run.rounds), run.mechanism.max_rounds
    assert limited.fingerprint == run.stream.fingerprint
    with pytest.raises(run.engine.refused, match=ENDED(run.rounds)):
        limited.next(run.state)
    with pytest.raises(tff_mf.InputError, match=str(run.rounds + 1)):
        limited.replay(np.vstack([run.keys, [[1, 2]]]))
    if end is None:
        # A longer run goes on from the same state.
        assert np.all(np.isfinite(np.asarray(run.step(run.state)[0])))
        return
    assert end == run.rounds
    with pytest.raises(run.engine.refused, match=ENDED(end)):
        run.step(run.state)
    with pytest.raises(tff_mf.InputError, match=f"rounds={end + 1}"):
        run.stream.limited_to(end + 1)


def test_a_state_of_other_noise_is_refused(run):
    """And no two of these streams have one fingerprint, as long as they have the same one twice."""
    variants = [run.settings | changes for changes in ({}, {"stddev": 2.99}, {"insecure_seed": 0})]
    found = [run.engine.build(run.mechanism, **settings) for settings in variants]
    found.append(run.stream.bound_to("restart_every=3"))
    assert found[0].fingerprint == run.stream.fingerprint
    assert len({each.fingerprint for each in found}) == len(found)
    for other in found[1:]:
        with pytest.raises(run.engine.refused, match=OTHER_NOISE):
            run.step(other.init())


def test_other_mechanisms_and_grids_are_other_noise(engine):
    nearly = tff_mf.BLT(theta=[*BLT.theta[:-1], BLT.theta[-1] * (1 + 1e-12)], omega=BLT.omega)
    cases = [(BLT, grid) for grid in (None, GRID, tff_mf.Grid(bits=17, max_clients=100))]
    cases += [(BLT, tff_mf.Grid(bits=16, max_clients=101)), (nearly, None), (nearly, GRID)]
    cases += [(tff_mf.BLT.production("b100"), grid) for grid in (None, GRID)]
    found = [engine.build(mechanism, dimension=3, stddev=1.0, grid=grid) for mechanism, grid in cases]
    assert len({each.fingerprint for each in found}) == len(found)
    for stream in found[:2]:
        state = rows_of(stream, 1)[1]
        for other in found:
            if other is not stream:
                with pytest.raises(engine.refused, match=OTHER_NOISE):
                    other.next(state)


@st.composite
def shapes(draw):
    """A mechanism of any kind and shape, and its rounds."""
    rounds = draw(st.integers(1, 20))
    size = draw(st.integers(1, rounds))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    column = np.concatenate([[1.3], generator.uniform(-0.5, 0.5, size - 1) / size])
    diagonals = generator.uniform(-0.5, 0.5, (size, rounds)) / size + 1.3 * np.eye(size, 1)
    buffers = min(size, 4)
    made = {
        "blt": lambda: tff_mf.BLT(
            theta=generator.uniform(1e-3, 1, buffers), omega=generator.uniform(0, 1, buffers) / buffers
        ),
        "scaled blt": lambda: tff_mf.ScaledBLT(
            theta=generator.uniform(1e-3, 1, buffers),
            omega=generator.uniform(0, 1, buffers) / buffers,
            scales=generator.uniform(0.5, 2, rounds),
        ),
        "banded": lambda: tff_mf.Banded(values=diagonals),
        "toeplitz": lambda: tff_mf.BandedToeplitz(column=column),
        "dense": lambda: tff_mf.Dense(
            matrix=np.tril(generator.normal(size=(rounds, rounds)) / rounds, -1) + 1.3 * np.eye(rounds)
        ),
        "structured": lambda: tff_mf.BandedPlusLowRank(
            diagonals=diagonals,
            left=generator.normal(size=(rounds, 2)) / rounds,
            right=generator.normal(size=(rounds, 2)),
        ),
        "tree": lambda: tff_mf.Tree(rounds, variant=("full", "online", "vanilla")[size % 3]),
    }
    rates = generator.uniform(0.1, 1, rounds)
    workloads = [tff_mf.PrefixSum(), tff_mf.Momentum(momentum=0), tff_mf.LearningRates(rates=rates)]
    workloads += [tff_mf.MomentumWithRates(rates=tff_mf.LinearSchedule(warmup_rounds=1), momentum=0.95)]
    schema = draw(st.just(tff_mf.SingleParticipation()) | schemas(rounds))
    found = tff_mf.OptimizedFor(rounds=rounds, participation=schema, workload=draw(st.sampled_from(workloads)))
    mechanism = made[draw(st.sampled_from(sorted(made)))]()
    return dataclasses.replace(mechanism, optimized_for=draw(st.sampled_from([None, found]))), rounds


@hypothesis.settings(max_examples=100)
@given(shapes())
def test_encoder_inverse_recursion_and_what_is_cast_are_one_matrix(shape):
    mechanism, rounds = shape
    run = mechanism.cast_to_float32()
    for each in (mechanism, run):
        encoder, inverse = each.encoder(rounds), each.inverse(rounds)
        np.testing.assert_allclose(encoder @ inverse, np.eye(rounds), atol=1e-11)
        np.testing.assert_allclose(each.recursion().responses(rounds), inverse, atol=1e-11)
        fewer = -(-rounds // 2)
        np.testing.assert_allclose(each.encoder(fewer), encoder[:fewer, :fewer], atol=1e-13)
    np.testing.assert_allclose(run.encoder(rounds), mechanism.encoder(rounds), rtol=1e-5, atol=1e-6)
    assert run.optimized_for == mechanism.optimized_for
    # What runs has the numbers of float32. Of a dense mechanism, C⁻¹ is cast; of buffers that turn, their weights are.
    if mechanism.kind != "dense" and not any(getattr(mechanism, "turn", ())):
        assert run.cast_to_float32() == run
        for field in dataclasses.fields(run):
            value = getattr(run, field.name)
            if isinstance(value, tuple | np.ndarray):
                np.testing.assert_array_equal(value, np.array(getattr(mechanism, field.name), np.float32))
    for wrong in (0, -1, 2.5, None, *([] if mechanism.max_rounds is None else [rounds + 1])):
        with pytest.raises(tff_mf.InputError, match=f"rounds={wrong}"):
            mechanism.encoder(wrong)


@hypothesis.settings(max_examples=5)
@given(shape=shapes())
def test_any_shape_streams_its_inverse(engine, grid, shape):
    # Not compiled: each example would be traced.
    Run(engine, *shape, compiled=False, dimension=FEW, grid=grid).assert_is_the_inverse_times_z()


@pytest.mark.sampled(together=2)
@pytest.mark.parametrize(
    "mechanism",
    [tff_mf.BandedToeplitz.square_root(5), tff_mf.Tree(8), tff_mf.Tree(8, variant="online"), BLT],
    ids=lambda each: f"{each.kind} {getattr(each, 'variant', '')}",
)
def test_rows_longer_than_a_part(monkeypatch, engine, grid, mechanism):
    """A model of many parameters is taken in parts, of which the last one is shorter."""
    for each in ENGINES.values():
        each.take_small_parts(monkeypatch)
    for module in (normals, normals._philox):
        monkeypatch.setattr(module, "PART", 2**10)
    Run(engine, mechanism, 8, grid=grid, dimension=2**11 + 3).assert_is_the_inverse_times_z()


@pytest.mark.parametrize("stddev", [2.0**11, 2.0**17])
def test_integers_need_not_fit_into_32_bits(engine, stddev):
    run = Run(engine, tff_mf.BandedToeplitz(column=[1.0, 0.5]), 9, grid=GRID, dimension=FEW, stddev=stddev)
    assert (np.abs(run.rows).max() > 2**31) == (stddev > 2**12)
    run.assert_is_the_inverse_times_z()


def test_bounds_on_a_grid_are_of_the_mechanism_and_not_of_an_equal_one(engine):
    """A class may leave out of its comparison what C depends on: arrays, which have no truth value."""
    alike = {"__eq__": lambda self, other: type(self) is type(other), "__hash__": lambda self: 1}
    own = lambda self: Recursion.linear(past=[self.alpha], after=[[(0, self.beta), (NEW, 1.0)]])  # noqa: E731
    large = geometric(recursion=own, alpha=0.9, beta=0.95, **alike)
    small = dataclasses.replace(large, alpha=0.1, beta=0.2)
    assert small == large
    for mechanism in (large, small):
        Run(engine, mechanism, 9, compiled=False, grid=GRID, dimension=FEW).assert_is_the_inverse_times_z()


@pytest.mark.parametrize(
    "changed",
    [{"stored": "int32", "sums": lambda done: 0}, {"stored": "float32"}, {"exact": True}],
    ids=["int32", "float32", "exact"],
)
def test_no_grid_where_bounds_are_not_about_the_recursion(engine, changed):
    whole = Recursion.linear(past=[0.5], after=[[(0, 0.75), (NEW, 1.0)]])
    mechanism = geometric(recursion=lambda self: dataclasses.replace(whole, **changed))
    with pytest.raises(tff_mf.InputError, match="geometric"):
        engine.build(mechanism, dimension=2, stddev=1.0, grid=GRID)


def test_a_state_of_another_structure_is_refused(engine):
    """Of equal weights and equal C: two rows of memory that are used the other way around."""
    both = [((0, 0.75), (NEW, 1.0)), 1]
    weights = {0: (0.5, 0.0), 1: (0.0, 0.5)}

    def of(row):
        past = tuple(enumerate(weights[row]))
        after = tuple(both if row == 0 else (0, ((1, 0.75), (NEW, 1.0))))
        return Recursion(rows=2, cases=(Case(past=past, after=after),))

    mechanism = geometric(recursion=lambda self: of(0))
    state = engine.build(mechanism, dimension=2, stddev=1.0).init()
    type(mechanism).recursion = lambda self: of(1)
    other = engine.build(mechanism, dimension=2, stddev=1.0)
    with pytest.raises((tff_mf.InputError, *engine.refused)):
        other.next(state)


def test_a_state_of_another_dimension_is_refused(engine, grid):
    for few in (1, 3):
        state = engine.build(BLT, dimension=few, stddev=1.0, grid=grid).init()
        with pytest.raises((ValueError, *engine.refused)):
            engine.build(BLT, dimension=5, stddev=1.0, grid=grid).next(state)


def test_noise_that_float32_would_round_to_nothing_is_refused(engine):
    with pytest.raises(tff_mf.InputError, match="stddev=1e-40"):
        engine.build(BLT, dimension=2, stddev=1e-40)


def test_a_mechanism_from_outside_needs_a_recursion_or_a_last_round(engine, grid):
    Run(engine, any_matrix(mixed_matrix(20)), 20, grid=grid).assert_is_the_inverse_times_z()
    with pytest.raises(tff_mf.InputError, match=r"geometric.* no last round"):
        engine.build(geometric(), dimension=2, stddev=1.0, grid=grid)


def test_insecure_seeds_repeat_and_do_not_overlap(engine, grid):
    def drawn(engine, seed):
        stream = engine.build(tff_mf.Identity(), dimension=FEW, stddev=1.0, grid=grid, insecure_seed=seed)
        return rows_of(stream, 6)[0]

    np.testing.assert_array_equal(drawn(engine, 7), drawn(engine, 7))
    if grid is not None:
        np.testing.assert_array_equal(drawn(engine, 7), drawn(NUMPY, 7))
    values = np.concatenate([drawn(engine, seed).ravel() for seed in range(6)])
    assert len(np.unique(values)) >= values.size - 1


def test_given_keys_are_repeated_by_a_stream_that_was_asked_to(engine, grid):
    stream = engine.build(BLT, dimension=FEW, stddev=1.0, grid=grid)
    rows, state = rows_of(stream, 3)
    repeating = stream.repeating(engine.keys(state))
    again, repeated = rows_of(repeating, 3, engine.compiled(repeating))
    np.testing.assert_array_equal(engine.keys(repeated), engine.keys(state))
    assert_close(again, rows) if grid is None else np.testing.assert_array_equal(again, rows)
    assert not np.any(engine.keys(rows_of(stream, 1)[1]) == engine.keys(state)[0])
    with pytest.raises(engine.refused, match=ENDED(3)):
        repeating.next(repeated)


def test_keys_that_are_none_are_refused(engine):
    stream = engine.build(tff_mf.Tree(3), dimension=3, stddev=1.0)
    assert len(engine.keys(stream.replay(np.zeros([0, 2], np.int64)))) == 0
    for keys in (np.zeros([2, 3], np.int64), np.zeros([2, 2], np.float32), np.zeros([2], np.int64)):
        for use in (stream.replay, stream.repeating):
            with pytest.raises(tff_mf.InputError, match="keys"):
                use(keys)


def test_noise_is_never_rounded_down(engine):
    for stddev in (0.1, 0.7, 1 / 3, 7.379, 1e-30):
        stream = engine.build(tff_mf.Identity(), dimension=1, stddev=stddev)
        assert stddev <= float(stream.stddev) <= stddev * (1 + 2e-7)


def test_scales_on_a_grid_are_rounded_up(make_mechanism):
    mechanism = make_mechanism(20)
    recursion = found_of(mechanism).recursion
    for t, exact in enumerate(exact_scales(mechanism, 20)):
        assert exact * (1 - 1e-15) <= recursion.step(t).scale <= exact * (1 + 1e-12)


BAD = {"dimension": [0, 2.5], "stddev": [-1.0, np.nan, 1e39], "insecure_seed": [-1, 2**63, "7"], "mechanism": ["blt"]}


@pytest.mark.parametrize("field", BAD)
def test_bad_arguments(engine, field):
    for value in BAD[field]:
        with pytest.raises(tff_mf.InputError, match=f"^{field}="):
            engine.build(**{"mechanism": tff_mf.Identity(), "dimension": 2, "stddev": 1.0, field: value})


def test_a_dense_mechanism_on_a_grid_is_for_small_models(engine):
    with pytest.raises(tff_mf.InputError, match="dimension=10000000"):
        engine.build(tff_mf.Dense(matrix=np.eye(40)), dimension=10**7, stddev=1.0, grid=GRID)


def test_an_unstable_mechanism_ends_before_its_integers_are_inexact(engine):
    mechanism = tff_mf.BandedToeplitz(column=[1.0, -1.5])
    found = found_of(mechanism)
    assert found.rounds < 60
    run = Run(engine, mechanism, found.rounds, grid=GRID, dimension=FEW)
    assert np.abs(run.rows).max() <= found.largest <= 2**52
    with pytest.raises(engine.refused, match=ENDED(found.rounds)):
        run.stream.next(run.state)


def taking(mechanism, products):
    """The rows of a stream in NumPy for given s_t·z_t, [rounds, dimension], rounded to integers."""
    rounds, dimension = products.shape
    stream = NUMPY.build(mechanism, dimension=dimension, stddev=STDDEV, grid=GRID)
    stream = stream.repeating(np.stack([np.arange(rounds), np.zeros(rounds, np.int64)], axis=1))
    stream._scale = lambda step: products.dtype.type(1)
    write = lambda key, begin, out: np.copyto(out, products[key[0], begin : begin + len(out)])  # noqa: E731
    stream._generator = types.SimpleNamespace(write=write, part=10**6)
    return rows_of(stream, rounds)[0].astype(np.float64)


def shifted(mechanism, rounds, *, dimension, lattice=2.0**-10):
    """Returns n of z, and y − x′ of the z′ for which W = Cx + z is the same, in units of the grid: integers x."""
    generator = np.random.default_rng(0)
    products = np.rint(generator.normal(size=(rounds, dimension)) * 2e5 / lattice) * lattice
    data = np.zeros((rounds, dimension))
    # A client of the clip norm in some rounds: others' data is the same in both.
    some = generator.choice(rounds, size=max(1, rounds // 50), replace=False)
    data[some] = generator.integers(-4000, 4000, size=dimension)
    moved = products + data + couplings(found_of(mechanism), rounds) @ data
    return taking(mechanism, products), taking(mechanism, moved) - data


EXACT = {
    "vanilla": lambda rounds: tff_mf.Tree(rounds, variant="vanilla"),
    "blt of sums": lambda rounds: tff_mf.BLT(theta=[1.0], omega=[0.25]),
    "dyadic toeplitz": lambda rounds: tff_mf.BandedToeplitz(column=[1.0, 0.5, 0.375, 0.25]),
}


@pytest.mark.parametrize(("rounds", "lattice"), [(2000, 2.0**-10), (60, 0.5)])
@pytest.mark.parametrize("exact", EXACT)
def test_equal_releases_give_equal_sums_bit_for_bit(exact, rounds, lattice):
    """In NumPy, with as many rounds as a run has: other engines compute the same integers."""
    first, second = shifted(EXACT[exact](rounds), rounds, dimension=50, lattice=lattice)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("make", [lambda rounds: BLT, tff_mf.Tree], ids=["blt", "full"])
def test_equal_releases_give_equal_sums_up_to_the_error(make):
    """W is the same up to the rounding of Cx in this test, so that sums differ where a cell ends within that: rarely.

    n then is another integer, by one, and later rounds follow: their differences are those of past n.
    """
    first, second = shifted(make(40), 40, dimension=2000)
    assert np.mean(first != second) < 1e-3
