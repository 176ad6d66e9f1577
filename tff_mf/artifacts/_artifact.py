"""`save` and `load`: mechanism to file and back."""

import os

import numpy as np

from tff_mf import _validate, registry
from tff_mf.artifacts import _file, _manifest
from tff_mf.errors import ArtifactError, InputError, InputValueError
from tff_mf.mechanisms import Mechanism

# What a damaged file holds can be as long as the file.
_LONGEST_REASON = 300


def save(mechanism: Mechanism, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Writes `mechanism` to a safetensors file; equal mechanisms give equal bytes in one environment.

    For the reader of the file it also holds sensitivity and losses in the setting the mechanism was made for,
    and the versions they were computed with; `load` takes none of these from it. Losses of so many rounds that
    they would take long are left open.

    The file appears whole or not at all, also when the process is interrupted.

    Args:
        mechanism: The mechanism, with the setting it was made for, if any.
        path: File to write.
        overwrite: Whether a file that is there may be replaced.

    Example:
        >>> import pathlib, tempfile
        >>> from tff_mf import BLT
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(BLT.production("b400"), pathlib.Path(folder) / "blt.safetensors")

    Raises:
        InputTypeError: If an argument is of the wrong type, or no artifact can hold the mechanism.
        InputValueError: If the file cannot be written, or is there and may not be replaced.
    """
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    _validate.instance("overwrite", overwrite, bool, "True or False")
    text = _file.path_of(path)
    # The hash and the writer of the file take memory as it lies, and `load` reads it row by row.
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in registry.tensors_of(mechanism).items()}
    data = _file.pack(_manifest.describe(mechanism, tensors), tensors)
    try:
        _file.write(text, data, overwrite=overwrite)
    except FileExistsError:
        raise InputValueError(f"path={text!r} exists already: choose another, or allow it to be overwritten.") from None
    except OSError as error:
        raise InputValueError(f"path={text!r} cannot be written: {error.strerror or error}.") from error
    except InputValueError as error:
        raise InputValueError(f"path={text!r} cannot be written: {error}.") from None


def load(path: str | os.PathLike[str]) -> Mechanism:
    """Returns the mechanism of a file that `save` wrote, its parameters the same to the bit.

    Nothing of the file is executed, and memory is taken in proportion to its size only.

    Formal guarantee: nothing that privacy depends on is taken from the file but the parameters of
    C. The sensitivity it states for the setting it was made for is recomputed, and a file that
    states another is refused. The hash finds damage; it does not prove who wrote the file.

    Args:
        path: File to read.

    Example:
        >>> import pathlib, tempfile
        >>> from tff_mf import BLT
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "blt.safetensors"
        ...     save(BLT.production("b400"), file)
        ...     load(file) == BLT.production("b400")
        True

    Raises:
        InputTypeError: If `path` is no path.
        ArtifactError: If there is no such file, or it is not an intact artifact that this release knows.
    """
    text = _file.path_of(path)
    try:
        return _decode(_file.read(text))
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(f"path={text!r} cannot be read: {reason}. Give the path of an artifact.") from None
    except InputError as error:
        raise _damaged(text, str(error).rstrip(".")) from None
    except RecursionError:
        raise _damaged(text, "it nests too deeply") from None


def _damaged(path: str, reason: str) -> ArtifactError:
    if len(reason) > _LONGEST_REASON:
        reason = reason[:_LONGEST_REASON] + " …"
    return ArtifactError(f"path={path!r} is no artifact to rely on: {reason}. Make it again, or copy it again.")


def _decode(data: bytes) -> Mechanism:
    text, tensors = _file.unpack(data)
    manifest = _manifest.parse(text)
    axes = dict(_manifest.kind_of(manifest).codec.axes)
    found = {name: tensor.ndim for name, tensor in tensors.items()}
    if found != axes:
        raise InputValueError(f"its tensors and their axes are {found} where {axes} are needed")
    for name, tensor in tensors.items():
        if not np.all(np.isfinite(tensor)):
            raise InputValueError(f"its tensor {name!r} holds NaN or infinity")
    return _manifest.build(manifest, tensors)
