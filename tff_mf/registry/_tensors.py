"""The parameters of any registered mechanism as tensors, checked to lose nothing."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism, OptimizedFor
from tff_mf.registry._kinds import registered
from tff_mf.registry._record import SAMPLE, MechanismKind

_SAMPLED = 32


def tensors_of(mechanism: Mechanism) -> dict[str, np.ndarray]:
    """Returns the parameters of a mechanism, float64, by the names of its codec.

    Formal guarantee: for a class from outside of this package, the codec gives back every field of the mechanism from
    the tensors, so that no two mechanisms have the same tensors; and one more tensor has the first rows and columns of
    C, rounded to float32, so that no two C have.

    Example:
        >>> from tff_mf import BLT
        >>> tensors_of(BLT(theta=[0.5], omega=[0.25]))
        {'theta': array([0.5]), 'omega': array([0.25])}

    Raises:
        InputTypeError: If the exact class is not registered.
        InputValueError: If its codec loses something.
    """
    record = registered(mechanism)
    tensors = dict(record.codec.encode(mechanism))
    if record.outside:
        _check_tensors(record, tensors)
        again = record.codec.decode(tensors, mechanism.optimized_for)
        _check_fields(record, mechanism, again)
        tensors[SAMPLE] = _sample(mechanism)
        _check_sample(record, again, tensors[SAMPLE])
    return tensors


def mechanism_of(
    record: MechanismKind, tensors: Mapping[str, np.ndarray], optimized_for: OptimizedFor | None
) -> Mechanism:
    """Returns the mechanism of the tensors of a file, which have the names and numbers of axes of `record.axes`.

    Formal guarantee: the C of a mechanism from outside has the first rows and columns that it had when the tensors were
    written. Code that has changed since then would otherwise give the noise, and the ε, of another C.

    Raises:
        InputTypeError: If the codec gives a mechanism of another class.
        InputValueError: If the codec loses something.
        InputError: If the tensors are not those of a mechanism.
    """
    given = {name: tensor for name, tensor in tensors.items() if name in record.codec.axes}
    mechanism = record.codec.decode(given, optimized_for)
    if type(mechanism) is not record.mechanism:
        raise InputTypeError(f"the codec of kind {record.kind!r} gives a {type(mechanism).__name__}")
    if record.outside:
        again = record.codec.encode(mechanism)
        if set(again) != set(given) or not all(np.array_equal(again[name], given[name]) for name in given):
            raise InputValueError(f"the codec of kind {record.kind!r} does not write what it reads")
        _check_fields(record, mechanism, record.codec.decode(again, optimized_for))
        _check_sample(record, mechanism, tensors[SAMPLE])
    return mechanism


def _sample(mechanism: Mechanism) -> np.ndarray:
    """Returns the first rows and columns of C, rounded so that they are the same on other processors."""
    return np.asarray(mechanism.encoder(min(_SAMPLED, mechanism.max_rounds or _SAMPLED)), np.float32).astype(np.float64)


def _check_sample(record: MechanismKind, mechanism: Mechanism, expected: np.ndarray) -> None:
    found = _sample(mechanism)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-6, atol=1e-6 * np.max(expected)):
        raise InputValueError(
            f"the encoder of kind {record.kind!r} differs from the one that was written with these parameters: use the "
            "code that it was written with, and keep in fields all that C depends on"
        )


def _check_tensors(record: MechanismKind, tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, np.ndarray) or tensor.dtype != np.float64:
            raise InputTypeError(f"the codec of kind {record.kind!r} must give float64 arrays, unlike {name!r}.")
    found = {name: tensor.ndim for name, tensor in tensors.items()}
    if found != dict(record.codec.axes):
        raise InputValueError(
            f"the codec of kind {record.kind!r} gives tensors with the axes {found} and declares "
            f"{dict(record.codec.axes)}."
        )


def _check_fields(record: MechanismKind, before: Mechanism, after: Mechanism) -> None:
    for field in dataclasses.fields(before):
        ours, theirs = getattr(before, field.name), getattr(after, field.name, None)
        if isinstance(ours, np.ndarray) and ours.flags.writeable:
            raise InputValueError(
                f"{field.name} of kind {record.kind!r} is an array that can be written to: set its flags.writeable to "
                "False in __post_init__, on a copy."
            )
        if not _equal(ours, theirs):
            raise InputValueError(
                f"the codec of kind {record.kind!r} loses {field.name}: {ours!r} comes back as {theirs!r}."
            )


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, np.ndarray):
        return isinstance(theirs, np.ndarray) and np.array_equal(ours, theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)
