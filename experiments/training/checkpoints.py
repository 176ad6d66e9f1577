"""Checkpoints of a run: what it saves before it releases anything, what it starts and what it resumes from."""

import asyncio
import dataclasses
import hashlib
import json
import logging
import pathlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_mf.base.errors import InputValueError

from ... import aggregators
from ..output import files, typed
from ..runs.initial_model import InitialModel, parameters, refused, vocabulary_hash, vocabulary_of
from ..runs.metrics import ROUND, SECONDS, read_metrics, write_metrics
from ..runs.names import CHECKPOINTED_RUN, CHECKPOINTS, COHORTS, INITIAL_MODEL, VOCABULARY
from ..runs.rules import check_same
from ..sampling import CohortSecret


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
    history: tuple[dict[str, float], ...] = ()
    row: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


class Recovery:
    """The checkpoints of one run, which only a run with the same settings can resume. A `Storage` of the loop.

    Args:
        out: Folder of the run.
        aggregator: The run's aggregator.
        description: Everything that determines how the run proceeds, as JSON.
        every: Rounds between checkpoints; 0 for none.
        resume: Whether to resume the run that is in the folder.
        run: The identifier of a run that begins; drawn if not given.

    Raises:
        InputValueError: If the run to resume has other settings, or its files are damaged.
    """

    def __init__(
        self,
        out: pathlib.Path,
        aggregator: aggregators.MFAggregationFactory,
        description: Mapping[str, Any],
        *,
        every: int,
        resume: bool,
        run: str | None = None,
    ) -> None:
        begun = out / CHECKPOINTED_RUN
        # A run that was stopped before its first checkpoint folder was written has released nothing: it starts now.
        fresh = not resume or not begun.is_file()
        self._every, self._folder = every, begun.parent
        self._manager: aggregators.CheckpointManager | None = None
        self._run: str | None = None
        self._loaded: dict[int, Mapping[str, Any]] = {}
        if not every and not resume:
            return
        description = json.loads(json.dumps({**description, "noise": aggregator.fingerprint}))
        self._run = (run or secrets.token_hex(16)) if fresh else _check_same_run(begun, description)
        self._manager = aggregators.CheckpointManager(begun.parent, aggregator=aggregator)
        if fresh:
            if asyncio.run(self._manager.get_versions()):
                raise InputValueError(
                    f"out={str(out)!r} has checkpoints and no {CHECKPOINTED_RUN} that names their run: restore it, or "
                    "start another run in another folder."
                )
            files.write_atomically(begun, json.dumps({**description, "run": self._run}, indent=2) + "\n")

    @property
    def resumes(self) -> bool:
        """Whether the run has checkpoints, from which it can be resumed."""
        return self._manager is not None

    @property
    def run(self) -> str | None:
        """Which run the checkpoints are of; `None` where there are none."""
        return self._run

    def load(self, start: Any) -> Progress:
        """Returns where the run was when it was last saved, or the start if it was not."""
        saved, version = None, 0
        if self._manager is not None:
            saved, version = asyncio.run(self._manager.load_latest({"state": start, "progress": ""}))
        if saved is None:
            return Progress(state=start)
        kept = json.loads(saved["progress"])
        self._loaded = {version: kept["about"]}
        return Progress(
            state=saved["state"],
            round_number=kept["round_number"],
            history=tuple(kept["history"]),
            row=kept["row"],
            seconds=kept["seconds"],
        )

    def rounds(self) -> list[int]:
        """Returns the rounds whose checkpoint was loaded: the newest, or none."""
        return list(self._loaded)

    def about(self, round_number: int) -> Mapping[str, Any]:
        """Returns the facts that were saved with the checkpoint that was loaded."""
        return self._loaded[round_number]

    def is_due(self, round_number: int, *, released: bool) -> bool:
        """Returns whether a round has to be saved: every so many rounds, and always before a release.

        Formal guarantee: a round of which something is released has to be on disk before, so that it is never run
        again: run again, it would be released twice, with different noise on the same clients, which the guarantee
        does not cover.

        Args:
            round_number: The round.
            released: Whether something of the round is about to be released.
        """
        return self.resumes and (released or round_number % self._every == 0)

    def save(self, round_number: int, state: Progress, about: Mapping[str, Any]) -> None:
        """Saves the run where it is, with facts about it."""
        assert self._manager is not None
        kept = {"about": about, **{name: value for name, value in vars(state).items() if name != "state"}}
        saved = {"state": state.state, "progress": json.dumps(kept)}
        asyncio.run(self._manager.save(saved, round_number))

    def finish(self) -> None:
        """Deletes the checkpoints: the run is over, and with their keys the noise can be removed from its models."""
        if self._manager is not None:
            asyncio.run(self._manager.remove_all())
            (self._folder / COHORTS).unlink(missing_ok=True)


def secret_of(out: pathlib.Path) -> CohortSecret:
    """Returns the secret that the cohorts of a run follow from: a new one, or the one of a run that was begun.

    Args:
        out: Folder of the run.

    Raises:
        InputValueError: If the run to resume has none: no others may take part in its rounds.
    """
    path, begun = out / CHECKPOINTS / COHORTS, out / CHECKPOINTED_RUN
    if not begun.is_file():
        return CohortSecret.drawn()
    run = str(typed.read(begun, dict[str, Any], "run").get("run"))
    if not path.is_file():
        raise InputValueError(
            f"out={str(out)!r} has lost {path.name}, from which its secret cohorts follow: put it back, or start "
            "another run in another folder."
        )
    return CohortSecret.load(path, run=run)


def keep_secret(secret: CohortSecret, out: pathlib.Path) -> None:
    """Saves the secret of a run that begins with its checkpoints, readable by the owner of the files alone."""
    if (out / CHECKPOINTED_RUN).is_file():
        return
    path = out / CHECKPOINTS / COHORTS
    path.parent.mkdir(exist_ok=True)
    # Of a run that was stopped before it began, nothing was computed.
    path.unlink(missing_ok=True)
    secret.save(path)


def _check_same_run(path: pathlib.Path, description: Mapping[str, Any]) -> str:
    """Returns which run a folder is of, if its settings are these."""
    begun = typed.read(path, dict[str, Any], "run")
    if not isinstance(run := begun.pop("run", None), str):
        raise InputValueError(f"run={str(path)!r} is damaged: it names no run. Put it back, or start another run.")
    check_same(description, begun, run=str(path.parent.parent))
    return run


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


_LOG = logging.getLogger(__name__)


def restore_metrics(path: pathlib.Path, round_number: int, history: Sequence[Mapping[str, float]]) -> None:
    """Rewrites the metrics of all rounds from the checkpoint if the file differs from it, with a warning.

    The durations of the rounds are lost then.

    Args:
        path: The metrics.
        round_number: Last round of the newest checkpoint.
        history: Metrics of each evaluated round, as in the checkpoint.
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
