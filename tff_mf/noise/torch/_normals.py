"""Standard normals of a key in PyTorch: in float32, and exact ones as in `tff_mf.numerics.normals`, bit for bit.

The generator is Philox 4x32-10 in int64, as TensorFlow has it. It is for accelerators: on a CPU, NumPy is faster.
"""

import math

import numpy as np
import torch

from tff_mf.numerics import normals

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_INCREMENTS = 0x9E3779B9, 0xBB67AE85
# TensorFlow's own constants, which turn a seed into a key and a counter.
_SCRAMBLING_KEY = 0x3EC8F720, 0x02461E29
_LOW = 2**32 - 1


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
