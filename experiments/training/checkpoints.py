"""Checkpoints of a run: what it saves before it releases anything, and what it resumes from."""

import asyncio
import dataclasses
import json
import pathlib
import secrets
from collections.abc import Mapping
from typing import Any

from tff_mf.errors import InputValueError

from ... import aggregators
from ..output import files, typed
from ..run_folder.names import CHECKPOINTED_RUN
from ..run_folder.same_settings import check_same


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
    """The checkpoints of one run, which only a run with the same settings can resume.

    Attributes:
        fresh: Whether the run starts, and is not resumed.

    Args:
        out: Folder of the run.
        aggregator: The run's aggregator.
        description: Everything that determines how the run proceeds, as JSON.
        every: Rounds between checkpoints; 0 for none.
        resume: Whether to resume the run that is in the folder.

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
    ) -> None:
        begun = out / CHECKPOINTED_RUN
        # A run that was stopped before its first checkpoint folder was written has released nothing: it starts now.
        self.fresh = not resume or not begun.is_file()
        self._every, self._folder = every, begun.parent
        self._manager: aggregators.CheckpointManager | None = None
        self._run: str | None = None
        if not every and not resume:
            return
        description = json.loads(json.dumps({**description, "noise": aggregator.fingerprint}))
        self._run = secrets.token_hex(16) if self.fresh else _check_same_run(begun, description)
        self._manager = aggregators.CheckpointManager(begun.parent, aggregator=aggregator)
        if self.fresh:
            if asyncio.run(self._manager.get_versions()):
                raise InputValueError(
                    f"out={str(out)!r} has checkpoints and no {CHECKPOINTED_RUN} that names their run: restore it, or "
                    "start another run in another folder."
                )
            files.write_atomically(begun, json.dumps({**description, "run": self._run}, indent=2) + "\n")

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
        if (kept["run"], kept["round_number"]) != (self._run, version):
            raise InputValueError(
                f"checkpoint {version} in {str(self._folder)!r} is of round {kept['round_number']} of run "
                f"{kept['run'][:8]}, and not of this one, {self._run or '':.8}: put the run's own checkpoint back."
            )
        return Progress(
            state=saved["state"],
            round_number=kept["round_number"],
            history=tuple(kept["history"]),
            row=kept["row"],
            seconds=kept["seconds"],
        )

    def is_due(self, round_number: int, *, released: bool) -> bool:
        """Returns whether `save` writes a checkpoint of a round."""
        return self._manager is not None and (released or round_number % self._every == 0)

    def save(self, progress: Progress, *, released: bool) -> bool:
        """Saves the run where it is, if it is due: every so many rounds, and always before a release.

        Formal guarantee: a round of which something is released is on disk when this returns, so that
        it is never run again: run again, it would be released twice, with different noise on the
        same clients, which the guarantee does not cover.

        Args:
            progress: Where the run is.
            released: Whether something of the last round is about to be released.

        Returns:
            Whether no round until here can be run again: they are saved, or the run never resumes.
        """
        if self._manager is None:
            return True
        if not self.is_due(progress.round_number, released=released):
            return False
        kept = {"run": self._run, **{name: value for name, value in vars(progress).items() if name != "state"}}
        state = {"state": progress.state, "progress": json.dumps(kept)}
        asyncio.run(self._manager.save(state, progress.round_number))
        return True

    def finish(self) -> None:
        """Deletes the checkpoints: the run is over, and with their keys the noise can be removed from its models."""
        if self._manager is not None:
            asyncio.run(self._manager.remove_all())


def _check_same_run(path: pathlib.Path, description: Mapping[str, Any]) -> str:
    """Returns which run a folder is of, if its settings are these."""
    begun = typed.read(path, dict[str, Any], "run")
    if not isinstance(run := begun.pop("run", None), str):
        raise InputValueError(f"run={str(path)!r} is damaged: it names no run. Put it back, or start another run.")
    check_same(description, begun, run=str(path.parent.parent))
    return run
