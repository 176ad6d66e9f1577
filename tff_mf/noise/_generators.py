"""Generators of standard normals from a key, from any part of their coordinates on."""

import abc
import functools
import hashlib
from collections.abc import Callable

import numpy as np

from tff_mf.base import required_packages, validation
from tff_mf.numerics import normals
from tff_mf.problem import grids

_PART = 2**15
# Words of a block of `normals.write`, and of NumPy's Philox.
_WORDS, _NUMPY_WORDS = normals.WORDS_OF_A_BLOCK, 4


class Generator(abc.ABC):
    """Standard normals of a key of 128 bits: a coordinate's normal depends on the key and the coordinate alone.

    Attributes:
        name: Name of the normals, for fingerprints: with another one, a key gives other noise.
        part: `write` starts at multiples of this number of coordinates.
    """

    name: str
    part = _PART

    @abc.abstractmethod
    def words(self, key: np.ndarray) -> Callable[[int, int], np.ndarray]:
        """Returns what gives words of a key, int64 `[count]`, from a block of `normals.write` on.

        The next call may overwrite them.
        """

    def write(self, key: np.ndarray, begin: int, out: np.ndarray) -> None:
        """Writes the normals of a key, int64 `[2]`, of the coordinates from `begin` on."""
        normals.write(self.words(key), begin, out, part=self.part)


class Philox(Generator):
    """NumPy's Philox 4x64-10 and the sampler of `tff_mf.numerics.normals`."""

    def __init__(self) -> None:
        self.name = f"numpy philox {_digest_of_numpy()} {self.part} {grids.sampler()}"

    def words(self, key: np.ndarray) -> Callable[[int, int], np.ndarray]:
        return functools.partial(_numpy_words, key)


class AES(Generator):
    """AES-128 in counter mode, a cryptographic generator, and the sampler of `tff_mf.numerics.normals`."""

    def __init__(self) -> None:
        required_packages.packages("generator='aes'", "cryptography")
        self.name = f"aes-128-ctr {self.part} {grids.sampler()}"

    def words(self, key: np.ndarray) -> Callable[[int, int], np.ndarray]:
        return _AESWords(key)


class TensorFlow(Generator):
    """The normals of `noise.tensorflow` for a grid, bit for bit: TensorFlow's Philox 4x32-10 and `numerics.normals`."""

    part = normals.PART

    def __init__(self) -> None:
        self.name = f"tensorflow {grids.sampler()}"

    def words(self, key: np.ndarray) -> Callable[[int, int], np.ndarray]:
        return functools.partial(normals.words, key)


class TensorFlowFloats(TensorFlow):
    """The normals of `noise.tensorflow` in floats, up to the rounding of logarithm, sine and cosine in float32."""

    part = _PART

    def __init__(self) -> None:
        self.name = "tensorflow float32"

    def write(self, key: np.ndarray, begin: int, out: np.ndarray) -> None:
        for first in range(0, len(out), self.part):
            part = out[first : first + self.part]
            # Blocks of four normals.
            count = -(-len(part) // 4)
            halves = normals.words(key, (begin + first) // 4, 2 * count).view(np.uint32) & np.uint32(2**23 - 1)
            radius, angle = halves.reshape(2 * count, 2).T.astype(np.float32) * np.float32(2.0**-23)
            length = np.sqrt(np.float32(-2) * np.log(np.maximum(radius, np.float32(1e-7))))
            angle = np.float32(2 * np.pi) * angle
            part[:] = np.stack([np.sin(angle) * length, np.cos(angle) * length], axis=1).reshape(-1)[: len(part)]


def generator_of(name: str | None, *, on_grid: bool) -> Generator:
    """Returns the generator of a name: by default "tensorflow" on a grid and "philox" otherwise."""
    default = "tensorflow" if on_grid else "philox"
    name = validation.one_of("generator", default if name is None else name, ("philox", "aes", "tensorflow"))
    if name == "tensorflow":
        return TensorFlow() if on_grid else TensorFlowFloats()
    return AES() if name == "aes" else Philox()


def _numpy_words(key: np.ndarray, block: int, count: int) -> np.ndarray:
    """Returns words from an even block of `normals.write` on, int64 `[count]`."""
    counter = np.array([block * _WORDS // _NUMPY_WORDS, 0, 0, 0], np.uint64)
    return np.random.Philox(key=key.view(np.uint64), counter=counter).random_raw(count).view(np.int64)


class _AESWords:
    """Words of a key, whose memory is used again: a new cipher, and new memory, would be slower than the cipher."""

    def __init__(self, key: np.ndarray) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        algorithm = algorithms.AES(key.astype("<i8").tobytes())
        self._begun_at = lambda block: Cipher(algorithm, modes.CTR(block.to_bytes(16, "big"))).encryptor()
        self._words, self._next = np.empty(0, "<i8"), -1

    def __call__(self, block: int, count: int) -> np.ndarray:
        """Returns words from a block of the counter on, int64 `[count]`."""
        if block != self._next:
            self._encryptor = self._begun_at(block)
        # Within a block, the cipher does not begin.
        self._next = -1 if count % _WORDS else block + count // _WORDS
        # The cipher wants room for a block more than it writes.
        if len(self._words) < count + _WORDS:
            self._words = np.empty(count + _WORDS, "<i8")
        self._encryptor.update_into(_zeros(2 ** (count - 1).bit_length())[: 8 * count], self._words.data.cast("B"))
        return self._words[:count]


@functools.cache
def _zeros(count: int) -> memoryview:
    """Returns this many words of zeros, which are kept: new ones would take longer than the cipher."""
    return memoryview(bytes(8 * count))


@functools.cache
def _digest_of_numpy() -> str:
    """Returns a digest of what NumPy makes of a key: NumPy promises that it stays, and noise relies on it."""
    return hashlib.sha256(_numpy_words(np.array([1, 2]), 6, 64).astype("<i8").tobytes()).hexdigest()[:16]
