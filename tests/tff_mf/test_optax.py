"""Noise in JAX beyond the laws of all engines, and central training with optax, against NumPy and plain loops."""

import os
import subprocess
import sys

import numpy as np
import pytest

import tff_mf

pytest.importorskip("optax")
jax = pytest.importorskip("jax", minversion="0.10")
import jax.numpy as jnp  # noqa: E402

from tff_mf.frameworks.optax import clipped_sum  # noqa: E402
from tff_mf.noise import _jax_normals as _normals  # noqa: E402
from tff_mf.noise import jax as in_jax  # noqa: E402
from tff_mf.noise import numpy as streams  # noqa: E402
from tff_mf.numerics import normals  # noqa: E402

BLT = tff_mf.BLT.production("b100")


@pytest.fixture(autouse=True)
def _floats():
    """As JAX begins; the laws of noise switch 64 bits on for the process."""
    with jax.enable_x64(False):
        yield


@pytest.mark.parametrize("left", [2**9, 1], ids=["all fit", "more than have room"])
def test_exact_normals_are_those_of_numpy(monkeypatch, left):
    monkeypatch.setattr(_normals, "_LEFT_OF_A_PART", left)
    with jax.enable_x64(True):
        _normals.exact_normal.clear_cache()
        for seed in range(5):
            key = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, 2)
            found = _normals.exact_normal(key.view(np.uint32), 20_000)
            np.testing.assert_array_equal(found, normals.draw(key, 20_000))
        _normals.exact_normal.clear_cache()


def test_deep_levels_are_those_of_numpy(monkeypatch):
    """Words that descend to the last level are drawn once in 10⁴⁰ rows: here all words are such."""
    drawn = normals.words

    def descending(key, block, count):
        found = drawn(key, block, count)
        return np.full_like(found, 2**63 - 1) if count % normals.WORDS_OF_A_PIECE == 0 else found | 511

    class Descending(_normals._Generator):
        def words(self, block):
            first, second = super().words(block)
            if block.ndim == 1:
                return first | 511, second | 511
            return jnp.full_like(first, 2**63 - 1), jnp.full_like(second, 2**63 - 1)

    monkeypatch.setattr(normals._philox, "words", descending)
    monkeypatch.setattr(_normals, "_Generator", Descending)
    with jax.enable_x64(True):
        _normals.exact_normal.clear_cache()
        key = np.array([1, 2])
        found = _normals.exact_normal(key.view(np.uint32), 64)
        _normals.exact_normal.clear_cache()
    expected = normals.draw(key, 64)
    np.testing.assert_array_equal(found, expected)
    assert np.all(np.abs(expected) > 13)


def in_a_process(code, **environment):
    # -P: the folder of these tests has the name of the package.
    command = [sys.executable, "-P", "-c", code]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, **environment})


def test_devices_that_would_draw_a_key_each_are_refused():
    in_a_process(
        "import jax, jax.numpy as jnp, tff_mf; from tff_mf.noise.jax import build_stream\n"
        "s = build_stream(tff_mf.Tree(5), dimension=6, stddev=1.0); one = s.init()\n"
        "two = jax.tree.map(lambda each: jnp.stack([each, each]), one)\n"
        "P = jax.sharding.PartitionSpec; mesh = jax.make_mesh((2,), ('i',))\n"
        "specs = {'in_specs': (P(),), 'out_specs': P('i'), 'check_vma': False}\n"
        "shared = jax.shard_map(lambda t: s.next(t)[0], mesh=mesh, **specs)\n"
        "for run, state in ((jax.pmap(s.next, axis_name='i'), two), (jax.jit(shared), one)):\n"
        "    try: run(state)\n"
        "    except tff_mf.InputError as error: assert 'pmap or shard_map' in str(error)\n"
        "    else: raise SystemExit('not refused')\n"
        "with jax.sharding.set_mesh(mesh): assert jax.jit(s.next)(one)[0].shape == (6,)\n",
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )


def test_sums_of_squares_are_of_few_terms_whatever_the_compiler_does():
    """Without trees of sums, 2²⁴ squares that follow each other are off by more than any margin."""
    in_a_process(
        "import jax, jax.numpy as jnp, numpy as np; from tff_mf.frameworks.optax import clipped_sum\n"
        "found = jax.jit(clipped_sum, static_argnums=1)(jnp.full([1, 2**24], 0.1), 1.0)\n"
        "assert 0.99 < np.linalg.norm(np.asarray(found, np.float64)) <= 1\n",
        XLA_FLAGS="--xla_disable_hlo_passes=tree_reduction_rewriter --xla_cpu_experimental_ynn_fusion_type=",
    )


@pytest.mark.parametrize("outside", [lambda step: step, jax.jit], ids=["plain", "compiled"])
def test_members_of_a_vmap_do_not_share_the_state_of_a_stream(outside):
    stream = in_jax.build_stream(tff_mf.BLT.production("b100"), dimension=3, stddev=1.0)
    members, inner = np.arange(2), jax.vmap(lambda _: stream.init())

    def step(member, state):
        return member + stream.next(state)[0]

    several = jax.vmap(inner)(np.zeros([2, 2]))
    rows = outside(jax.vmap(jax.vmap(step)))(np.zeros([2, 2]), several)
    assert len(np.unique(rows)) == rows.size
    for mapped, given in (
        (jax.vmap(step, (0, None)), (members, stream.init())),
        (jax.vmap(jax.vmap(step, (0, None))), (np.zeros([2, 2]), inner(members))),
        (jax.vmap(lambda member: step(member, stream.init())), (members,)),
    ):
        with pytest.raises(tff_mf.InputError, match=r"one for all members of a vmap.*a state of its own"):
            outside(mapped)(*given)


def test_without_x64_floats_run_and_a_grid_is_refused():
    stream = in_jax.build_stream(tff_mf.Tree(5), dimension=9, stddev=1.0)
    row, state = jax.jit(stream.next)(stream.init())
    assert row.dtype == "float32"
    assert state.round == 1
    grid = tff_mf.Grid(bits=16, max_clients=9)
    with pytest.raises(tff_mf.InputError, match=r"grid.*jax_enable_x64"):
        in_jax.build_stream(tff_mf.Tree(5), dimension=9, stddev=1.0, grid=grid)
    with pytest.raises(tff_mf.InputError, match="jax_enable_x64"):
        clipped_sum(jnp.zeros([9, 3]), 1.0, grid=grid)


def test_a_state_from_outside_of_the_compiled_function_is_refused():
    stream = in_jax.build_stream(BLT, dimension=3, stddev=1.0)
    state = stream.init()
    with pytest.raises(tff_mf.InputError, match="argument of the compiled function"):
        jax.jit(lambda: stream.next(state)[0])()
    # A state that begins in the function is none.
    assert jax.jit(lambda: stream.next(stream.init())[0])().shape == (3,)


def test_a_loop_in_one_program_draws_a_key_each_round():
    stream = in_jax.build_stream(BLT, dimension=3, stddev=1.0).limited_to(8)
    state, rows = jax.jit(lambda state: jax.lax.scan(lambda carried, _: stream.next(carried)[::-1], state, length=8))(
        stream.init()
    )
    assert len(np.unique(state.past_keys)) == 16
    same = streams.build_stream(BLT, dimension=3, stddev=1.0, generator="tensorflow").repeating(state.past_keys)
    expected, found = same.init(), []
    for _ in range(8):
        row, expected = same.next(expected)
        found.append(row)
    np.testing.assert_allclose(rows, found, atol=1e-5)


def test_states_tell_no_secret():
    state = in_jax.build_stream(BLT, dimension=3, stddev=1.0, insecure_seed=1).init()
    assert "secret" in repr(state)
    assert "keys" not in repr(state)


def test_a_state_stepped_twice_in_one_program_draws_two_keys():
    stream = in_jax.build_stream(BLT, dimension=3, stddev=1.0)
    (first, one), (second, other) = jax.jit(lambda state: (stream.next(state), stream.next(state)))(stream.init())
    assert not np.any(first == second)
    assert not np.any(one.past_keys == other.past_keys)
