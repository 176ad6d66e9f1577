"""Generators of standard normals from a key, from any part of their coordinates on."""

import abc
import functools
import hashlib

import numpy as np

from tff_mf import grids, normals, required_packages, validation

_FLOAT_PART = 2**15


class Generator(abc.ABC):
    """Standard normals of a key of 128 bits: a coordinate's normal depends on the key and the coordinate alone.

    Attributes:
        name: Name of the normals, for fingerprints: with another one, a key gives other noise.
        part: `write` starts at multiples of this number of coordinates.
    """

    name: str
    part: int

    @abc.abstractmethod
    def write(self, key: np.ndarray, begin: int, out: np.ndarray) -> None:
        """Writes the normals of a key, int64 `[2]`, of the coordinates from `begin` on: at most one part."""


class NumPyPhilox(Generator):
    """NumPy's Philox 4x64-10 and its ziggurat, float32. A part is a range of the counter of its own.

    NumPy does not promise that a key gives the same normals in its next release; `name` says if it does.
    """

    part = _FLOAT_PART

    def __init__(self) -> None:
        self.name = f"numpy philox {_numpy_digest()}"

    def write(self, key: np.ndarray, begin: int, out: np.ndarray) -> None:
        _numpy_normals(key, begin // self.part, out)


class ExactPhilox(Generator):
    """TensorFlow's Philox 4x32-10 and the sampler of `tff_mf.normals`, float64: those of `tff_mf.noise` on a grid."""

    part = normals.PART

    def __init__(self) -> None:
        self.name = grids.sampler()

    def write(self, key: np.ndarray, begin: int, out: np.ndarray) -> None:
        out[:] = normals.draw_part(functools.partial(normals.words, key), begin, len(out))


class AES(Generator):
    """AES-128 in counter mode, a cryptographic generator, and the sampler of `tff_mf.normals`."""

    part = _FLOAT_PART

    def __init__(self) -> None:
        required_packages.packages("generator='aes'", "cryptography")
        self.name = f"aes-128-ctr {grids.sampler()}"

    def write(self, key: np.ndarray, begin: int, out: np.ndarray) -> None:
        out[:] = normals.draw_part(functools.partial(_aes_words, key), begin, len(out))


def generator_of(name: str | None, *, on_grid: bool) -> Generator:
    """Returns the generator of a name: "philox", which is the default, or "aes".

    Raises:
        InputTypeError: If the name is no text.
        InputValueError: If it is another one.
        ImportError: If it needs a package that is not installed.
    """
    name = validation.one_of("generator", "philox" if name is None else name, ("philox", "aes"))
    if name == "aes":
        return AES()
    return ExactPhilox() if on_grid else NumPyPhilox()


def _numpy_normals(key: np.ndarray, part: int, out: np.ndarray) -> None:
    # The counter's lowest word counts the blocks of a part, which are fewer than 2^64.
    philox = np.random.Philox(key=key.view(np.uint64), counter=np.array([0, part, 0, 0], np.uint64))
    np.random.Generator(philox).standard_normal(out=out, dtype=np.float32)


@functools.cache
def _numpy_digest() -> str:
    """Returns a digest of what NumPy makes of a key, long enough that every branch of its ziggurat is taken."""
    sample = np.empty(2**13, np.float32)
    _numpy_normals(np.array([1, 2]), 3, sample)
    return hashlib.sha256(sample.astype("<f4").tobytes()).hexdigest()


def _aes_words(key: np.ndarray, block: int, count: int) -> np.ndarray:
    """Returns words from a block of the counter on, int64 `[count]`; a block has two."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    cipher = Cipher(algorithms.AES(key.astype("<i8").tobytes()), modes.CTR(block.to_bytes(16, "big")))
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), "<i8")
