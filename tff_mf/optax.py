"""Central training in JAX with optax: clipped sums of gradients, and the noise of a plan as a transformation.

Every example of one data set is protected. `tff_mf.Order` says which of them are in the batch of each round.
"""

import functools
import math
from typing import Any

from tff_mf.base import required_packages, validation
from tff_mf.base.errors import InputValueError

required_packages.packages("tff_mf.optax", "jax", "optax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

from tff_mf.noise.jax import NoiseState, NoiseStream, build_stream  # noqa: E402
from tff_mf.planning import Plan  # noqa: E402
from tff_mf.planning.order import check_central  # noqa: E402

_SMALLEST_NORM, _LARGEST_NORM = 1e-6, 1e6
_UNIT = 2.0**-24


def clipped_sum(gradients: Any, clip_norm: float, *, present: jax.Array | None = None) -> Any:
    """Returns the sum over a batch of the gradients of single examples, each clipped to the norm ζ = `clip_norm`.

    Formal guarantee: the result is a sum of one term for each example, a function of that example's gradients alone.
    The L2 norm of a term, over all leaves together, is at most ζ in exact arithmetic, whatever the gradients are: they
    are scaled to a norm that is smaller by what sums of squares and products can be off in float32, in any order of
    summation. A term that is not finite is zero. The rounding of the sum over the batch is not covered.

    Args:
        gradients: A pytree of gradients of single examples, `[batch, ...]` each, as `jax.vmap(jax.grad(...))` gives.
        clip_norm: ζ, from 1e-6 to 1e6.
        present: Which places of the batch hold an example, bool `[batch]`; all if `None`. Others contribute zero.

    Returns:
        A pytree of sums, float32.

    Source: Abadi et al. (2016), algorithm 1.

    Example:
        >>> float(jnp.linalg.norm(clipped_sum(jnp.array([[30.0, 40.0]]), 1.0)).round(3))
        1.0

    Raises:
        InputError: If `clip_norm` is out of range, or there are no gradients of one batch.
    """
    if not _SMALLEST_NORM <= validation.positive("clip_norm", clip_norm) <= _LARGEST_NORM:
        raise InputValueError(f"clip_norm={clip_norm!r} must be at least {_SMALLEST_NORM} and at most {_LARGEST_NORM}.")
    leaves = jax.tree.leaves(gradients)
    if len({leaf.shape[:1] for leaf in leaves}) != 1 or leaves[0].ndim == 0:
        shapes = [leaf.shape for leaf in leaves]
        raise InputValueError(f"gradients of the shapes {shapes} must have one entry for each example of a batch.")
    flat = [leaf.astype(jnp.float32).reshape(len(leaf), math.prod(leaf.shape[1:])) for leaf in leaves]
    sides = [max(1, math.isqrt(leaf.shape[1])) for leaf in flat]
    # Sums of sums: each of a square root of the terms, so that few roundings follow each other.
    squares = []
    for leaf, side in zip(flat, sides, strict=True):
        width = -(-leaf.shape[1] // side)
        padded = jnp.pad(leaf, [(0, 0), (0, side * width - leaf.shape[1])])
        squares.append(jnp.sum(jnp.square(padded).reshape(len(leaf), side, width), axis=2))
    # A compiler would make one sum of both.
    squares = jax.lax.optimization_barrier(squares)
    norms = jnp.sqrt(sum(jnp.sum(each, axis=1) for each in squares))
    roundings = max(2 * side + 3 for side in sides) + len(leaves) + 8
    factors = jnp.minimum(1.0, clip_norm * (1 - roundings * _UNIT) / norms)
    factors = jnp.where(jnp.isfinite(norms) & (True if present is None else present), factors, 0.0)
    return jax.tree.map(
        lambda leaf: jnp.sum(
            jnp.where(
                (factors > 0).reshape(-1, *[1] * (leaf.ndim - 1)),
                leaf.astype(jnp.float32) * factors.reshape(-1, *[1] * (leaf.ndim - 1)),
                0.0,
            ),
            axis=0,
        ),
        gradients,
    )


def correlated_noise(plan: Plan) -> optax.GradientTransformation:
    """Returns the transformation of clipped sums into noised means: the first of an `optax.chain`.

    Formal guarantee: over the rounds of one state, all updates are a function of one Gaussian release, whose guarantee
    is the plan's, if the gradients that round t gets are the `clipped_sum` over the examples of `Order.of(plan)` in it,
    with the plan's clip norm. Noise is added in float32, for all leaves together, before a cast to their types. Each
    round draws a key of 128 bits from the operating system, in compiled functions too; a round after the plan's last
    one fails, and gives nothing. A wrapper that leaves out some leaves or rounds, such as `optax.masked`, releases them
    without noise: the noise comes first and outermost.

    The state is secret, as the noise can be subtracted with it. It is a pytree, which any checkpoint of JAX can hold:
    save it before anything of the round is released, and continue from the newest one.

    Args:
        plan: The plan, whose `clients_per_round` is the size of a batch, on average if it samples at random.

    Example:
        >>> import tff_mf
        >>> plan = tff_mf.plan(mechanism=tff_mf.BLT.production("b100"), rounds=20, epsilon=8.0, delta=1e-5, grid=None,
        ...                    sampling=tff_mf.FixedEpoch(min_sep=10, max_participations=2), clients_per_round=4)
        >>> optimizer = optax.chain(correlated_noise(plan), optax.sgd(0.1, momentum=0.9))
        >>> weights = jnp.zeros([3])
        >>> state = optimizer.init(weights)
        >>> updates, state = jax.jit(optimizer.update)(jnp.ones([3]), state)
        >>> updates.shape, int(state[0].round)
        ((3,), 1)

    Raises:
        InputTypeError: If `plan` is not a plan.
        InputValueError: If it has a grid, restarts, adaptive clipping, or simulates a larger cohort.
    """
    check_central(plan)

    @functools.cache
    def stream(dimension: int) -> NoiseStream:
        return build_stream(
            plan.mechanism,
            dimension=dimension,
            stddev=plan.noise_multiplier * plan.clip_norm,
            insecure_seed=plan.insecure_seed,
        ).limited_to(plan.rounds)

    def init(params: Any) -> NoiseState:
        _check_whole(params)
        return stream(_dimension(params)).init()

    def update(updates: Any, state: NoiseState, params: Any = None) -> tuple[Any, NoiseState]:
        del params
        _check_whole(updates)
        leaves, tree = jax.tree.flatten(updates)
        leaves = [_of_one_run(state.round, leaf) for leaf in leaves]
        row, state = stream(_dimension(updates)).next(state)
        parts = jnp.split(row, [sum(leaf.size for leaf in leaves[:end]) for end in range(1, len(leaves))])
        noised = [
            ((leaf.astype(jnp.float32) + part.reshape(leaf.shape)) / plan.clients_per_round).astype(leaf.dtype)
            for leaf, part in zip(leaves, parts, strict=True)
        ]
        return jax.tree.unflatten(tree, noised), state

    return optax.GradientTransformation(init, update)


@jax.custom_batching.custom_vmap
def _of_one_run(done: jax.Array, leaf: jax.Array) -> jax.Array:
    """Returns a leaf, and fails if members of a `vmap` would get the same noise, as their round is one."""
    del done
    return leaf


@_of_one_run.def_vmap
def _of_members(axis_size: int, batched: list[bool], done: jax.Array, leaf: jax.Array) -> tuple[jax.Array, bool]:
    if not batched[0]:
        raise InputValueError(
            f"state is one for {axis_size} members of a vmap, which would all get the same noise: give each a state of "
            "its own, with jax.vmap of init too."
        )
    return _of_one_run(done, leaf), batched[1]


def _check_whole(tree: Any) -> None:
    """Raises if a wrapper has taken leaves away, which nothing would add noise to."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda each: isinstance(each, optax.MaskedNode))
    if any(isinstance(each, optax.MaskedNode) for each in leaves):
        raise InputValueError(
            "updates lack leaves that optax.masked or multi_transform took away, and that would have no noise: put "
            "correlated_noise first and outermost, and wrap what follows it."
        )


def _dimension(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
