"""A digest of a mechanism, whatever file or optimizer it comes from."""

import hashlib

from tff_mf.mechanisms import Mechanism
from tff_mf.registry._tensors import tensors_of


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

    Raises:
        InputTypeError: If the exact class is not registered.
        InputValueError: If the codec of a class from outside loses something.
    """
    tensors = tensors_of(mechanism)
    digest = hashlib.sha256(mechanism.kind.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].shape}".encode() + tensors[name].astype("<f8").tobytes())
    return digest.digest()
