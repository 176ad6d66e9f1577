"""The runs of a comparison as processes: those that are missing are started, and their outcomes told."""

import json
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Sequence

from ..configuration import layers, toml_file
from ..configuration.layers import Layer
from ..output import files, locks, progress
from . import _jobs
from ._places import Places
from ._spec import PlannedRun


def run_missing(
    planned: Sequence[PlannedRun],
    command_of: Callable[[PlannedRun], list[str]],
    places: Places,
    *,
    at_once: int,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Does the runs that are not done, and returns the last line of each that failed, by its name.

    Args:
        planned: All runs.
        command_of: Returns the command of a run; called right before the run starts.
        places: Where runs are kept.
        at_once: Number of runs at a time.
        say: Called with messages of one line about the progress.
    """
    left = [run for run in planned if not places.summary(run.name).is_file()]
    say(f"{len(planned)} runs, {len(planned) - len(left)} done already")
    failed: dict[str, str] = {}
    start = time.monotonic()
    ended = 0

    def end(job: _jobs.Job, status: int) -> None:
        nonlocal ended
        ended += 1
        minutes = (time.monotonic() - start) / ended * (len(left) - ended) / 60
        if places.summary(job.name).is_file():
            accuracy = json.loads(places.summary(job.name).read_text(encoding="utf-8"))["accuracy"]
            outcome = f"accuracy {100 * accuracy:.2f} %"
        else:
            failed[job.name] = _last_line(job.log) or f"ended with status {status}"
            outcome = f"FAILED: {failed[job.name]}"
        say(f"{ended} of {len(left)}, {minutes:.0f} min left: {job.name}: {outcome}")
        progress.step()

    def job_of(run: PlannedRun) -> _jobs.Job:
        return _jobs.Job(name=run.name, log=places.log(run.name), start=lambda: command_of(run))

    with progress.bar("compare", len(left)):
        _jobs.run([job_of(run) for run in left], at_once=at_once, on_end=end)
    return failed


def command(run: PlannedRun, artifact: pathlib.Path, data: pathlib.Path, places: Places, child: str) -> list[str]:
    """Clears the folder of a run, writes its settings, and returns the command that does it.

    Args:
        run: The run.
        artifact: Its mechanism.
        data: Its data set.
        places: Where runs are kept.
        child: See `run_comparison`.
    """
    lock = places.run_lock(run.name)
    # A run of an earlier comparison, which was killed, may be about to end in this folder.
    with locks.held(lock):
        shutil.rmtree(places.run(run.name), ignore_errors=True)
    own = Layer.of({"mechanism": str(artifact.absolute()), "dataset": f"sqlite:{data}"}, "comparison")
    settings = places.configuration(run.name)
    files.write_atomically(settings, toml_file.as_toml(layers.laid([run.layer, own]).values))
    # Not -m alone, which would look for the package in the current folder first.
    parts = [sys.executable, "-P", "-m", child, os.getpid(), lock]
    # A spec that names σ asks for no ε.
    flags = ["--json", *(["--without-epsilon"] if run.privacy[0] == "noise_multiplier" else [])]
    return [*map(str, parts), "train", "--config", str(settings), "--out", str(places.run(run.name)), *flags]


def _last_line(log: pathlib.Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
