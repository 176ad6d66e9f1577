"""Simulates secure sums, which TFF's worker cannot compute, by plain sums."""

import functools
import logging

import tensorflow_federated as tff

_LOG = logging.getLogger(__name__)
_SECURE = b"federated_secure_"


def simulated(computation: tff.Computation) -> tff.Computation:
    """Returns a computation with plain sums in place of secure ones, as in TFF's test context.

    The numbers equal a secure sum's, including rounding and modulus. There is no cryptography: the worker sees the
    value of every client.
    """
    if not mention(computation):
        return computation
    return tff.backends.test.replace_secure_intrinsics_with_bodies(computation)


def mention(computation: tff.Computation) -> bool:
    """Returns whether a computation has secure sums, and warns once that they are simulated."""
    if not _has_secure_sums(computation):
        return False
    _say_once()
    return True


@functools.lru_cache(maxsize=128)
def _has_secure_sums(computation: tff.Computation) -> bool:
    return _SECURE in tff.framework.serialize_computation(computation).SerializeToString()


@functools.cache
def _say_once() -> None:
    _LOG.warning("Secure sums are simulated: the numbers equal a secure sum's, and there is no cryptography.")
