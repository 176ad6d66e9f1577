"""The file of a state of noise."""

import hashlib
import os
from collections.abc import Mapping

import numpy as np

from tff_mf.base import files, tensor_files
from tff_mf.base.errors import InputValueError
from tff_mf.noise._dict_stream import check_arrays

NoiseState = dict[str, np.ndarray]
"""State of a stream, as `DictStream` has it. Secret: with it, the noise of past rounds can be subtracted."""

_DIGEST = "digest"


def save_state(state: Mapping[str, np.ndarray], path: str | os.PathLike[str]) -> None:
    """Writes a state as a safetensors file that only its owner can read, atomically and durably.

    Formal guarantee: after a crash the old file or the new one is there, never a part of one. The file is as secret as
    the state: with it, the noise of past rounds can be subtracted.

    Args:
        state: What `NoiseStream.next` returned.
        path: The file, which is replaced if it exists.

    Example:
        >>> import pathlib, tempfile
        >>> from tff_mf import BLT
        >>> from tff_mf.noise import numpy as streams
        >>> stream = streams.build_stream(BLT.production("b400"), dimension=3, stddev=2.0)
        >>> noise, state = stream.next(stream.init())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_state(state, pathlib.Path(folder, "noise.safetensors"))
        ...     again = load_state(pathlib.Path(folder, "noise.safetensors"))
        >>> noise, state = stream.next(again)
        >>> int(state["round"])
        2
    """
    arrays = check_arrays(state, np.ndarray, "NumPy arrays")
    files.write_atomically(path, tensor_files.encoded(arrays, {_DIGEST: _digest_of(arrays)}), mode=0o600)


def load_state(path: str | os.PathLike[str]) -> NoiseState:
    """Returns the state of a file of `save_state`; `NoiseStream.next` then refuses it if it is of other noise.

    Formal guarantee: what it returns is what was saved, bit for bit: a damaged file is refused. The digest is no
    signature: someone who can write the file can write another state.

    Args:
        path: The file.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{os.fspath(path)} is no file.")
    with open(path, "rb") as file:
        content = file.read()
    try:
        state, about = tensor_files.decoded(content)
    except InputValueError as error:
        raise InputValueError(f"{os.fspath(path)} is damaged, or no state of noise: {error}.") from error
    if about.get(_DIGEST) != _digest_of(state):
        raise InputValueError(
            f"{os.fspath(path)} is damaged, or no state of noise: its digest does not fit its content. Take an older "
            "file of the same run, whose rounds have not been released, or rebuild the state from its keys with replay."
        )
    return state


def _digest_of(state: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(state):
        array = state[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data if array.ndim else array.tobytes())
    return digest.hexdigest()
