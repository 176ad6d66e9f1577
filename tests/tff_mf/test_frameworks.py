"""Laws of central training over frameworks: clipped sums, noised means, checkpoints and refusals of optax and PyTorch.

A framework is a class of a few functions. What each has of its own is in test_optax.py, test_torch.py.
"""

import io
import itertools
import pathlib
import pickle
import re
import runpy
from typing import Any

import numpy as np
import pytest

import tff_mf
from tff_mf.base import required_packages
from tff_mf.noise import numpy as streams

try:
    import jax
    import jax.numpy as jnp
    import optax  # noqa: F401

    from tff_mf.frameworks import optax as with_optax
except ImportError:
    jax = None

try:
    import torch

    from tff_mf.frameworks import torch as with_torch
except ImportError:
    torch = None

DOCS = pathlib.Path(__file__).parents[2] / "docs"
NOTEBOOKS = runpy.run_path(str(DOCS / "notebooks.py"))
BLT = tff_mf.BLT.production("b100")
# The first leaf is of float32, the second of bfloat16.
SHAPES = ((2, 3), (4,))
DIMENSION = 10


class InJAX:
    """A loop of updates with optax, whose state is its own."""

    refused: Any = jax and (tff_mf.InputError, jax.errors.JaxRuntimeError)
    generator = "tensorflow"
    compiled = False

    def __init__(self, plan, shapes=SHAPES):
        self.x64 = plan.grid is not None
        kinds = (jnp.float32, jnp.bfloat16)
        self.params = [jnp.zeros(shape, kind) for shape, kind in zip(shapes, kinds, strict=False)]
        with jax.enable_x64(self.x64):
            transformation = with_optax.correlated_noise(plan)
            self.update = jax.jit(transformation.update) if self.compiled else transformation.update
            self.state = transformation.init(self.params)

    def means(self, sums, kind=None):
        kind = kind or ("float64" if self.x64 else None)
        with jax.enable_x64(self.x64 or kind == "float64"):
            given = [jnp.asarray(each, kind or leaf.dtype) for each, leaf in zip(sums, self.params, strict=True)]
            updates, self.state = jax.block_until_ready(self.update(given, self.state, self.params))
        assert [(each.shape, each.dtype) for each in updates] == [(each.shape, each.dtype) for each in self.params]
        return [np.asarray(each, np.float64) for each in updates]

    @property
    def keys(self):
        return self.state.past_keys

    def saved(self):
        return pickle.loads(pickle.dumps(jax.device_get(self.state)))

    def load(self, saved):
        self.state = saved

    @staticmethod
    def clipped(gradients, clip_norm, *, grid=None, present=None):
        """Compiled on a grid, where each operation alone would be compiled otherwise."""
        compiled = jax.jit(with_optax.clipped_sum, static_argnames=("clip_norm", "grid"))
        with jax.enable_x64(grid is not None):
            given = [jnp.asarray(each, jnp.float32) for each in gradients]
            present = None if present is None else jnp.asarray(present)
            run = compiled if grid else with_optax.clipped_sum
            return [
                np.asarray(each, np.float64) for each in run(given, clip_norm=clip_norm, grid=grid, present=present)
            ]


class InCompiledJAX(InJAX):
    """The same loop, compiled."""

    compiled = True


class InTorch:
    """A loop of backward passes with PyTorch."""

    refused = (tff_mf.InputError,)
    generator = "aes" if required_packages.is_installed("cryptography") else "philox"

    def __init__(self, plan, shapes=SHAPES):
        kinds = (torch.float32, torch.bfloat16)
        tensors = [torch.zeros(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=False)]
        self.params, self.x64 = [torch.nn.Parameter(each) for each in tensors], plan.grid is not None
        if self.x64:
            self.generator = "tensorflow"
        self.noise = with_torch.CorrelatedNoise(plan, self.params)

    def means(self, sums, kind=None):
        kind = getattr(torch, kind or ("float64" if self.x64 else "float32"))
        self.noise.apply([torch.as_tensor(np.asarray(each, np.float64)).to(kind) for each in sums])
        for each in self.params:
            assert (each.grad.shape, each.grad.dtype) == (each.shape, each.dtype)
        return [each.grad.to(torch.float64).numpy() for each in self.params]

    @property
    def keys(self):
        return self.noise.state_dict()["keys"].numpy()

    def saved(self):
        file = io.BytesIO()
        torch.save(self.noise.state_dict(), file)
        file.seek(0)
        return torch.load(file)

    def load(self, saved):
        self.noise.load_state_dict(saved)

    @staticmethod
    def clipped(gradients, clip_norm, *, grid=None, present=None):
        given = [torch.as_tensor(np.asarray(each)).to(torch.float32) for each in gradients]
        present = None if present is None else torch.as_tensor(present)
        found = with_torch.clipped_sum(given, clip_norm, grid=grid, present=present)
        return [each.to(torch.float64).numpy() for each in found]


FRAMEWORKS = {} if jax is None else {"jax": InJAX, "compiled jax": InCompiledJAX}
FRAMEWORKS |= {} if torch is None else {"torch": InTorch}
if not FRAMEWORKS:
    pytest.skip("neither optax nor PyTorch", allow_module_level=True)


@pytest.fixture(params=FRAMEWORKS.values(), ids=FRAMEWORKS)
def framework(request):
    return request.param


@pytest.fixture(params=[pytest.param(FRAMEWORKS[name], id=name) for name in FRAMEWORKS if "compiled" not in name])
def clipped(request):
    """The sum of clipped gradients of a framework."""
    return request.param.clipped


def plan(**changes):
    given = {"mechanism": BLT, "rounds": 6, "clients_per_round": 4, "noise_multiplier": 2.0, "delta": 1e-5}
    return tff_mf.plan(**{"sampling": tff_mf.FixedEpoch(min_sep=3, max_participations=2), **given} | changes)


def flat(leaves):
    return np.concatenate([np.ravel(each) for each in leaves])


def zeros():
    return [np.zeros(shape) for shape in SHAPES]


def test_means_are_those_of_the_noised_sums(framework):
    trained = framework(plan(clip_norm=0.5))
    found = [trained.means([np.full(shape, float(step)) for shape in SHAPES]) for step in range(6)]
    same = streams.build_stream(BLT, dimension=DIMENSION, stddev=1.0, generator=trained.generator)
    same = same.repeating(trained.keys)
    state = same.init()
    for step, means in enumerate(found):
        drawn, state = same.next(state)
        np.testing.assert_allclose(means[0].ravel(), (step + drawn[:6]) / 4, atol=1e-5)
        np.testing.assert_allclose(means[1].ravel(), (step + drawn[6:]) / 4, rtol=2**-7, atol=1e-3)
    with pytest.raises(framework.refused, match="6 rounds, and all of them have run"):
        trained.means(zeros())


def test_means_on_a_grid_are_what_the_integers_say(framework):
    """Of the sum of the release that is accounted for: bit for bit, but for a compiler's order of two constants."""
    given, generator = plan(clip_norm=0.5).for_model(DIMENSION), np.random.default_rng(0)
    trained, seen = framework(given), []
    for _ in range(6):
        gradients = [generator.normal(size=(5, *shape)) for shape in SHAPES]
        sums = framework.clipped(gradients, 0.5, grid=given.grid)
        seen.append((flat(sums), flat(trained.means(sums))))
    setting = {"dimension": DIMENSION, "stddev": given.noise_multiplier, "grid": given.grid}
    same = streams.build_stream(BLT, **setting, generator=trained.generator).repeating(trained.keys)
    state, unit = same.init(), 0.5 / given.grid.largest_norm
    for total, means in seen:
        drawn, state = same.next(state)
        released = (total.astype(np.int64) + drawn) * unit / 4
        # After the sum is exact, that is post-processing.
        np.testing.assert_allclose(means[:6], released[:6], rtol=2**-23)
        np.testing.assert_allclose(means[6:], released[6:], rtol=2**-7)


def test_sums_in_other_units_are_refused(framework):
    for given, kind in ((plan(), "float64"), (plan().for_model(DIMENSION), "float32")):
        with pytest.raises(tff_mf.InputError, match=r"grid=plan\.grid"):
            framework(given).means(zeros(), kind)
    with pytest.raises(tff_mf.InputError, match=f"dimension={DIMENSION - 1}"):
        framework(plan().for_model(DIMENSION - 1))
    with pytest.raises(tff_mf.InputError, match="max_clients=9"):
        framework.clipped([np.zeros([10, 3])], 1.0, grid=tff_mf.Grid(bits=16, max_clients=9))


@pytest.mark.parametrize("value", [0.5, 2.0**-30, 100 * 2**16 + 1, np.nan, np.inf])
def test_sums_that_are_no_integers_of_the_grid_are_refused(framework, value):
    """Whole noise hides no fractions: the mean of two sums would tell which of them are odd."""
    sums = zeros()
    sums[0][1, 2] = value
    trained = framework(plan(grid=tff_mf.Grid(bits=16, max_clients=100), dimension=DIMENSION))
    with pytest.raises(framework.refused, match="at most 6553600"):
        trained.means(sums)
    assert len(trained.keys) == 0


def test_a_checkpoint_continues_the_noise(framework):
    first, later = framework(plan()), framework(plan())
    first.means(zeros())
    later.load(first.saved())
    later.means(zeros())
    assert len(later.keys) == 2
    np.testing.assert_array_equal(later.keys[0], first.keys[0])

    def resumed(trained):
        trained.load(first.saved())
        trained.means([np.zeros(each.shape) for each in trained.params])

    for other in (framework(plan(noise_multiplier=3.0)), framework(plan(), [(3,)])):
        with pytest.raises(framework.refused, match=r"other noise|other rows|row_0"):
            resumed(other)


@pytest.mark.parametrize("changes", [{"restart_every": 3}, {"cohort": 8}, {"adaptive_count_stddev": 1.0}], ids=str)
def test_plans_of_other_runs_are_refused(framework, changes):
    with pytest.raises(tff_mf.InputError, match=next(iter(changes))):
        framework(plan(**changes))


def test_clipped_sums_are_those_of_a_loop(clipped):
    generator = np.random.default_rng(0)
    lengths = generator.exponential(size=7) / 5
    gradients = [
        generator.normal(size=shape) * lengths.reshape(-1, *[1] * (len(shape) - 1)) for shape in ([7, 3, 5], [7, 11])
    ]
    present = np.arange(7) != 2
    found = clipped(gradients, 0.8, present=present)
    norms = np.sqrt(sum((each.reshape(7, -1) ** 2).sum(axis=1) for each in gradients))
    assert norms.min() < 0.8 < norms.max()
    factors = np.minimum(1, 0.8 / norms) * present
    for ours, value in zip(found, gradients, strict=True):
        np.testing.assert_allclose(ours, np.tensordot(factors, value, axes=1), atol=2e-5)
    assert not np.any(clipped([np.zeros([0, 3])], 1.0)[0])


SCALES = (1e-20, 1e-3, 1.0, 1e15, 1e30, np.nan, np.inf)


@pytest.mark.parametrize("size", [1, 17, 12_345, 300_000])
def test_no_norm_exceeds_the_clip_norm(clipped, size):
    """In exact arithmetic: the squares of float32 numbers are exact in float64, and their sum nearly."""
    cauchy = np.random.default_rng(size).standard_cauchy(size)
    for scale in SCALES:
        norm = np.linalg.norm(cauchy * scale)
        found = np.linalg.norm(clipped([cauchy[np.newaxis] * scale], 1.0)[0])
        assert found <= 1, scale
        if norm < 1e18:
            assert found >= min(norm, 1) * (1 - 1e-3) - 1e-12, scale
    # Factors below 2⁻¹²⁶ would be rounded to multiples of 2⁻¹⁴⁹: a term of 17 values had nearly twice the norm.
    for clip_norm, part in itertools.product((1e-6, 1.0, 1e6), (1, 2, 3, 10, 1e3, 1e6)):
        flat = np.full((1, size), np.finfo(np.float32).max / part)
        assert np.linalg.norm(clipped([flat], clip_norm)[0]) <= clip_norm


@pytest.mark.parametrize("size", [1, 10, 100_000])
@pytest.mark.parametrize("bits", [8, 16, 26])
def test_no_norm_exceeds_the_clip_norm_on_a_grid(clipped, size, bits):
    cauchy, grid = np.random.default_rng(size).standard_cauchy([3, size]), tff_mf.Grid(bits=bits, max_clients=3)
    for scale in SCALES:
        values = cauchy * scale
        terms = [clipped([each], 1.0, grid=grid)[0] for each in values[:, np.newaxis]]
        np.testing.assert_array_equal(clipped([values], 1.0, grid=grid)[0], np.sum(terms, axis=0))
        for value, term in zip(values, terms, strict=True):
            assert np.array_equal(term, np.rint(term))
            assert np.sum(term.astype(np.int64) ** 2) <= 4**bits, scale
            if 1e-3 < np.linalg.norm(value) < 1e30 and size < 2**bits:
                away = value * min(1, 1 / np.linalg.norm(value)) - term / 2**bits
                assert np.linalg.norm(away) <= (np.sqrt(size) + 3) / 2**bits


# Of JAX in CI: what stands in the notebook, and what takes its place; what it prints then is not compared.
SMALLER = {
    "epochs, batch_size = 20, 128": "epochs, batch_size = 2, 128",
    "train(weights, state, 100)": "train(weights, state, 10)",
}


@pytest.mark.parametrize("name", ["jax", "pytorch"])
def test_a_tutorial_runs_and_prints_its_stored_output(name, tmp_path, monkeypatch, request):
    pytest.importorskip("sklearn")
    pytest.importorskip(name.removeprefix("py"))
    monkeypatch.chdir(tmp_path)
    notebook = NOTEBOOKS["read"](DOCS / "tutorials" / f"{name}.ipynb")
    smaller = name == "jax" and not request.config.getoption("--long")
    if smaller:
        notebook = NOTEBOOKS["changed"](notebook, SMALLER)
    # The notebook switches it on for good.
    before = name == "jax" and jax.config.jax_enable_x64
    try:
        outputs = list(NOTEBOOKS["printed"](notebook))
    finally:
        if name == "jax":
            jax.config.update("jax_enable_x64", before)
    assert outputs[-1][1].startswith("ε = 8.000 at δ = 1e-05, for one example, over all ")
    if smaller:
        return
    for cell, text in outputs:
        assert NOTEBOOKS["compared"](cell, text) == NOTEBOOKS["compared"](cell, NOTEBOOKS["stored"](cell))
    assert float(re.search(r"([\d.]+) % of the test digits", "".join(text for _, text in outputs))[1]) > 75
