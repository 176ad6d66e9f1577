"""What a training leaves: the file of its model, the metrics of its rounds, and the summary of the model."""

import csv
import dataclasses
import io
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import safetensors
import safetensors.numpy

from tff_mf.base.errors import InputValueError

from ..output import files, typed
from ..output.typed import Number, Record
from .names import MODEL, VOCABULARY

ROUND, SECONDS = "round", "seconds"
ACCURACY = "accuracy_without_out_of_vocab_or_end_of_sentence"
# Columns that contain nothing about anybody's data.
HARMLESS = frozenset({ROUND, SECONDS})
# Whom evaluation is on, in `released_without_noise` of run.json. StackOverflow's test split is by date, and has users
# who train.
NOT_TRAINING, ALSO_TRAINING = "clients that do not train", "other sentences of clients that train"
# Choquette-Choo et al. (2023), tables 6 and 7: 400 rounds, of 2,052. Shorter runs: the same part of them.
_SMOOTHED_ROUNDS, _SMOOTHED_PART = 400, 5
# One field of a model's metadata: the format writes several in any order, and equal models have equal files.
_ORDER = "order"


class Quality(Record, kw_only=True):
    """How good the final model of a run is.

    Attributes:
        accuracy: On test sentences, over known words.
        baseline_accuracy: Of always the most frequent word, on the same sentences.
        loss: On the same sentences; `None` if the model diverged.
        test_sentences: Number of test sentences.
        validation_accuracy: On validation sentences, after the last round.
        validation_accuracy_smoothed: The mean of the last evaluations (`smoothed`).
        validation_sentences: Number of validation sentences.
        validation_split: The clients that they are of.
    """

    accuracy: Number
    baseline_accuracy: Number
    loss: Number | None
    test_sentences: int
    validation_accuracy: Number
    validation_accuracy_smoothed: Number
    validation_sentences: int
    validation_split: str


class Summary(Quality, kw_only=True):
    """The content of `summary.json`. It states no guarantee: reports do.

    Attributes:
        model_sha256: SHA-256 of the file of the model.
        parameters: Number of the model's parameters.
        seconds: Seconds that the rounds took; 0 if the cohorts are secret.
        tff_mf_version: The version that trained.
    """

    model_sha256: str
    parameters: int
    seconds: Number
    tff_mf_version: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metrics:
    """The content of `metrics.csv`.

    Attributes:
        columns: Names of the columns.
        rows: The rows, each of a round, with their cells by column.
    """

    columns: Sequence[str] = ()
    rows: Sequence[Mapping[str, str]] = ()

    @property
    def last_round(self) -> int:
        """The last round that has a row, 0 if there is none."""
        return max((int(row[ROUND]) for row in self.rows), default=0)

    @property
    def evaluated(self) -> list[Mapping[str, str]]:
        """The rows with more than the duration of the round: with something that was computed from its model."""
        return [row for row in self.rows if any(text for name, text in row.items() if name not in HARMLESS)]

    @property
    def accuracies(self) -> list[tuple[int, float]]:
        """The round and the accuracy of each evaluation, in order; none if one of them is no number."""
        try:
            return [(int(row[ROUND]), float(row[ACCURACY])) for row in self.rows if row.get(ACCURACY)]
        except ValueError:
            return []

    @property
    def last_evaluated(self) -> int:
        """The last round that was evaluated, 0 if there is none."""
        return max((int(row[ROUND]) for row in self.evaluated), default=0)


def read_metrics(path: pathlib.Path) -> Metrics:
    r"""Returns the content of `metrics.csv`.

    Formal guarantee: each cell that is not empty belongs to a round and to a column with a unique name: the names of
    the columns describe everything that the file can contain.

    Args:
        path: The file; a file that does not exist has no columns.

    Raises:
        InputValueError: If it cannot be read, or is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "metrics.csv"
        ...     _ = path.write_text("round,seconds,loss\n1,0.5,\n2,0.9,6.25\n")
        ...     found = read_metrics(path)
        >>> found.last_round, found.last_evaluated, found.evaluated[0]["loss"]
        (2, 2, '6.25')
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file, restval="", strict=True)
            rows = list(lines)
            columns = list(lines.fieldnames or ())
    except FileNotFoundError:
        return Metrics()
    except OSError as error:
        raise InputValueError(f"metrics={str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, csv.Error) as error:
        raise _damaged(path, str(error)) from error
    if ROUND not in columns or not all(columns) or len(set(columns)) < len(columns):
        raise _damaged(path, f"every column needs a name of its own, {ROUND!r} among them, and they are {columns}")
    for number, row in enumerate(rows, start=1):
        if None in row:
            raise _damaged(path, f"row {number} has more cells than there are columns")
        if not row[ROUND].isdecimal():
            raise _damaged(path, f"row {number} has the round {row[ROUND]!r}, which is no whole number")
        try:
            float(row.get(SECONDS) or 0)
        except ValueError as error:
            raise _damaged(path, f"row {number}: {error}") from error
    return Metrics(columns=columns, rows=rows)


def _damaged(path: pathlib.Path, problem: str) -> InputValueError:
    return InputValueError(
        f"metrics={str(path)!r} is damaged: {problem}. Put it back, or remove it: a run that goes on writes it anew."
    )


def smoothed(curve: Sequence[tuple[int, float]]) -> float:
    """Returns the mean of a curve over its last 400 rounds, or the last fifth of them if that is less.

    Rates are chosen by validation accuracy smoothed so: Choquette-Choo et al. (2023), table 6, 400 rounds of 2,052.

    Args:
        curve: Round and value of each evaluation, in order; the last one is after the last round.

    Example:
        >>> smoothed([(20, 0.1), (40, 0.2), (60, 0.3), (80, 0.4), (100, 0.5)])
        0.5
        >>> smoothed([(1600, 0.125), (1700, 0.25), (2000, 0.75)])
        0.5
    """
    rounds = curve[-1][0]
    first = rounds - min(_SMOOTHED_ROUNDS, math.ceil(rounds / _SMOOTHED_PART))
    return statistics.fmean(value for number, value in curve if number > first)


def write_metrics(path: pathlib.Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Writes `metrics.csv` anew, atomically."""
    rows = list(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys([ROUND, SECONDS, *(name for row in rows for name in row)])))
    writer.writeheader()
    writer.writerows(rows)
    files.write_atomically(path, text.getvalue())


def model_content(trainable: Mapping[str, np.ndarray], non_trainable: Mapping[str, np.ndarray]) -> bytes:
    """Returns the content of the file of a model.

    The format does not keep the order of tensors, which a model needs to take them: it is in the metadata.

    Args:
        trainable: The weights that train, by their names, in the model's order.
        non_trainable: The others, likewise.
    """
    order = json.dumps([list(trainable), list(non_trainable)])
    return safetensors.numpy.save({**trainable, **non_trainable}, metadata={_ORDER: order})


def model_names(metadata: Mapping[str, str] | None, tensors: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the names of the weights that train, and of the others, each in the model's order.

    Of a file without an order, as of another program, all train: in the order of their numbers, or in none.

    Raises:
        ValueError: If the metadata are not those of the tensors.
    """
    if metadata is None or _ORDER not in metadata:
        return sorted(tensors, key=lambda name: (int(name) if name.isdecimal() else 0, name)), []
    trainable, others = json.loads(metadata[_ORDER])
    if sorted([*trainable, *others]) != sorted(tensors):
        raise ValueError("its metadata name other tensors than it has")
    return trainable, others


def model_of(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the weights of a model that train, and the others, by their names, each in the model's order.

    Raises:
        ValueError: If the content is not that of a model.
    """
    try:
        tensors = safetensors.numpy.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        trainable, others = model_names(header.get("__metadata__"), tensors)
        if "__metadata__" not in header and trainable != [str(index) for index in range(len(trainable))]:
            raise ValueError("it does not say in which order a model takes its tensors")
        return {name: tensors[name] for name in trainable}, {name: tensors[name] for name in others}
    except (safetensors.SafetensorError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def read_model(folder: pathlib.Path, file: str = MODEL) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the trained model in the folder of a run, or another one that is there, as `model_of` does.

    Raises:
        InputValueError: If it is missing or damaged.
    """
    try:
        return model_of((folder / file).read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputValueError(f"run={str(folder)!r}: {file} is missing or damaged: {reason}. Put it back.") from error


def read_vocabulary(folder: pathlib.Path) -> list[str]:
    """Returns the words of a run's or a bundle's model."""
    return typed.read(folder / VOCABULARY, list[str], "vocabulary")
