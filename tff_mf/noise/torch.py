"""Streams the correlated noise C⁻¹z in PyTorch, on the device of the parameters.

`NoiseStream` is the state machine of `DictStream` around rounds that the device computes. The normals of a key are
those of TensorFlow, exact ones bit for bit: Philox 4x32-10 in int64. It is for accelerators: on a CPU, NumPy is faster.
"""

import concurrent.futures
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_mf.base import required_packages, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import DRAWN, NEW, PAST, Numbers, Step
from tff_mf.noise._dict_stream import DictStream
from tff_mf.noise._generators import generator_of
from tff_mf.numerics import normals
from tff_mf.problem.grids import Grid

required_packages.packages("Noise in PyTorch", "torch")

import torch  # noqa: E402

# Entries of all rows that are copied at once for a matrix product.
_PRODUCT = 2**23
# Entries of a row that each thread of a CPU computes with at once, so that they stay in the cache.
_PART = 2**16
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_INCREMENTS = 0x9E3779B9, 0xBB67AE85
# TensorFlow's own constants, which turn a seed into a key and a counter.
_SCRAMBLING_KEY = 0x3EC8F720, 0x02461E29
_LOW = 2**32 - 1


class NoiseStream(DictStream):
    """Streams the rows of σζ·C⁻¹z in PyTorch, one per round; `DictStream` has states, `KeyedStream` the rest.

    Formal guarantee: as for `KeyedStream`. Keys come from the operating system, and normals from the generator that
    `tff_mf.noise.numpy` has by the same name. Rows are float32; with a grid, float64 that hold integers, equal to those
    of `tff_mf.noise.numpy` for equal keys, bit for bit: add them to sums in float64, which is exact.

    A state is a dictionary of tensors, which `torch.save` takes. Rows of memory are on the device of the stream, all
    else is on the host. In a training of several processes, one of them streams the noise, and broadcasts the rows:
    several processes are refused, as each would draw a key of its own, unless `one_process` says that it is the only
    one that does.

    Args:
        device: Where rows are computed and kept.
        generator: On a CPU as in `tff_mf.noise.numpy`, but without a grid "aes" by default where `cryptography` is
            installed, as with the extra `torch`: it is cryptographic, and faster than "philox". On any other device
            "tensorflow", Philox 4x32-10 in the integers of PyTorch, of which no attack is published. PyTorch's own
            generators have seeds of 64 bits, and the one of the CPU is predictable.
        one_process: Whether no other process of the training streams noise.
    """

    _arrays = torch.Tensor, "tensors"

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        dimension: int,
        stddev: float,
        grid: Grid | None = None,
        insecure_seed: int | None = None,
        device: torch.device | str = "cpu",
        generator: str | None = None,
        one_process: bool = False,
    ) -> None:
        self._one_process = one_process
        self._check_process()
        self._device = torch.device(device)
        if self._device.type != "cpu":
            generator = validation.one_of("generator", generator or "tensorflow", ("tensorflow",))
        elif generator is None and grid is None and required_packages.is_installed("cryptography"):
            generator = "aes"
        self._generator = generator_of(generator, on_grid=grid is not None)
        super().__init__(
            mechanism,
            dimension=dimension,
            stddev=stddev,
            grid=grid,
            insecure_seed=insecure_seed,
            engine=f"tff_mf.noise.torch {self._generator.name}",
            fast=True,
        )
        self._number = torch.float32 if grid is None else torch.float64

    # Keys are drawn in Python, which a compiled graph would not run again.
    next = torch.compiler.disable(DictStream.next)

    def _check_process(self) -> None:
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        processes = torch.distributed.get_world_size() if is_distributed else 1
        if processes > 1 and not self._one_process:
            raise InputValueError(
                f"one_process=False, and {processes} processes would draw a key each: stream the noise in one of them "
                "with one_process=True, and broadcast the rows."
            )

    def _check_not_recorded(self) -> None:
        captured = self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if captured or torch.jit.is_tracing():
            recorder = "a CUDA graph" if captured else "torch.jit.trace"
            raise InputValueError(
                f"a round is recorded by {recorder}, and each replay would add the same noise: step it outside of it."
            )

    def _draw(self, key: np.ndarray) -> torch.Tensor:
        """Returns the standard normals of a key, in a new row."""
        if self._device.type != "cpu":
            drawn = standard_normal if self._grid is None else exact_normal
            return drawn(key, self._dimension, self._device)
        row = self._empty(self._number)
        # Each thread writes parts of its own.
        threads, part = torch.get_num_threads(), self._generator.part
        size = -(-self._dimension // (part * threads)) * part

        def write(begin: int) -> None:
            self._generator.write(key, begin, row.numpy()[begin : begin + size])

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(write, range(0, self._dimension, size)))
        return row

    def _empty(self, number: torch.dtype) -> torch.Tensor:
        """Returns a row that is not filled."""
        return torch.empty(self._dimension, dtype=number, device=self._device)

    def _computed(
        self, step: Step, rows: list[torch.Tensor], key: np.ndarray, stddev: Any
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        self._check_process()
        self._check_not_recorded()
        row, source_rows = self._draw(key), list(rows)
        if step.product is not None:
            source_rows += self._weighted_sums(step.product[0], [rows[place] for place in step.product[1]])
        size = _PART * torch.get_num_threads() if self._device.type == "cpu" else self._dimension
        after, computed = list[torch.Tensor](), list[tuple[Numbers, Sequence[torch.Tensor]]]()
        for entry in step.after:
            after.append(rows[entry] if isinstance(entry, int) else self._empty(self._type_of(entry)))
            if not isinstance(entry, int):
                computed.append((entry, after[-1].split(size)))
        uses = {source for terms, _ in computed for source, _ in terms}
        parts = [source_row.split(size) for source_row in source_rows]
        for index, new in enumerate(row.split(size)):
            sources = {place: pieces[index] for place, pieces in enumerate(parts)} | {NEW: new}
            if DRAWN in uses:
                sources[DRAWN] = new * float(stddev)
            if self._grid is not None or PAST in uses:
                sources[PAST] = torch.empty_like(new)
                self._write_total(step.past, sources, sources[PAST])
            if self._grid is None:
                new.mul_(float(self._scale(step)))
                for source, weight in ((PAST, 1.0),) if PAST in uses else step.past:
                    new.sub_(sources[source], alpha=weight)
            else:
                self._round(new, float(self._scale(step)), sources[PAST])
            for terms, out in computed:
                self._write_total(terms, sources, out[index])
        return row, after

    def _type_of(self, terms: Numbers) -> torch.dtype:
        """Returns the type of a row of memory: on a grid, copies of n_t may have one of their own."""
        copy = self._grid is not None and terms == ((NEW, 1.0),)
        return getattr(torch, self._recursion.stored) if copy else self._number

    def _round(self, new: torch.Tensor, scale: float, past: torch.Tensor) -> None:
        """Makes integers of normals, in place."""
        # ½ is subtracted from what depends on past n alone: one operation less in which z_t is rounded.
        new.mul_(scale).sub_(past - 0.5)
        new.copy_(torch.floor(new))
        if not bool(torch.isfinite(new).all()):
            raise InputValueError("state is damaged: its rows give noise that is not finite.")

    def _write_total(self, terms: Numbers, sources: dict[int, torch.Tensor], out: torch.Tensor) -> None:
        """Writes the sum of products; on a grid, each product and each sum is rounded once, in this order.

        `out` is none of the sources.
        """
        if not terms:
            out.zero_()
            return
        if self._grid is None:
            # A product and a sum are one operation, and the first term is best without a product.
            terms = tuple(sorted(terms, key=lambda term: term[1] != 1))
        (source, weight), *later = terms
        total = sources[source].to(self._number)
        if weight != 1:
            total = torch.mul(total, weight, out=None if out.dtype != total.dtype else out)
        if not later:
            out.copy_(total)
        for source, weight in later:
            term = sources[source].to(self._number)
            if self._grid is not None and weight != 1:
                term, weight = term * weight, 1.0
            total = torch.add(total, term, alpha=weight, out=out)

    def _weighted_sums(self, weights: np.ndarray, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns Σ_j weights[i, j]·rows[j] for each i, part by part.

        In float64: settings of PyTorch and `torch.autocast` let matrix products of float32 round rows to 8 bits. What
        is subtracted is then no weighted sum of past noise, and the noise hides less than the mechanism's.
        """
        factors = torch.as_tensor(np.asarray(weights, np.float64), device=self._device)
        size = max(64, _PRODUCT // len(rows))
        parts = [
            (factors @ torch.stack([row[begin : begin + size].to(torch.float64) for row in rows])).to(self._number)
            for begin in range(0, self._dimension, size)
        ]
        return list(torch.cat(parts, dim=1))

    def _zeros(self, kind: str) -> torch.Tensor:
        return torch.zeros([self._dimension], dtype=getattr(torch, kind), device=self._device)

    def _from_numpy(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(np.array(array))

    def _as_numpy(self, array: torch.Tensor) -> np.ndarray:
        return array.numpy(force=True)


def build_stream(mechanism: Mechanism, **settings: Any) -> NoiseStream:
    """Returns the noise stream of a mechanism in PyTorch: see `NoiseStream` for arguments and guarantee.

    Example:
        >>> from tff_mf import BLT
        >>> stream = build_stream(BLT.production("b400"), dimension=3, stddev=2.0)
        >>> row, state = stream.next(stream.init())
        >>> row.shape, int(state["round"]), sorted(state)[:3]
        (torch.Size([3]), 1, ['fingerprint', 'keys', 'round'])
    """
    return NoiseStream(mechanism, **settings)


def standard_normal(key: np.ndarray, dimension: int, device: torch.device) -> torch.Tensor:
    """Returns the standard Gaussian row of a key, float32 `[dimension]`, by Philox and Box and Muller's method.

    Args:
        key: int64 `[2]`.
        dimension: Number of coordinates.
        device: Where it is computed.

    Example:
        >>> standard_normal(np.array([1, 2]), 3, torch.device("cpu")).shape
        torch.Size([3])
    """
    generator = _Generator(key, device)
    halves = torch.stack(generator.blocks(torch.arange(-(-dimension // 4), device=device)), dim=1).reshape(-1, 2)
    radius, angle = ((halves & 2**23 - 1).to(torch.float32) * 2.0**-23).unbind(dim=1)
    length = torch.sqrt(-2 * torch.log(torch.clamp(radius, min=1e-7)))
    angle = angle * (2 * math.pi)
    return torch.stack([torch.sin(angle) * length, torch.cos(angle) * length], dim=1).reshape(-1)[:dimension]


def exact_normal(key: np.ndarray, dimension: int, device: torch.device) -> torch.Tensor:
    """Returns the standard normals of a key, float64 `[dimension]`: the same as `tff_mf.numerics.normals.draw` gives.

    Formal guarantee: as for `tff_mf.numerics.normals.draw`, since all bits are equal: no operation adds a product.

    Args:
        key: int64 `[2]`.
        dimension: Number of coordinates.
        device: Where it is computed.
    """
    generator, size = _Generator(key, device), normals.PART
    return torch.cat(
        [_exact_part(generator, begin, min(size, dimension - begin)) for begin in range(0, dimension, size)]
    )


class _Generator:
    """TensorFlow's Philox generator of a key, which reads blocks of four words of 32 bits from any place on."""

    def __init__(self, key: np.ndarray, device: torch.device) -> None:
        self.device = device
        seed = [torch.tensor([int(half)]) for half in np.ascontiguousarray(key).view("<u4")]
        mixed = [int(word) for word in _philox(_SCRAMBLING_KEY, seed)]
        self._key, self._high = (mixed[0], mixed[1]), mixed[2:]

    def blocks(self, block: torch.Tensor) -> list[torch.Tensor]:
        """Returns the words of blocks, int64 `[count]` each, with 32 bits; their numbers are read as unsigned."""
        high = [torch.full_like(block, half) for half in self._high]
        return _philox(self._key, [block & _LOW, (block >> 32) & _LOW, *high])

    def words(self, block: torch.Tensor) -> torch.Tensor:
        """Returns the two int64 words of each block, `[count, 2]`."""
        first, second, third, fourth = self.blocks(block)
        return torch.stack([first | second << 32, third | fourth << 32], dim=-1)


def _philox(key: tuple[int, int], counter: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the outputs of ten rounds. Source: Salmon et al. (2011)."""
    one, two, three, four = counter
    for _ in range(10):
        # Products of 32 bits each wrap around in int64 as they would in uint64.
        left, right = one * _MULTIPLIERS[0], three * _MULTIPLIERS[1]
        one, two = (right >> 32 & _LOW) ^ two ^ key[0], right & _LOW
        three, four = (left >> 32 & _LOW) ^ four ^ key[1], left & _LOW
        key = (key[0] + _INCREMENTS[0] & _LOW, key[1] + _INCREMENTS[1] & _LOW)
    return [one, two, three, four]


def _exact_part(generator: _Generator, begin: int, size: int) -> torch.Tensor:
    """Returns the normals of the coordinates from `begin` on, float64 `[size]`: see `numerics.normals._arithmetic`."""
    device, tables = generator.device, normals.tables()
    blocks = begin // normals.WORDS_OF_A_BLOCK + torch.arange(-(-size // normals.WORDS_OF_A_BLOCK), device=device)
    words = generator.words(blocks).reshape(-1)[:size]
    index = words & 2**normals.INDEX_BITS - 1
    values = words.to(torch.float64) * torch.as_tensor(tables.scales, device=device)[index]
    left = torch.nonzero(index >= len(tables.layers))[:, 0]
    for level in range(tables.levels):
        if not left.numel():
            break
        count = left.numel() * normals.WORDS_OF_A_PIECE
        # The number of the first block is read as unsigned.
        first = ((level + 1 << normals.LEVEL_BITS) + begin * normals.BLOCKS_OF_A_PIECE + 2**63) % 2**64 - 2**63
        drawn = generator.words(first + torch.arange(-(-count // 2), device=device)).reshape(-1)[:count]
        magnitude, descends = _of_pieces(drawn.reshape(normals.WORDS_OF_A_PIECE, -1), tables, level)
        values[left] = torch.where(words[left] < 0, -magnitude, magnitude)
        left = left[descends]
    return values


def _of_pieces(words: torch.Tensor, tables: normals.Tables, level: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns |z| of what no layer covers, and whether it is left to the next level."""
    edges = torch.as_tensor(tables.edges[level], device=words.device)
    cumulative = torch.as_tensor(tables.cumulative[level], device=words.device)
    item = torch.searchsorted(cumulative, words[0].contiguous(), right=True)
    piece, statistic = item // normals.STATISTICS, item % normals.STATISTICS
    chosen = torch.sort(words[1:], dim=0).values.gather(0, statistic[None])[0]
    uniform = (chosen >> 64 - normals.UNIFORM_BITS) + 2 ** (normals.UNIFORM_BITS - 1)
    begin, end = edges[piece], edges[torch.clamp(piece + 1, max=len(edges) - 1)]
    offset = (end - begin) * uniform >> normals.EDGE_BITS + normals.UNIFORM_BITS - normals.POSITION_BITS
    position = (begin << normals.POSITION_BITS - normals.EDGE_BITS) + offset
    return position.to(torch.float64) * 2.0**-normals.POSITION_BITS, item == len(cumulative)
