"""Central training in JAX with optax: clipped sums of gradients, and the noise of a plan as a transformation.

Every example of one data set is protected. `tff_mf.Order` says which of them are in the batch of each round.
"""

import functools
import math
from typing import Any

from tff_mf.base import required_packages, validation
from tff_mf.base.errors import InputValueError
from tff_mf.problem import grids

required_packages.packages("tff_mf.frameworks.optax", "jax", "optax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.experimental import io_callback  # noqa: E402

from tff_mf.frameworks import _central  # noqa: E402
from tff_mf.noise.jax import NoiseState, NoiseStream, build_stream  # noqa: E402
from tff_mf.planning import Plan  # noqa: E402

_SMALLEST_NORM, _LARGEST_NORM = 1e-6, 1e6
_UNIT = 2.0**-24


def clipped_sum(
    gradients: Any, clip_norm: float, *, present: jax.Array | None = None, grid: grids.Grid | None = None
) -> Any:
    """Returns the sum over a batch of the gradients of single examples, each clipped to the norm ζ = `clip_norm`.

    Formal guarantee: the result is a sum of one term for each example, a function of that example's gradients alone.
    The L2 norm of a term, over all leaves together, is at most ζ in exact arithmetic, whatever the gradients are: they
    are scaled to a norm that is smaller by what sums of squares and products can be off in float32, in any order of
    summation. A term that is not finite is zero. The rounding of the sum over the batch is not covered.

    A gradient must depend on its example alone. Where cohorts are secret, known random numbers of layers that depend
    on the place in a batch break this: with one more example, those after it get other masks of dropout. Seed them
    from the system's randomness.

    Args:
        gradients: A pytree of gradients of single examples, `[batch, ...]` each, as `jax.vmap(jax.grad(...))` gives.
        clip_norm: ζ, from 1e-6 to 1e6.
        present: Which places of the batch hold an example, bool `[batch]`; all if `None`. Others contribute zero.
        grid: The grid of the plan, if it has one. It needs `jax_enable_x64`.

    Returns:
        A pytree of sums, float32; with a grid, float64 that hold integers, in units of the grid.

    Source: Abadi et al. (2016), algorithm 1.

    Example:
        >>> float(jnp.linalg.norm(clipped_sum(jnp.array([[30.0, 40.0]]), 1.0)).round(3))
        1.0

    Raises:
        InputError: If `clip_norm` is out of range, there are no gradients of one batch, its places exceed the
            `max_clients` of the grid, or JAX has no float64 for a grid.
    """
    if not _SMALLEST_NORM <= validation.positive("clip_norm", clip_norm) <= _LARGEST_NORM:
        raise InputValueError(f"clip_norm={clip_norm!r} must be at least {_SMALLEST_NORM} and at most {_LARGEST_NORM}.")
    leaves = jax.tree.leaves(gradients)
    if len({leaf.shape[:1] for leaf in leaves}) != 1 or leaves[0].ndim == 0:
        shapes = [leaf.shape for leaf in leaves]
        raise InputValueError(f"gradients of the shapes {shapes} must have one entry for each example of a batch.")
    flat = [leaf.astype(jnp.float32).reshape(len(leaf), math.prod(leaf.shape[1:])) for leaf in leaves]
    terms = _clipped(flat, clip_norm, present) if grid is None else _on_grid(flat, clip_norm, present, grid)
    sums = [jnp.sum(term, axis=0).reshape(leaf.shape[1:]) for term, leaf in zip(terms, leaves, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(gradients), sums)


def _clipped(flat: list[jax.Array], clip_norm: float, present: jax.Array | None) -> list[jax.Array]:
    """Returns the terms of a sum in float32, `[batch, size]` each."""
    sides = [max(1, math.isqrt(leaf.shape[1])) for leaf in flat]
    # Sums of sums: each of a square root of the terms, so that few roundings follow each other.
    squares = []
    for leaf, side in zip(flat, sides, strict=True):
        width = -(-leaf.shape[1] // side)
        padded = jnp.pad(leaf, [(0, 0), (0, side * width - leaf.shape[1])])
        squares.append(jnp.sum(jnp.square(padded).reshape(len(leaf), side, width), axis=2))
    # A compiler would make one sum of both.
    squares = jax.lax.optimization_barrier(squares)
    norms = jnp.sqrt(sum(jnp.sum(square, axis=1) for square in squares))
    roundings = max(2 * side + 3 for side in sides) + len(flat) + 8
    factors = jnp.minimum(1.0, clip_norm * (1 - roundings * _UNIT) / norms)
    factors = jnp.where(jnp.isfinite(norms) & (True if present is None else present), factors, 0.0)[:, np.newaxis]
    return [jnp.where(factors > 0, leaf * factors, 0.0) for leaf in flat]


def _on_grid(flat: list[jax.Array], clip_norm: float, present: jax.Array | None, grid: grids.Grid) -> list[jax.Array]:
    """Returns the terms of a sum as whole numbers in float64, `[batch, size]` each."""
    if not jax.config.read("jax_enable_x64"):
        raise InputValueError(f"grid={grid!r} needs float64: call jax.config.update('jax_enable_x64', True) first.")
    _central.check_places(len(flat[0]), grid)
    scale, aim = _central.scales(clip_norm, grid, sum(leaf.shape[1] for leaf in flat))
    factors = jnp.minimum(scale, aim / jnp.sqrt(_squares(flat)))[:, np.newaxis]
    # Barriers: numbers that are computed twice might differ in what is checked and what is added up.
    terms = jax.lax.optimization_barrier([jnp.round(leaf.astype(jnp.float64) * factors) for leaf in flat])
    # What rounding has made too long is made shorter, and rounded towards zero.
    squares = _squares(terms)
    shorter = jnp.where(squares > grid.largest_norm**2, (grid.largest_norm - 2) / jnp.sqrt(squares), 1.0)
    terms = jax.lax.optimization_barrier([jnp.trunc(term * shorter[:, np.newaxis]) for term in terms])
    # False too for what is not finite.
    taken = (_squares(terms) <= grid.largest_norm**2) & (True if present is None else present)
    return [jnp.where(taken[:, np.newaxis], term, 0.0) for term in terms]


def _squares(wide: list[jax.Array]) -> jax.Array:
    return sum((jnp.sum(jnp.square(leaf.astype(jnp.float64)), axis=1) for leaf in wide), start=jnp.zeros([]))


def correlated_noise(plan: Plan) -> optax.GradientTransformation:
    """Returns the transformation of clipped sums into noised means: the first of an `optax.chain`.

    Formal guarantee: over the rounds of one state, all updates are a function of one Gaussian release, whose guarantee
    is the plan's, if the gradients that round t gets are the `clipped_sum` over the examples of `Order.of(plan)` in it,
    with the plan's clip norm and grid. Noise is added for all leaves together, in float32, or exactly, in integers of
    the grid; a division and a cast to the types of `params`, or of the sums, follow. Each round draws a key of 128 bits
    from the operating system, in compiled functions too; a round after the plan's last one fails, and gives nothing. A
    wrapper that leaves out some leaves or rounds, such as `optax.masked`, releases them without noise: the noise comes
    first and outermost. On a grid, sums with fractions fail, such as the mean of several by `optax.MultiSteps`.

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
        >>> updates, state = jax.jit(optimizer.update)(jnp.ones([3], jnp.float32), state)
        >>> updates.shape, int(state[0].round)
        ((3,), 1)

    Raises:
        InputValueError: If it has restarts, adaptive clipping, fewer parameters, or simulates a larger cohort.
    """
    _central.check_central(plan)

    @functools.cache
    def stream(dimension: int) -> NoiseStream:
        return build_stream(plan.mechanism, dimension=dimension, **_central.noise_of(plan, dimension)).limited_to(
            plan.rounds
        )

    def init(params: Any) -> NoiseState:
        _check_whole(params)
        return stream(_dimension(params)).init()

    def update(updates: Any, state: NoiseState, params: Any = None) -> tuple[Any, NoiseState]:
        _check_whole(updates)
        leaves, tree = jax.tree.flatten(updates)
        _central.check_units({str(leaf.dtype) for leaf in leaves}, plan)
        # Sums on a grid are float64, which weights rarely are.
        kinds = [jnp.float32 if leaf.dtype == jnp.float64 else leaf.dtype for leaf in leaves]
        kinds = kinds if params is None else [leaf.dtype for leaf in jax.tree.leaves(params)]
        leaves = [_of_one_run(state.round, leaf) for leaf in leaves]
        if plan.grid is not None:
            state = state._replace(round=state.round + _refused(leaves, plan))
        row, state = stream(_dimension(updates)).next(state)
        parts = jnp.split(row, [sum(leaf.size for leaf in leaves[:end]) for end in range(1, len(leaves))])
        noised = [
            (
                (leaf.astype(row.dtype) + noise.reshape(leaf.shape)) * _central.unit_of(plan) / plan.clients_per_round
            ).astype(kind)
            for leaf, noise, kind in zip(leaves, parts, kinds, strict=True)
        ]
        return jax.tree.unflatten(tree, noised), state

    return optax.GradientTransformation(init, update)


def _refused(leaves: list[jax.Array], plan: Plan) -> Any:
    """Returns 0 if sums on a grid fit it, and fails otherwise, in compiled functions too."""
    assert plan.grid is not None
    largest, fit = plan.grid.largest_sum, jnp.bool_(True)
    for leaf in leaves:
        # False too for NaN.
        fit &= jnp.all((leaf == jnp.trunc(leaf)) & (jnp.abs(leaf) <= largest))

    def check(fit: Any) -> Any:
        _central.check_integers(bool(fit), plan)
        return np.int32(0)

    return (
        io_callback(check, jax.ShapeDtypeStruct([], np.int32), fit) if isinstance(fit, jax.core.Tracer) else check(fit)
    )


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
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, optax.MaskedNode))
    if any(isinstance(leaf, optax.MaskedNode) for leaf in leaves):
        raise InputValueError(
            "updates lack leaves that optax.masked or multi_transform took away, and that would have no noise: put "
            "correlated_noise first and outermost, and wrap what follows it."
        )


def _dimension(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
