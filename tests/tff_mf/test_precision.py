"""No device makes noise hide less, or what is clipped longer.

Frameworks may compute matrix products of float32 with 7 or 10 bits of the factors: PyTorch and JAX where they are asked
to, TensorFlow on every GPU of the last years. Which settings matter depends on the processor. Therefore the tests have
a device with no other products, whose factors are rounded before each; what no such product is part of, no setting
shortens.
"""

import contextlib
import functools
from unittest import mock

import numpy as np
import pytest

import tff_mf

from .test_noise_laws import ALL_ENGINES, ENGINES, Run, jax, tf, torch

if torch is not None:
    from torch.utils._python_dispatch import TorchDispatchMode

    from tff_mf.frameworks.torch import clipped_sum

if jax is not None:
    from tff_mf.frameworks import optax

if tf is not None:
    from tensorflow.python.ops import gen_math_ops

    from tff_mf.queries import clipping

BANDED = tff_mf.BandedToeplitz.square_root(64)


def shortened(bits):
    """The bits of float32 numbers, int32, rounded to a mantissa of 10 bits, as in TF32."""
    return (bits + 2**12) & ~(2**13 - 1)


class OfTorch:
    """A device of PyTorch, and a product on it."""

    def few_bits(self):
        products = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "_addmm_activation", "convolution")

        class Device(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, given=(), named=None):
                if function.overloadpacket.__name__ in products:
                    given = [self._short(each) for each in given]
                return function(*given, **(named or {}))

            def _short(self, each):
                if isinstance(each, torch.Tensor) and each.dtype == torch.float32:
                    return shortened(each.view(torch.int32)).view(torch.float32)
                return each

        return Device()

    def product(self, one, other):
        return (torch.tensor(one) @ torch.tensor(other)).to(torch.float32).numpy()


class OfTensorFlow:
    """A device of TensorFlow."""

    @contextlib.contextmanager
    def few_bits(self):
        with contextlib.ExitStack() as stack:
            for name in ("mat_mul", "batch_mat_mul_v2", "batch_mat_mul_v3"):
                whole = getattr(gen_math_ops, name)
                stack.enter_context(mock.patch.object(gen_math_ops, name, functools.partial(self._short, whole)))
            yield

    def _short(self, whole, *given, **named):
        def short(each):
            if not tf.is_tensor(each) or each.dtype != tf.float32:
                return each
            bits = tf.bitcast(each, tf.int32) + 2**12
            return tf.bitcast(tf.bitwise.bitwise_and(bits, ~(2**13 - 1)), tf.float32)

        return whole(*map(short, given), **{name: short(each) for name, each in named.items()})

    def product(self, one, other):
        return tf.matmul(one, other).numpy()


class OfJAX:
    """A device of JAX."""

    @contextlib.contextmanager
    def few_bits(self):
        """Products are short unless they ask for the highest precision, which JAX has in float32 on every device."""
        whole = jax.lax.dot_general

        def dot_general(one, other, *given, precision=None, **named):
            if precision not in (jax.lax.Precision.HIGHEST, (jax.lax.Precision.HIGHEST,) * 2):
                one, other = map(self._short, (one, other))
            return whole(one, other, *given, precision=precision, **named)

        # Products are traced once for all settings that JAX knows of.
        jax.clear_caches()
        with mock.patch("jax._src.lax.lax.dot_general", dot_general):
            yield
        jax.clear_caches()

    def _short(self, each):
        if each.dtype != np.float32:
            return each
        bits = shortened(jax.lax.bitcast_convert_type(each, np.int32))
        return jax.lax.bitcast_convert_type(bits, np.float32)

    def product(self, one, other):
        return np.asarray(jax.numpy.matmul(one, other))


OF = {"tensorflow": OfTensorFlow(), "jax": OfJAX(), "torch": OfTorch()}
# NumPy's products of float32 are of float32.
CASES = [name for name in ENGINES if ALL_ENGINES[name][1] is not np]


@pytest.fixture(params=CASES)
def case(request):
    """The name of an engine, on a device that has products of few bits alone."""
    with OF[request.param].few_bits():
        yield request.param


@pytest.mark.parametrize("name", CASES)
def test_a_device_of_few_bits_rounds_factors(name):
    """Otherwise the other tests would say nothing."""
    one, other = np.random.default_rng(0).normal(size=(2, 32, 32)).astype(np.float32)
    exact = one.astype(np.float64) @ other.astype(np.float64)
    with OF[name].few_bits():
        short = OF[name].product(one, other)
    assert np.abs(OF[name].product(one, other) - exact).max() < 1e-5
    assert 1e-4 < np.abs(short - exact).max() < 1e-1


MECHANISMS = {
    "banded": BANDED,
    "dense": tff_mf.Dense(matrix=tff_mf.BLT.production("b400").encoder(13)),
    # Five terms or more are a matrix product in TensorFlow.
    "blt of 6 buffers": tff_mf.BLT(theta=[0.99, 0.9, 0.8, 0.7, 0.5, 0.3], omega=[0.1] * 6),
    "tree": tff_mf.Tree(21),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_is_that_of_the_mechanism(case, name):
    if case == "jax" and name != "banded":
        pytest.skip("JAX has products in banded noise alone, and takes long to compile.")
    mechanism = MECHANISMS[name]
    Run(ENGINES[case], mechanism, min(21, mechanism.max_rounds or 21), dimension=64).assert_is_the_inverse_times_z()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_no_term_is_longer_than_the_clip_norm(case, size):
    """Over two leaves together, each a batch of one example, so that the sum is its term."""
    for seed in range(5):
        generator = np.random.default_rng(seed)
        leaves = [(generator.normal(size=[1, *shape]) * 3).astype(np.float32) for shape in ((size,), (3, size))]
        for clip_norm in (1.0, 0.37):
            squares = sum(np.sum(np.square(each.astype(np.float64))) for each in clipped(case, leaves, clip_norm))
            assert 0.99 * clip_norm <= np.sqrt(squares) <= clip_norm


def clipped(case, leaves, clip_norm):
    if case == "torch":
        return [each.numpy() for each in clipped_sum([torch.tensor(leaf) for leaf in leaves], clip_norm)]
    if case == "jax":
        return [np.asarray(each) for each in optax.clipped_sum([jax.numpy.asarray(leaf) for leaf in leaves], clip_norm)]
    found = clipping.clip_record([tf.constant(leaf) for leaf in leaves], tf.constant(clip_norm))
    # The largest float32 that is at most 0.37 is what a query clips to.
    return [each.numpy() * (clip_norm / np.float32(clip_norm)) for each in found]


@pytest.mark.parametrize("diagonal", [(3.0, 3.0, 3.0), (3.0, 0.7, 1.1)], ids=["alike", "of each round"])
@pytest.mark.parametrize("name", ENGINES)
def test_noise_is_never_smaller_than_s_over_the_diagonal(name, diagonal):
    """A multiple of z_t, of which many coordinates tell more digits than one."""
    engine, mechanism = ENGINES[name], tff_mf.Banded(values=[diagonal])
    if len(set(diagonal)) == 1:
        mechanism = tff_mf.BandedToeplitz(column=diagonal[:1])
    exact = np.diag(mechanism.cast_to_float32().encoder(3))
    for stddev in (1.0, 0.7, 1.9, 2.3, 5.0, 7.379):
        run = Run(engine, mechanism, 3, compiled=False, dimension=2**12, stddev=stddev)
        z = engine.drawn_again(run.stream, run.keys)
        factors = np.sum(run.rows.astype(np.float64) * z, axis=1) / np.sum(z * z, axis=1)
        assert np.all(stddev / exact * (1 - 2.0**-27) <= factors)
        assert np.all(factors <= stddev / exact * (1 + 2.0**-21))
