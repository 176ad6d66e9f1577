"""`NoiseStream` in PyTorch: the state machine of `DictStream` around rounds that the device computes."""

import concurrent.futures
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tff_mf.base import required_packages, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import DRAWN, NEW, PAST, Numbers, Step
from tff_mf.noise._dict_stream import DictStream
from tff_mf.noise._generators import generator_of
from tff_mf.noise.torch._normals import exact_normal, standard_normal
from tff_mf.problem.grids import Grid

# Entries of all rows that are copied at once for a matrix product.
_PRODUCT = 2**23
# Entries of a row that each thread of a CPU computes with at once, so that they stay in the cache.
_PART = 2**16


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
