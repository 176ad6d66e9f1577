"""How the parameters of a mechanism are written as float64 tensors, and read back."""

import collections.abc
import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism, OptimizedFor

# Whole numbers up to here are exact in float64.
_LARGEST_WHOLE = 2**53


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codec:
    """Tensors of a mechanism, and the mechanism of tensors.

    An artifact holds the tensors; the fingerprint of the noise is a digest of them. `decode` sees only tensors that are
    float64, finite, not empty, and of the names and numbers of axes in `axes`.

    Attributes:
        axes: Number of axes of each tensor, by its name.
        encode: Returns the tensors of a mechanism, by name.
        decode: Returns the mechanism of tensors and of the setting that it was optimized for; raises `InputError` for
            tensors that belong to no mechanism.
    """

    axes: Mapping[str, int]
    encode: Callable[[Any], Mapping[str, np.ndarray]]
    decode: Callable[[Mapping[str, np.ndarray], OptimizedFor | None], Mechanism]

    @classmethod
    def of_fields(cls, mechanism: type[Mechanism], **axes: int) -> Self:
        """Returns the codec that writes each field of a dataclass, but for `optimized_for`, as one tensor.

        Args:
            mechanism: The class of the mechanism, a dataclass.
            axes: Number of axes of a field: 0 for a number, 1 for a sequence of numbers, 2 for a matrix. What is left
                out is taken from the annotation, which must be `float`, `int`, or a sequence or tuple of floats.

        Example:
            >>> from tff_mf import BLT
            >>> codec = Codec.of_fields(BLT)
            >>> codec.encode(BLT(theta=[0.5], omega=[0.25]))
            {'theta': array([0.5]), 'omega': array([0.25])}

        Raises:
            InputTypeError: If the annotation of a field does not say how to write it.
        """
        hints = typing.get_type_hints(mechanism)
        names = [field.name for field in dataclasses.fields(mechanism) if field.init and field.name != "optimized_for"]
        known = {name: axes[name] if name in axes else _axes_of(mechanism, name, hints[name]) for name in names}
        whole = {name for name in names if hints[name] is int}

        def encode(value: Mechanism) -> dict[str, np.ndarray]:
            return {name: np.atleast_1d(np.array(getattr(value, name), np.float64)) for name in names}

        def decode(tensors: Mapping[str, np.ndarray], optimized_for: OptimizedFor | None) -> Mechanism:
            fields = {name: _field(name, tensors[name], count, name in whole) for name, count in known.items()}
            return mechanism(**fields, optimized_for=optimized_for)

        return cls(axes={name: max(count, 1) for name, count in known.items()}, encode=encode, decode=decode)


def whole_number(name: str, tensor: np.ndarray) -> int:
    """Returns the whole number that a tensor holds."""
    value = _number(name, tensor)
    if not value.is_integer() or abs(value) > _LARGEST_WHOLE:
        raise InputValueError(f"its tensor {name!r} must be one whole number")
    return int(value)


def _number(name: str, tensor: np.ndarray) -> float:
    if tensor.shape != (1,):
        raise InputValueError(f"its tensor {name!r} must be one number")
    return float(tensor[0])


def _field(name: str, tensor: np.ndarray, axes: int, whole: bool) -> Any:
    if axes == 0:
        return whole_number(name, tensor) if whole else _number(name, tensor)
    if axes == 1:
        return tuple(tensor.tolist())
    matrix = np.array(tensor)
    matrix.flags.writeable = False
    return matrix


def _axes_of(mechanism: type[Mechanism], name: str, hint: Any) -> int:
    if hint in (float, int):
        return 0
    if typing.get_origin(hint) in (tuple, list, collections.abc.Sequence) and typing.get_args(hint)[0] is float:
        return 1
    raise InputTypeError(
        f"{mechanism.__name__}.{name} is annotated as {hint!r}, which does not say how to write it into an artifact: "
        f"pass codec=Codec.of_fields({mechanism.__name__}, {name}=number_of_axes), or a Codec of your own."
    )
