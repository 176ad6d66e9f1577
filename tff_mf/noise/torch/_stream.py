"""`NoiseStream` in PyTorch: the state machine of `DictStream` around rounds that the device computes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import DRAWN, NEW, PAST, Numbers, Step
from tff_mf.noise._dict_stream import DictStream
from tff_mf.noise._generators import generator_of
from tff_mf.noise.torch._normals import exact_normal, standard_normal
from tff_mf.problem.grids import Grid

# Entries of all rows that are copied at once for a matrix product.
_PRODUCT = 2**23


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
        generator: As in `tff_mf.noise.numpy`, on a CPU; on any other device "tensorflow", Philox 4x32-10 in the
            integers of PyTorch. PyTorch's own generators have seeds of 64 bits, and the one of the CPU is predictable.
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
        processes = torch.distributed.get_world_size() if _is_distributed() else 1
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
        """Returns the standard normals of a key."""
        if self._device.type != "cpu":
            drawn = standard_normal if self._grid is None else exact_normal
            return drawn(key, self._dimension, self._device)
        row = np.empty(self._dimension, np.float32 if self._grid is None else np.float64)
        for begin in range(0, self._dimension, self._generator.part):
            self._generator.write(key, begin, row[begin : begin + self._generator.part])
        return torch.from_numpy(row)

    def _computed(
        self, step: Step, rows: list[torch.Tensor], keys: np.ndarray, done: int, stddev: Any
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        self._check_process()
        self._check_not_recorded()
        drawn = self._draw(keys[done])
        products = (
            [] if step.product is None else self._weighted_sums(step.product[0], [rows[r] for r in step.product[1]])
        )
        sources = dict(enumerate([*rows, *products]))
        if any(source == DRAWN for terms in step.after if not isinstance(terms, int) for source, _ in terms):
            sources[DRAWN] = drawn * float(stddev)
        past = self._total(step.past, sources)
        for earlier, weight in step.again:
            past = past - self._draw(keys[earlier]) * (weight * float(stddev))
        scaled = drawn * float(self._scale(step))
        # ½ is subtracted from what depends on past n alone: one operation less in which z_t is rounded.
        new = scaled - past if self._grid is None else torch.floor(scaled - (past - 0.5))
        sources |= {PAST: past, NEW: new}
        if self._grid is not None and not bool(torch.isfinite(new).all()):
            raise InputValueError("state is damaged: its rows give noise that is not finite.")

        def after(entry: int | Numbers) -> torch.Tensor:
            if isinstance(entry, int):
                return rows[entry]
            if entry == ((NEW, 1.0),):
                # A copy: what is done to the row in place is not done to the memory.
                return new.to(self._number if self._grid is None else getattr(torch, self._recursion.stored), copy=True)
            return self._total(entry, sources)

        return new, list(map(after, step.after))

    def _total(self, terms: Numbers, sources: dict[int, torch.Tensor]) -> torch.Tensor:
        """Returns the sum of products; on a grid, each product and each sum is rounded once, in this order."""
        if not terms:
            return torch.zeros([self._dimension], dtype=self._number, device=self._device)
        (source, weight), *others = terms
        total = sources[source].to(self._number) * weight
        for source, weight in others:
            row = sources[source].to(self._number)
            # In floats, a product and a sum may be one operation.
            total = torch.add(total, row, alpha=weight) if self._grid is None else total + row * weight
        return total

    def _weighted_sums(self, weights: np.ndarray, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns Σ_j weights[i, j]·rows[j] for each i, part by part."""
        factors = torch.as_tensor(np.asarray(weights), device=self._device).to(self._number)
        size = max(64, _PRODUCT // len(rows))
        parts = [
            factors @ torch.stack([row[begin : begin + size].to(self._number) for row in rows])
            for begin in range(0, self._dimension, size)
        ]
        return list(torch.cat(parts, dim=1))

    def _zeros(self, kind: str) -> torch.Tensor:
        return torch.zeros([self._dimension], dtype=getattr(torch, kind), device=self._device)

    def _from_numpy(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(np.array(array))

    def _as_numpy(self, array: torch.Tensor) -> np.ndarray:
        return array.numpy(force=True)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


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
