"""The parameters of any registered mechanism as tensors, with a sample of the C that they gave, and their digest."""

import hashlib
from collections.abc import Mapping

import numpy as np

from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism, OptimizedFor
from tff_mf.mechanisms.registry._kinds import SAMPLE, MechanismKind, registered

_SAMPLED = 32


def tensors_of(mechanism: Mechanism) -> dict[str, np.ndarray]:
    """Returns the parameters of a mechanism, float64, by the names of its codec.

    Formal guarantee: for a class from outside of this package, one more tensor has the first rows and columns of C,
    rounded to float32, so that no two C have the same tensors.

    Example:
        >>> from tff_mf import BLT
        >>> tensors_of(BLT(theta=[0.5], omega=[0.25]))
        {'theta': array([0.5]), 'omega': array([0.25])}
    """
    record = registered(mechanism)
    tensors = dict(record.codec.encode(mechanism))
    for name, tensor in tensors.items():
        if not isinstance(tensor, np.ndarray) or tensor.dtype != np.float64:
            raise InputTypeError(f"the codec of kind {record.kind!r} must give float64 arrays, unlike {name!r}.")
    axes, declared = {name: tensor.ndim for name, tensor in tensors.items()}, dict(record.codec.axes)
    if axes != declared:
        raise InputValueError(
            f"the codec of kind {record.kind!r} gives tensors with the axes {axes} and declares {declared}."
        )
    return {**tensors, SAMPLE: _sample(mechanism)} if record.outside else tensors


def mechanism_of(
    record: MechanismKind, tensors: Mapping[str, np.ndarray], optimized_for: OptimizedFor | None
) -> Mechanism:
    """Returns the mechanism of the tensors of a file, which have the names and numbers of axes of `record.axes`.

    Formal guarantee: the C of a mechanism from outside has the first rows and columns that it had when the tensors were
    written. Code that has changed since then would otherwise give the noise, and the ε, of another C.
    """
    given = {name: tensor for name, tensor in tensors.items() if name in record.codec.axes}
    mechanism = record.codec.decode(given, optimized_for)
    if type(mechanism) is not record.mechanism:
        raise InputTypeError(f"the codec of kind {record.kind!r} gives a {type(mechanism).__name__}")
    if record.outside:
        found, expected = _sample(mechanism), tensors[SAMPLE]
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-6, atol=1e-6 * np.max(expected)):
            raise InputValueError(
                f"the encoder of kind {record.kind!r} differs from the one that was written with these parameters: use "
                "the code that it was written with, and keep in fields all that C depends on"
            )
    return mechanism


def content_digest(mechanism: Mechanism) -> bytes:
    """Returns the SHA-256 of a mechanism's kind and parameters: equal for equal strategy matrices of one kind.

    The setting that a mechanism was optimized for is no part of it.

    Args:
        mechanism: A registered mechanism.

    Example:
        >>> from tff_mf import BLT, Identity
        >>> blt = BLT(theta=[0.5], omega=[0.25])
        >>> content_digest(blt) == content_digest(BLT(theta=[0.5], omega=[0.25])) != content_digest(Identity())
        True
    """
    tensors = tensors_of(mechanism)
    digest = hashlib.sha256(mechanism.kind.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].shape}".encode() + tensors[name].astype("<f8").tobytes())
    return digest.digest()


def _sample(mechanism: Mechanism) -> np.ndarray:
    """Returns the first rows and columns of C, rounded so that they are the same on other processors."""
    return np.asarray(mechanism.encoder(min(_SAMPLED, mechanism.max_rounds or _SAMPLED)), np.float32).astype(np.float64)
