"""An initial model that is given: the file of another run's model, with its vocabulary beside it."""

import dataclasses
import filecmp
import hashlib
import json
import os
import pathlib
import re
import tomllib
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from tff_mf.base.errors import InputValueError

from ..output import files, typed
from ..output.files import file_hash
from ..output.typed import Record
from . import model_file
from .names import INITIAL_MODEL, SETTINGS_TOML, VOCABULARY

_Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
FIELD = "initial_model"
# The data set of a run whose settings name none.
DEFAULT_DATASET = "pydoc"
SQLITE = "sqlite:"
# Files of the cache, by which `tff-mf compare` names the data sets of its runs.
_CACHED = {
    "pydoc": re.compile(r"pydoc-[0-9a-f]{16}\.sqlite"),
    "stackoverflow": re.compile(r"stackoverflow\.sqlite"),
}
EMBEDDED = tuple(_CACHED)


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
    """Returns the words of a model, from the `vocabulary.json` beside it."""
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

    def parameters(self, expected: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns its parameters in order, of the shapes and types of the model that is to start from it."""
        return parameters(self.named, self.content, expected)

    def keep(self, folder: pathlib.Path) -> None:
        """Writes a copy with its vocabulary to the folder of a run, which is then resumed without the file."""
        files.write_atomically(folder / VOCABULARY, json.dumps(self.vocabulary, ensure_ascii=False) + "\n")
        files.write_atomically(folder / INITIAL_MODEL, self.content)


def read(named: InitialModel, folder: pathlib.Path, vocab_size: int) -> GivenModel:
    """Returns the initial model of a run, from the copy in its folder if it has one."""
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


def parameters(named: InitialModel, content: bytes, expected: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the parameters in the file of an initial model, in order.

    Args:
        named: The model, for the message.
        content: The file.
        expected: Parameters of the shapes and types of the model that is to start from it.
    """
    try:
        tensors, _ = model_file.read(content)
    except ValueError as error:
        raise refused(named, f"is not a model that tff-mf train wrote: {error}") from error
    if len(tensors) != len(expected):
        raise refused(named, f"has {len(tensors)} tensors that train, and the model has {len(expected)}")
    for (name, value), own in zip(tensors.items(), expected, strict=True):
        if (value.shape, value.dtype) != (own.shape, own.dtype):
            raise refused(
                named,
                f"has {value.dtype} {list(value.shape)} as its tensor {name!r}, and the model that knows its words has "
                f"{own.dtype} {list(own.shape)}: take the settings model, vocab_size, embedding_size and units that it "
                "was trained with",
            )
        if not np.isfinite(value).all():
            raise refused(named, f"has a number that is not finite in its tensor {name!r}")
    return list(tensors.values())


def refused(named: InitialModel, reason: str) -> InputValueError:
    """Returns the error that names an initial model and the reason to refuse it."""
    return InputValueError(f"{FIELD}={named.file!r} {reason}.")


def trained_on(model: pathlib.Path, dataset: str) -> bool:
    """Returns whether a model is from a run on a data set, or from one that started from the model of such a run.

    Formal guarantee: if the settings are beside the model, or beside the file that it is a link to, and can be read, a
    data set is known by its name, by the file of the cache, and by any path to its file or to a copy of it. What cannot
    be compared is taken to be the same: settings that cannot be read, an earlier model that is gone, and a file that is
    gone and has the same name. A model without settings is taken for one that is public.
    """
    return any(_of_run(folder, dataset, frozenset()) for folder in _folders(model))


def _folders(model: pathlib.Path) -> set[pathlib.Path]:
    """Returns the folders of a model and of the file that it is a link to."""
    return {
        pathlib.Path(os.path.realpath(each)) for each in (model.parent, pathlib.Path(os.path.realpath(model)).parent)
    }


def _of_run(folder: pathlib.Path, dataset: str, seen: frozenset[pathlib.Path]) -> bool:
    settings = folder / SETTINGS_TOML
    if not settings.is_file() or folder in seen:
        return False
    try:
        run = tomllib.loads(settings.read_text(encoding="utf-8")).get("run", {})
        if _is_same(run.get("dataset", DEFAULT_DATASET), dataset):
            return True
        if run.get(FIELD) is None:
            return False
        before = pathlib.Path(run[FIELD])
        return not before.is_file() or any(_of_run(each, dataset, seen | {folder}) for each in _folders(before))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        # Nobody can tell what it was trained on: the worse case is supposed.
        return True


def _is_same(earlier: str, dataset: str) -> bool:
    names = _embedded(earlier), _embedded(dataset)
    if any(names):
        return names[0] == names[1]
    files = [pathlib.Path(each.removeprefix(SQLITE)) for each in (earlier, dataset)]
    if os.path.realpath(files[0]) == os.path.realpath(files[1]):
        return True
    if not all(each.is_file() for each in files):
        return files[0].name == files[1].name
    return filecmp.cmp(*files, shallow=False)


def _embedded(dataset: str) -> str:
    """Returns the name of a data set that has one, also if it is given by its file in the cache; or an empty text."""
    name = os.path.basename(dataset.removeprefix(SQLITE))
    return next((known for known, file in _CACHED.items() if dataset == known or file.fullmatch(name)), "")
