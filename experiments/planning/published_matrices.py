"""Reads and checks the matrices that google-research/federated publishes.

A folder has the encoder C, `c_matrix_tensor_pb` or `h_matrix_tensor_pb`, the decoder B, `b_matrix_tensor_pb` or
`w_matrix_tensor_pb`, and `lr_vector_tensor_pb` if the workload has learning rates.
"""

import dataclasses
import math
import os
import pathlib

import numpy as np

from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Banded, Dense, OptimizedFor
from tff_mf.problem.participation import Participation
from tff_mf.problem.workloads import LearningRates, Momentum, MomentumWithRates, PrefixSum, Workload

from ..output import protobufs

MAX_FILE_BYTES = 2**30
_FLOAT64 = 2
_PAIRS = (("c", "b"), ("h", "w"))
_MATRIX = "{}_matrix_tensor_pb"
_RATES = "lr_vector_tensor_pb"

# Entries up to this, relative to the largest, were zero before rounding.
_ZERO = 1e-10
_AGREE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
    """A mechanism, and the result of checking its files.

    Attributes:
        mechanism: C, as `Banded` if at least half of its diagonals are zero; optimized for the given setting.
        bands: Number of nonzero diagonals, up to rounding.
        dropped: Largest entry, relative to C's largest, that was set to zero.
        mismatch: Largest entry of B·C − A, relative to A's largest.
    """

    mechanism: Banded | Dense
    bands: int
    dropped: float
    mismatch: float


def import_matrix(folder: str | os.PathLike[str], *, participation: Participation, momentum: float = 0.0) -> Imported:
    """Returns the mechanism of the matrices in a folder.

    Formal guarantee: only C is taken from the files, and its sensitivity is computed from it as for any
    mechanism. B is only compared: the noise that runs is C⁻¹z.
    """
    folder = folder if isinstance(folder, pathlib.Path) else pathlib.Path(folder)
    encoder_file, decoder_file = _files(folder)
    encoder, dropped = _lower(encoder_file, _square(encoder_file))
    decoder = _square(decoder_file)
    if decoder.shape != encoder.shape:
        raise InputValueError(
            f"{decoder_file.name} has the shape {decoder.shape} and {encoder_file.name} {encoder.shape}: "
            "they do not factorize a workload."
        )
    workload = _workload(folder / _RATES, momentum)
    matrix = workload.matrix(len(encoder))
    with np.errstate(over="ignore", invalid="ignore"):
        # The numbers may not be a factorization; then the result is refused.
        mismatch = float(np.max(np.abs(decoder @ encoder - matrix)) / np.max(np.abs(matrix)))
    if not mismatch <= _AGREE:
        raise InputValueError(
            f"{decoder_file.name} times {encoder_file.name} is not the workload {workload}: it differs by "
            f"{mismatch:.1e} of its largest entry. Give the momentum of the workload, and its learning rates in "
            f"{_RATES}."
        )
    bands = max(offset for offset in range(len(encoder)) if np.any(np.diagonal(encoder, -offset))) + 1
    optimized_for = OptimizedFor(rounds=len(encoder), participation=participation, workload=workload)
    return Imported(
        mechanism=_mechanism(encoder, bands, optimized_for), bands=bands, dropped=dropped, mismatch=mismatch
    )


def _files(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    for names in _PAIRS:
        encoder, decoder = (folder / _MATRIX.format(name) for name in names)
        if encoder.is_file() and decoder.is_file():
            return encoder, decoder
    pairs = " nor ".join(" and ".join(_MATRIX.format(name) for name in names) for names in _PAIRS)
    raise InputValueError(f"folder={str(folder)!r} has neither {pairs}.")


def _square(file: pathlib.Path) -> np.ndarray:
    matrix = read_tensor(file)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise InputValueError(
            f"{file.name} has the shape {matrix.shape}, and must be square. The published trees are not; "
            "tff_mf.Tree is the same mechanism."
        )
    if not np.all(np.isfinite(matrix)):
        raise InputValueError(f"{file.name} holds NaN or infinity.")
    return matrix


def _lower(file: pathlib.Path, matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns C with rounding errors set to zero, and the largest of these."""
    largest = np.max(np.abs(matrix))
    above = np.max(np.abs(np.triu(matrix, 1)))
    if not above <= _ZERO * largest:
        raise InputValueError(f"{file.name} is not lower-triangular: it has {above:.1e} above the diagonal.")
    small = np.abs(matrix) <= _ZERO * largest
    # A tiny number inside a band is kept.
    tiny = np.array([np.all(np.diagonal(small, -offset)) for offset in range(len(matrix))])
    offsets = np.subtract.outer(np.arange(len(matrix)), np.arange(len(matrix)))
    dropped = (offsets < 0) | tiny[np.maximum(offsets, 0)]
    size = float(np.max(np.abs(matrix[dropped]), initial=0.0) / largest) if largest else 0.0
    return np.where(dropped, 0.0, matrix), size


def _workload(rates_file: pathlib.Path, momentum: float) -> Workload:
    if not rates_file.is_file():
        return Momentum(momentum=momentum) if momentum else PrefixSum()
    rates = read_tensor(rates_file)
    if rates.ndim != 1:
        raise InputValueError(f"{rates_file.name} has the shape {rates.shape}, and must have one rate per round.")
    return (
        MomentumWithRates(rates=rates.tolist(), momentum=momentum) if momentum else LearningRates(rates=rates.tolist())
    )


def _mechanism(encoder: np.ndarray, bands: int, optimized_for: OptimizedFor) -> Banded | Dense:
    if bands > len(encoder) // 2:
        return Dense(matrix=encoder, optimized_for=optimized_for)
    values = np.zeros((bands, len(encoder)))
    for offset in range(bands):
        values[offset, : len(encoder) - offset] = np.diagonal(encoder, -offset)
    return Banded(values=values, optimized_for=optimized_for)


def read_tensor(path: str | os.PathLike[str]) -> np.ndarray:
    """Returns the tensor of a file."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InputValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
        return parsed_tensor(data)
    except OSError as error:
        raise InputValueError(f"path={os.fspath(path)!r} cannot be read: {error.strerror or error}.") from None
    except InputValueError as error:
        raise InputValueError(f"path={os.fspath(path)!r} is not a serialized float64 tensor: {error}.") from None


def parsed_tensor(data: bytes) -> np.ndarray:
    """Returns the tensor of a serialized TensorProto."""
    try:
        tensor = protobufs.parsed("Tensor", data)
    except ValueError as error:
        raise InputValueError(str(error)) from error
    shape = [dimension.size for dimension in tensor.shape.dimension]
    if tensor.dtype != _FLOAT64:
        raise InputValueError(f"its dtype is {tensor.dtype}, and must be {_FLOAT64}, float64")
    # A negative size means that it is unknown.
    if min(shape, default=0) < 0:
        raise InputValueError("a dimension of its shape is unknown")
    if 8 * math.prod(shape) != len(tensor.content):
        raise InputValueError(f"its shape {shape} needs {8 * math.prod(shape)} bytes, and it has {len(tensor.content)}")
    return np.frombuffer(tensor.content, dtype="<f8").reshape(shape)
