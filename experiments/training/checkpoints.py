"""Checkpoints of a run: what it saves before it releases anything, what it starts and what it resumes from."""

import dataclasses
import hashlib
import json
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from ... import aggregators
from ...aggregators.checkpoints.manager import States
from ..output import files
from ..runs.initial_model import InitialModel, parameters, refused, vocabulary_hash, vocabulary_of
from ..runs.metrics import ROUND, SECONDS, read_metrics, write_metrics
from ..runs.names import CHECKPOINTS, COHORTS, INITIAL_MODEL, VOCABULARY


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run after a round that is computed and not yet released.

    Attributes:
        state: State of the learning process.
        round_number: Rounds that are finished.
        history: Metrics of each evaluated round.
        row: What is released of the last round: its row of metrics.
        seconds: How long the rounds took.
    """

    state: Any
    round_number: int = 0
    history: Sequence[Mapping[str, float]] = ()
    row: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


class Saved(States):
    """The checkpoints of one run, with its progress. A `Storage` of the loop.

    Args:
        out: Folder of the run.
        aggregator: The run's aggregator.
        start: The state before the first round.
        every: Rounds between checkpoints; 0 for none.
    """

    def __init__(self, out: pathlib.Path, aggregator: aggregators.MFAggregationFactory, start: Any, *, every: int):
        self._folder, self._every = out / CHECKPOINTS, every
        super().__init__(aggregators.CheckpointManager(self._folder, aggregator=aggregator) if every else None, start)

    @property
    def progress(self) -> Progress:
        """Where the run was when it was last saved, or its start if it was not."""
        kept = self.about(self.newest).get("progress", {})
        return Progress(state=self.state, round_number=self.newest, **kept)

    @property
    def resumes(self) -> bool:
        """Whether the run has checkpoints, from which it can be resumed."""
        return self._every > 0

    def is_due(self, round_number: int, *, released: bool) -> bool:
        """Returns whether a round has to be saved: every so many rounds, and always before a release.

        Formal guarantee: a round of which something is released has to be on disk before, so that it is never run
        again: run again, it would be released twice, with different noise on the same clients, which the guarantee
        does not cover.
        """
        return self.resumes and (released or round_number % self._every == 0)

    def save(self, round_number: int, state: Progress, about: Mapping[str, Any]) -> None:
        """Saves the run where it is, with facts about it."""
        kept = {"history": state.history, "row": state.row, "seconds": state.seconds}
        super().save(round_number, state.state, {**about, "progress": kept})

    def finish(self) -> None:
        """Deletes the checkpoints: the run is over, and with their keys the noise can be removed from its models."""
        self.remove_all()
        (self._folder / COHORTS).unlink(missing_ok=True)


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
        """Returns its parameters for a model of the same shape."""
        found = parameters(self.named, self.content, [np.asarray(each) for each in expected.trainable])
        return tff.learning.models.ModelWeights(trainable=found, non_trainable=expected.non_trainable)


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


def keep(given: GivenModel, folder: pathlib.Path) -> None:
    """Writes a copy of the model and its vocabulary to the folder of a run, which is then resumed without the file."""
    files.write_atomically(folder / VOCABULARY, json.dumps(given.vocabulary, ensure_ascii=False) + "\n")
    files.write_atomically(folder / INITIAL_MODEL, given.content)


_LOG = logging.getLogger(__name__)


def restore_metrics(path: pathlib.Path, round_number: int, history: Sequence[Mapping[str, float]]) -> None:
    """Rewrites the metrics of all rounds from the checkpoint if the file differs from it, with a warning.

    The durations of the rounds are lost then.
    """
    if not round_number:
        return
    expected = {number: {ROUND: str(number)} for number in range(1, round_number + 1)}
    for row in history:
        expected[int(row[ROUND])] = {name: str(value) for name, value in row.items()}
    metrics = read_metrics(path)
    kept = [row for row in metrics.rows if row[ROUND] in map(str, expected)]
    found = [{name: text for name, text in row.items() if text and name != SECONDS} for row in kept]
    if found == list(expected.values()) and not metrics.problems:
        return
    _LOG.warning("%r was damaged: it is written anew, from the checkpoint of round %d.", str(path), round_number)
    write_metrics(path, expected.values())
