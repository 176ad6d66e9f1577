"""Reads the model that training starts from, and keeps a copy of it in the folder of the run."""

import dataclasses
import hashlib
import json
import pathlib

import numpy as np
import tensorflow_federated as tff

from ..output import files
from ..run_folder.initial_model import InitialModel, parameters, refused, vocabulary_hash, vocabulary_of
from ..run_folder.names import INITIAL_MODEL, VOCABULARY


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenModel:
    """An initial model that was read, and is the one of the settings.

    Attributes:
        named: The entry of the settings.
        content: The file.
        vocabulary: The words that it knows, the most frequent first.
    """

    named: InitialModel
    content: bytes
    vocabulary: list[str]

    def weights(self, expected: tff.learning.models.ModelWeights) -> tff.learning.models.ModelWeights:
        """Returns its parameters for a model of the same shape.

        Args:
            expected: The parameters of a model of the run's settings and of this vocabulary.

        Raises:
            InputValueError: If the file holds no such parameters, or one of them is not finite.
        """
        found = parameters(self.named, self.content, [np.asarray(each) for each in expected.trainable])
        return tff.learning.models.ModelWeights(trainable=found, non_trainable=expected.non_trainable)


def read(named: InitialModel, folder: pathlib.Path, vocab_size: int) -> GivenModel:
    """Returns the initial model of a run, from the copy in its folder if it has one.

    Args:
        named: The entry of the run's settings.
        folder: The run's folder.
        vocab_size: The most words that the model of the run can know.

    Raises:
        InputValueError: If the file or its vocabulary is missing, or differs from the settings.
    """
    copy = folder / INITIAL_MODEL
    path = copy if copy.is_file() else pathlib.Path(named.file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise refused(named, f"cannot be read ({error.strerror or error}), and the run has no copy of it") from error
    if hashlib.sha256(content).hexdigest() != named.sha256:
        raise refused(named, f"is another model than at the start: the SHA-256 of {str(path)!r} differs")
    vocabulary = vocabulary_of(path)
    if vocabulary_hash(vocabulary) != named.vocabulary_sha256:
        raise refused(named, f"has another vocabulary than at the start: {str(path.parent / VOCABULARY)!r} differs")
    if len(vocabulary) > vocab_size:
        raise refused(named, f"knows {len(vocabulary)} words: take vocab_size={len(vocabulary)}")
    return GivenModel(named=named, content=content, vocabulary=vocabulary)


def keep(given: GivenModel, folder: pathlib.Path) -> None:
    """Writes a copy of the model and its vocabulary to the folder of a run, which is then resumed without the file."""
    files.write_atomically(folder / VOCABULARY, json.dumps(given.vocabulary, ensure_ascii=False) + "\n")
    files.write_atomically(folder / INITIAL_MODEL, given.content)
