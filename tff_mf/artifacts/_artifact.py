"""`save` and `load`: mechanisms to files and back."""

import os

import numpy as np

from tff_mf import registry, validation
from tff_mf.artifacts import _file, _manifest
from tff_mf.errors import ArtifactError, InputError, InputValueError
from tff_mf.mechanisms import Mechanism

# A damaged file can put arbitrarily long text into a message.
_LONGEST_REASON = 300


def save(mechanism: Mechanism, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Writes `mechanism` to a safetensors file; equal mechanisms give equal bytes in one environment.

    For its readers the file also has the sensitivity and losses in the setting that the mechanism was optimized for,
    and the versions that computed them; `load` uses none of these. Losses that would take long to compute are null.

    The file appears complete or not at all, even if the process is interrupted.

    Args:
        mechanism: The mechanism, with the setting that it was optimized for, if any.
        path: File to write.
        overwrite: Whether an existing file may be replaced.

    Example:
        >>> import pathlib, tempfile
        >>> from tff_mf import BLT
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(BLT.production("b400"), pathlib.Path(folder) / "blt.safetensors")

    Raises:
        InputTypeError: If an argument is of the wrong type, or the exact class of the mechanism is not registered.
        InputValueError: If the file cannot be written, exists and may not be replaced, or the codec of a kind from
            outside loses something.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    validation.instance("overwrite", overwrite, bool, "True or False")
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
    """Returns the mechanism of a file that `save` wrote, with bit-identical parameters.

    Nothing in the file is executed or imported, and memory is proportional to its size. A kind from outside of this
    package must have been registered before.

    Formal guarantee: the parameters of C are all that privacy depends on, and all that is taken from the file. The
    sensitivity that it states, for the setting that C was optimized for, is recomputed, and a file that states another
    one is refused. The hash detects damage; it does not prove who wrote the file.

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
        InputTypeError: If `path` is not a path.
        ArtifactError: If there is no such file, it is damaged, or its kind or version is unknown.
    """
    text = _file.path_of(path)
    try:
        return _decode(_file.read(text))
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(f"path={text!r} cannot be read: {reason}. Give the path of an artifact.") from None
    except registry.UnknownKindError as error:
        raise ArtifactError(f"path={text!r} cannot be loaded: {_shortened(str(error))}.") from None
    except InputError as error:
        raise _damaged(text, str(error).rstrip(".")) from None
    except RecursionError:
        raise _damaged(text, "it nests too deeply") from None


def _damaged(path: str, reason: str) -> ArtifactError:
    reason = _shortened(reason)
    return ArtifactError(f"path={path!r} is not a valid artifact: {reason}. Regenerate it or copy it again.")


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + " …"


def _decode(data: bytes) -> Mechanism:
    text, tensors = _file.unpack(data)
    manifest = _manifest.parse(text)
    axes = dict(_manifest.kind_of(manifest).axes)
    found = {name: tensor.ndim for name, tensor in tensors.items()}
    if found != axes:
        raise InputValueError(f"its tensors and their axes are {found} instead of {axes}")
    for name, tensor in tensors.items():
        if not np.all(np.isfinite(tensor)):
            raise InputValueError(f"its tensor {name!r} has NaN or infinity")
    return _manifest.build(manifest, tensors)
