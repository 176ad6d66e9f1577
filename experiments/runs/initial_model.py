"""An initial model that is given: the file of another run's model, with its vocabulary beside it."""

import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import safetensors
import safetensors.numpy
from msgspec import Meta

from tff_mf.base.errors import InputValueError

from ..output import typed
from ..output.files import file_hash
from ..output.typed import Record
from .folders import FIELD, trained_on
from .names import VOCABULARY

_Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class InitialModel(Record):
    """The model that training starts from, and all that a report has to say about it.

    Attributes:
        file: The file, as it was given.
        sha256: Hash of the file.
        vocabulary_sha256: Hash of its words: `vocabulary_hash`.
        same_data: Whether it is the model of a run on the data set that it is to be trained on, as far as the settings
            beside it tell, and the settings of the runs before.
    """

    file: str
    sha256: _Sha256
    vocabulary_sha256: _Sha256
    same_data: bool = False


def given(file: str, *, dataset: str) -> InitialModel:
    """Returns the initial model in a file, whose vocabulary is beside it.

    Args:
        file: The `model.safetensors` of a run, beside its `vocabulary.json`.
        dataset: The data set of the run that is to start from it, as its settings name it.

    Raises:
        InputValueError: If one of the two files is missing or damaged.
    """
    path = pathlib.Path(file)
    try:
        digest = file_hash(path)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise InputValueError(
            f"{FIELD}={file!r} cannot be read ({reason}): name the model.safetensors of a run's folder."
        ) from error
    return InitialModel(
        file=file,
        sha256=digest,
        vocabulary_sha256=vocabulary_hash(vocabulary_of(path)),
        same_data=trained_on(path, dataset),
    )


def vocabulary_of(path: pathlib.Path) -> list[str]:
    """Returns the words of a model, from the `vocabulary.json` beside it.

    Raises:
        InputValueError: If it is missing, or is not a list of different words.
    """
    beside = path.parent / VOCABULARY
    try:
        words = typed.read(beside, list[str], "vocabulary")
        if not words:
            raise ValueError("it has no words")
        if len(set(words)) < len(words):
            raise ValueError("it has a word twice")
        # Half of a surrogate pair is no text, and could not be written again.
        "".join(words).encode()
        return words
    except ValueError as error:
        raise InputValueError(
            f"{FIELD}={str(path)!r} needs {VOCABULARY} beside it, the words that it knows, which cannot be read: "
            f"{error}"
        ) from error


def vocabulary_hash(words: Sequence[str]) -> str:
    """Returns a hash of words in their order.

    Example:
        >>> vocabulary_hash(["the", "of"])[:8]
        '16078a63'
    """
    return hashlib.sha256(json.dumps(list(words)).encode()).hexdigest()


def parameters(named: InitialModel, content: bytes, expected: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the parameters in the file of an initial model, in order.

    Args:
        named: The model, for the message.
        content: The file.
        expected: Parameters of the shapes and types of the model that is to start from it.

    Raises:
        InputValueError: If the file holds no such parameters, or one of them is not finite.
    """
    try:
        tensors = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise refused(named, f"is not a model that tff-mf train wrote: {error}") from error
    if sorted(tensors) != sorted(map(str, range(len(expected)))):
        raise refused(named, f"has {len(tensors)} tensors, and the model has {len(expected)}, by number")
    found = [tensors[str(index)] for index in range(len(expected))]
    for index, (value, own) in enumerate(zip(found, expected, strict=True)):
        if (value.shape, value.dtype) != (own.shape, own.dtype):
            raise refused(
                named,
                f"has {value.dtype} {list(value.shape)} as its tensor {index}, and the model that knows its words has "
                f"{own.dtype} {list(own.shape)}: take the settings model, vocab_size, embedding_size and units that it "
                "was trained with",
            )
        if not np.isfinite(value).all():
            raise refused(named, f"has a number that is not finite in its tensor {index}")
    return found


def refused(named: InitialModel, reason: str) -> InputValueError:
    """Returns the error that names an initial model and the reason to refuse it."""
    return InputValueError(f"{FIELD}={named.file!r} {reason}.")
