"""Streams the correlated noise C⁻¹z in JAX, on the device of the parameters, in compiled functions too.

The host decides a round, and the device computes it. A callback refuses, draws the key, and computes the few numbers of
a round with the rules that NumPy has. The rows of memory and of noise never leave the device.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_mf.base import required_packages
from tff_mf.base.errors import InputTypeError, InputValueError, MissingDependencyError
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import DRAWN, NEW, PAST, Entry, Operations, Terms
from tff_mf.noise._dict_stream import REMEDY
from tff_mf.noise._keyed import KEY_WORDS, OTHER_NOISE, KeyedStream, float32_at_least
from tff_mf.problem import grids
from tff_mf.problem.grids import Grid

required_packages.packages("Noise in JAX", "jax")

import jax  # noqa: E402

if jax.__version_info__ < (0, 10):
    raise MissingDependencyError(
        f"Noise in JAX needs jax 0.10 or newer, and this is {jax.__version__}, as TensorFlow Federated requires it. In "
        f"another environment, run: {required_packages.JAX_COMMAND}"
    )

import jax.numpy as jnp  # noqa: E402
from jax.experimental import io_callback  # noqa: E402
from jax.extend.core import take_current_trace  # noqa: E402

from tff_mf.noise._jax_normals import exact_normal, standard_normal  # noqa: E402

# Rounds whose keys a state has room for, if the mechanism has no last round.
_CAPACITY = 2**14
# Coordinates of a row, four for each number of 32 bits that the generator counts with.
_MOST_COORDINATES = 2**32
# Coordinates that are computed together, so that they stay in the cache, and entries of all rows of them.
_PART, _PRODUCT = 2**16, 2**23


class NoiseState(NamedTuple):
    """Everything that the noise of the next round depends on. Secret: with it, the noise can be subtracted.

    Attributes:
        fingerprint: Digest of everything that the noise depends on except its keys, uint32 `[8]`.
        round: Number of rounds drawn so far, int32 `[]`.
        keys: Key of each round drawn so far, followed by zeros, uint32 `[capacity, 4]`.
        rows: Rows of memory, each `[dimension]`.
    """

    fingerprint: jax.Array
    round: jax.Array
    keys: jax.Array
    rows: tuple[jax.Array, ...]

    def __repr__(self) -> str:
        """Tells no secret."""
        return f"{type(self).__name__}(round={self.round!r}, secret)"

    @property
    def past_keys(self) -> np.ndarray:
        """Key of each round drawn so far, int64 `[round, 2]`, which `replay` takes."""
        return np.ascontiguousarray(self.keys[: int(self.round)]).view(np.int64)


class _Turn(NamedTuple):
    """What the host decides of a round: its number and key, its case, and the numbers of its recursion.

    Attributes:
        zero: 0, which no compiler knows: see `_times`.
        scale: s / C_tt.
        line: What entries of the case refer to.
        products: Weights of the product of each case, `[sums, rows]`.
    """

    round: Any
    key: Any
    zero: Any
    case: Any
    scale: Any
    line: Any
    products: tuple[Any, ...]


class NoiseStream(KeyedStream):
    """Streams the rows of σζ·C⁻¹z in JAX, one per round; `KeyedStream` has arguments and methods.

    Formal guarantee: as for `KeyedStream`, in compiled functions as outside of them: a round whose state is refused, or
    that is past the last one, gets no key, and the computation fails. Keys come from the operating system, and normals
    from Philox 4x32-10. With a grid, rows are float64 that hold integers, the same as in `tff_mf.noise.numpy` for
    equal keys, bit for bit: add them to sums in float64, which is exact. That needs `jax_enable_x64`.

    `next` may be compiled, with the state as an argument: it is a pytree. Where it is donated, return the next state
    before the noise, as `jax.jit(lambda state: stream.next(state)[::-1], donate_argnums=0)` does: JAX gives the memory
    of a row to the first result of its size, and copies all rows if that is the noise.

    Computations that several processes or, in `pmap` and `shard_map`, several devices share would draw a key in each,
    and are refused. Under `vmap` every member needs a state of its own: one state for all is refused where the trace
    shows it. It does not where `next` is compiled by itself inside of the `vmap`: all members then get one row.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        dimension: int,
        stddev: float,
        grid: Grid | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        if jax.process_count() > 1:
            raise InputValueError(
                f"jax.process_count()={jax.process_count()} processes would draw a key each: stream the noise in one "
                "process with tff_mf.noise.numpy, and send the rows to the others."
            )
        if grid is not None and not jax.config.read("jax_enable_x64"):
            raise InputValueError(
                "grid needs float64: call jax.config.update('jax_enable_x64', True) before anything else, or pass "
                "grid=None, which gives up the guarantee about the numbers that are released."
            )
        if dimension > _MOST_COORDINATES:
            raise InputValueError(
                f"dimension={dimension} exceeds {_MOST_COORDINATES}, after which normals would repeat."
            )
        super().__init__(
            mechanism,
            dimension=dimension,
            stddev=stddev,
            grid=grid,
            insecure_seed=insecure_seed,
            engine=f"tff_mf.noise.jax {'float32' if grid is None else grids.sampler()}",
            fast=grid is None,
        )
        self._draw = standard_normal if grid is None else exact_normal
        self._number = np.dtype(np.float32 if grid is None else np.float64)
        # One compiled function for each case, so that rows that a case leaves as they are are not copied.
        self._computed = [jax.jit(functools.partial(self._round, place)) for place in range(len(self._recursion.cases))]

    def init(self) -> NoiseState:
        return NoiseState(
            fingerprint=jnp.asarray(np.frombuffer(self._fingerprint, "<u4")),
            round=jnp.zeros([], jnp.int32),
            keys=jnp.zeros([self._limit or _CAPACITY, 2 * KEY_WORDS], jnp.uint32),
            rows=tuple(jnp.zeros([self._dimension], kind) for kind in self._types(0)),
        )

    def _admitted(self, state: NoiseState, ends: list[tuple[int, str]]) -> tuple[NoiseState, _Turn, None]:
        if not isinstance(state, NoiseState):
            raise InputTypeError(f"state of type {type(state).__name__} must be a NoiseState, as init returns it.")
        axes = jax.sharding.get_abstract_mesh().manual_axes
        if axes:
            raise InputValueError(
                f"a round inside of pmap or shard_map, over {', '.join(map(repr, axes))}, would draw a key on each "
                "device, and release each sum with several noises: add up the sums first, and step the noise outside."
            )
        _check_not_shared(state.round)
        expected = [([self._dimension], kind) for kind in self._types(0)]
        if [(list(row.shape), str(row.dtype)) for row in state.rows] != expected:
            raise InputValueError(f"state has other rows than this stream, {expected}. {OTHER_NOISE}")
        capacity = max(len(state.keys), self._limit or _CAPACITY)
        state = state._replace(keys=jnp.pad(state.keys, [(0, capacity - len(state.keys)), (0, 0)]))
        if self._limit is None:
            full = f"a state has room for {capacity} rounds: use a stream that limited_to limits to more."
            ends = [*ends, (capacity, full)]
        turn = functools.partial(self._turn, ends)
        place_in_run = state.fingerprint, state.round
        if isinstance(state.round, jax.core.Tracer):
            like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self._turn_like())
            return state, io_callback(turn, like, *place_in_run), None
        if isinstance(jnp.add(0, 0), jax.core.Tracer):
            raise InputValueError(
                "state must be an argument of the compiled function that steps it: a state from outside is a constant, "
                "and every call would draw the noise of the same round."
            )
        return state, turn(*map(np.asarray, place_in_run)), None

    def _turn_like(self) -> _Turn:
        """Returns a turn of the shapes and types of all others."""
        number, recursion = functools.partial(np.zeros, dtype=self._number), self._recursion
        return _Turn(
            round=np.int32(0),
            key=np.zeros(2 * KEY_WORDS, np.uint32),
            zero=np.zeros([], f"uint{8 * self._number.itemsize}"),
            case=np.int32(0),
            scale=number([]),
            line=number(self._places),
            products=tuple(
                number((case.product.sums, len(case.product.rows)) if case.product else 0) for case in recursion.cases
            ),
        )

    @functools.cached_property
    def _places(self) -> int:
        weights = [weight for case in self._recursion.cases for weight in case.weights()]
        return max((weight.place + 1 for weight in weights if isinstance(weight, Entry)), default=0)

    def _turn(self, ends: list[tuple[int, str]], fingerprint: Any, done: Any) -> _Turn:
        """Refuses a round, or decides it: on the host."""
        if np.asarray(fingerprint).astype("<u4").tobytes() != self._fingerprint:
            raise InputValueError(OTHER_NOISE)
        done = int(done)
        if done < 0:
            raise InputValueError(f"state is damaged: round={done} must be at least 0; {REMEDY}.")
        for end, message in ends:
            if done >= end:
                raise InputValueError(message)
        key = KeyedStream._key(self, done)
        return self._turn_with(done, np.ascontiguousarray(key).view(np.uint32))

    def _turn_with(self, done: int, key: np.ndarray) -> _Turn:
        recursion, turn = self._recursion, self._turn_like()
        step = recursion.step(done)
        place = int(recursion.case_of(done))
        if recursion.line is not None:
            turn.line[:] = np.asarray(recursion.line(done, recursion.tables, Operations))[: self._places]
        if step.product is not None:
            turn.products[place][:] = step.product[0]
        scale = float(self._stddev) * step.scale
        return turn._replace(
            round=np.int32(done),
            key=key,
            case=np.int32(place),
            scale=np.float64(scale) if self._grid is not None else float32_at_least("stddev", scale),
        )

    def _key(self, done: _Turn) -> Any:
        return done.key

    def _advanced(self, state: NoiseState, done: _Turn, key: Any, stddev: Any) -> tuple[jax.Array, NoiseState]:
        del stddev
        key = jnp.asarray(key)
        arrays = self._draw(key, self._dimension), *state.rows
        row, *rows = self._by_parts(done, arrays)
        keys = state.keys.at[done.round].set(key)
        return row, state._replace(round=done.round + jnp.int32(1), keys=keys, rows=tuple(rows))

    def _by_parts(self, turn: _Turn, arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Returns the noise of a round and the rows of memory after it, from the draw and the rows before it."""
        if not isinstance(turn.case, jax.core.Tracer):
            return self._computed[int(turn.case)](turn, *arrays)
        if len(self._computed) == 1:
            return self._computed[0](turn, *arrays)
        # What a branch returns is copied, also rows that stay: parts are then in the cache.
        size = min(self._dimension, _PART, max(64, _PRODUCT // len(arrays)))
        counter = jnp.uint64 if jax.config.read("jax_enable_x64") else jnp.uint32

        def write(index: jax.Array, carried: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            # The last part begins earlier, where coordinates are done.
            first = index.astype(counter) * counter(size)
            begin = jnp.minimum(first, counter(self._dimension - size))
            is_done = begin + jnp.arange(size, dtype=counter) < first
            parts = [jax.lax.dynamic_slice(array, [begin], [size]) for array in carried]
            computed = jax.lax.switch(turn.case, self._computed, turn, *parts)
            updated = [jnp.where(is_done, part, new) for part, new in zip(parts, computed, strict=True)]
            pairs = zip(carried, updated, strict=True)
            return tuple(jax.lax.dynamic_update_slice(row, values, [begin]) for row, values in pairs)

        # A product with 1 takes what was made outside of a mesh into it, and no time.
        arrays = tuple(array * jnp.ones([], array.dtype) for array in arrays)
        return jax.lax.fori_loop(0, -(-self._dimension // size), write, arrays)

    def _replayed(self, keys: np.ndarray, ends: list[tuple[int, str]]) -> NoiseState:
        del ends
        state = self.init()
        capacity = max(len(keys), len(state.keys))
        state = state._replace(keys=jnp.pad(state.keys, [(0, capacity - len(state.keys)), (0, 0)]))
        for done, key in enumerate(keys):
            turn = self._turn_with(done, key.view(np.uint32))
            state = self._advanced(state, turn, turn.key, None)[1]
        return state

    def _as_keys(self, keys: Any) -> np.ndarray:
        return np.ascontiguousarray(keys)

    def _round(self, place: int, turn: _Turn, drawn: jax.Array, *rows: jax.Array) -> tuple[jax.Array, ...]:
        """Returns the noise of a round of a case, and the rows of memory after it."""
        case, times = self._recursion.cases[place], functools.partial(_times, jnp.asarray(turn.zero))
        products: Sequence[jax.Array] = ()
        if case.product is not None:
            products = _weighted_sums(turn.products[place], [rows[row] for row in case.product.rows])
        special = {DRAWN: times(self._stddev, drawn)}

        def source(number: int) -> jax.Array:
            if number < 0:
                return special[number]
            return rows[number] if number < len(rows) else products[number - len(rows)]

        def total(terms: Terms) -> jax.Array:
            """The sum of products, each product and each sum rounded once, in this order."""
            summed = jnp.zeros([], self._number)
            for number, weight in terms:
                number = times(turn.line[weight.place] if isinstance(weight, Entry) else weight, source(number))
                summed = summed + number
            return summed

        past = total(case.past)
        scaled = times(turn.scale, drawn)
        # ½ is subtracted from what depends on past n alone: one operation less in which z_t is rounded.
        new = scaled - past if self._grid is None else jnp.floor(scaled - (past - 0.5))
        special |= {PAST: past, NEW: new}

        def after(entry: int | Terms) -> jax.Array:
            if isinstance(entry, int):
                return rows[entry]
            if entry == ((NEW, 1.0),):
                return new.astype(self._recursion.stored if self._grid is not None else self._number)
            return jnp.broadcast_to(total(entry), new.shape)

        return new, *map(after, case.after)


def _check_not_shared(done: Any) -> None:
    """Raises if members of a `vmap` share a state, and so would get the same noise.

    Args:
        done: The number of rounds of the state.
    """
    with take_current_trace() as trace:
        around: Any = trace
    # What is compiled is traced once, and says nothing of what it is mapped by.
    while around is not None and type(around).__name__ != "DynamicJaxprTrace":
        if hasattr(around, "axis_data"):
            if getattr(done, "_trace", None) is not around:
                raise InputValueError(
                    "state is one for all members of a vmap, which would all get the same noise: give each a state of "
                    "its own, with jax.vmap of init too, and map over it."
                )
            done = done.val
        around = getattr(around, "parent_trace", None)


def _times(zero: jax.Array, weight: Any, row: jax.Array) -> jax.Array:
    """Returns weight·row, rounded before anything is added to it: a compiler would make one operation of both.

    `zero` is 0, which no compiler knows.
    """
    number = jnp.float32 if zero.dtype == jnp.uint32 else jnp.float64
    bits = jax.lax.bitcast_convert_type(jnp.asarray(weight, number) * row.astype(number), zero.dtype)
    return jax.lax.bitcast_convert_type(bits ^ zero, number)


def _weighted_sums(weights: jax.Array, rows: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns Σ_j weights[i, j]·rows[j] for each i, part by part."""
    weights, (dimension,) = jnp.asarray(weights), rows[0].shape
    size = min(dimension, max(64, _PRODUCT // len(rows)))

    def of_part(begin: jax.Array) -> jax.Array:
        part = [jax.lax.dynamic_slice(row, [begin], [size]).astype(weights.dtype) for row in rows]
        return jnp.matmul(weights, jnp.stack(part), precision=jax.lax.Precision.HIGHEST)

    if size == dimension:
        return list(of_part(jnp.int32(0)))

    def write(index: jax.Array, sums: jax.Array) -> jax.Array:
        # The last part begins earlier, and computes some columns again.
        begin = jnp.minimum(index * size, dimension - size)
        return jax.lax.dynamic_update_slice(sums, of_part(begin), [0, begin])

    return list(jax.lax.fori_loop(0, -(-dimension // size), write, jnp.zeros([len(weights), dimension], weights.dtype)))


def build_stream(mechanism: Mechanism, **settings: Any) -> NoiseStream:
    """Returns the noise stream of a mechanism in JAX: see `NoiseStream` for arguments and guarantee.

    Example:
        >>> from tff_mf import BLT
        >>> stream = build_stream(BLT.production("b400"), dimension=3, stddev=2.0)
        >>> row, state = jax.jit(stream.next)(stream.init())
        >>> row.shape, int(state.round), len(state.rows)
        ((3,), 1, 4)
    """
    return NoiseStream(mechanism, **settings)
