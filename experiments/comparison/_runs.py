"""The runs of a comparison: their folders, mechanisms and processes."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import tff_mf

from ..output import files, progress
from ..runs import layers
from ..runs.layers import Layer
from ..runs.names import REPORT, SUMMARY
from ..runs.settings import RunSettings
from ._spec import PlannedRun

RESULT, TABLE = "comparison.json", "comparison.md"
_FOLDERS = ("runs", "configurations", "mechanisms", "logs")


@dataclasses.dataclass(frozen=True)
class Places:
    """Paths in the folder of a comparison.

    Attributes:
        out: The folder.
    """

    out: pathlib.Path

    def make(self) -> None:
        """Makes the folders that are missing."""
        for name in _FOLDERS:
            (self.out / name).mkdir(exist_ok=True)

    @property
    def lock(self) -> pathlib.Path:
        """Held while a comparison works in the folder."""
        return self.out / ".lock"

    @property
    def mechanisms(self) -> pathlib.Path:
        """Folder of the artifacts."""
        return self.out / "mechanisms"

    def run(self, name: str) -> pathlib.Path:
        """Returns the folder of a run."""
        return self.out / "runs" / name

    def run_lock(self, name: str) -> pathlib.Path:
        """Returns the lock that the process of a run holds."""
        return self.out / "runs" / f".{name}.lock"

    def is_done(self, name: str) -> bool:
        """Returns whether a run is done: whether it has its report, the last file that is written."""
        return (self.run(name) / REPORT).is_file()

    def settings(self, name: str) -> pathlib.Path:
        """Returns the file of the settings of a run."""
        return self.out / "configurations" / f"{name}.toml"

    def log(self, name: str) -> pathlib.Path:
        """Returns the file of what a run prints."""
        return self.out / "logs" / f"{name}.txt"


_KNOWN_BY = (
    *("mechanism", "buffers", "bands", "workload", "rounds"),
    *("restart_every", "unit_norms", "objective"),
)
_KNOWN_BY_WITH_WORKLOAD = ("server_momentum", "server_warmup", "server_cooldown")


def prepared(
    planned: Sequence[PlannedRun], folder: pathlib.Path, say: Callable[[str], None]
) -> dict[str, pathlib.Path]:
    """Returns the artifact of each run by the run's name, and makes those that are missing.

    Args:
        planned: The runs.
        folder: Where artifacts are kept.
        say: Called with a message of one line before each search.
    """
    artifacts = {}
    for run in planned:
        settings = run.optimized_for
        path = folder / _name(settings)
        if not path.is_file():
            say(f"optimizing {run.label}")
            tff_mf.save(settings.build_mechanism(), path)
        artifacts[run.name] = path
    return artifacts


def _name(settings: RunSettings) -> str:
    fields = _KNOWN_BY + (() if settings.workload == "prefix-sum" else _KNOWN_BY_WITH_WORKLOAD)
    values = [(field, getattr(settings, field)) for field in fields]
    values.append(("participation", repr(settings.participation())))
    digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", pathlib.Path(settings.mechanism).stem)
    return f"{slug}-{digest}.safetensors"


_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A process to run.

    Attributes:
        name: Its name.
        start: Returns the command; called right before the process starts.
        log: File for its output.
    """

    name: str
    start: Callable[[], list[str]]
    log: pathlib.Path


def run(jobs: Iterable[Job], *, at_once: int, on_end: Callable[[Job, int], None]) -> None:
    """Runs the jobs, `at_once` at a time. If this is interrupted, it ends the running ones first.

    Args:
        jobs: The jobs, in the order in which they start.
        at_once: Largest number of processes at a time.
        on_end: Called with each job and its exit status.
    """
    waiting = list(jobs)
    running: dict[subprocess.Popen, Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[_started(job)] = job
            time.sleep(_POLL_SECONDS)
            for process in [process for process in running if _has_ended(process)]:
                job = running.pop(process)
                on_end(job, _reaped(process))
    finally:
        for process in running:
            process.terminate()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process in running:
            while not _has_ended(process) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            _reaped(process)


def _started(job: Job) -> subprocess.Popen:
    command = job.start()
    # In its own session: an interrupt reaches this process only, and the TFF worker of a killed run can be ended.
    with job.log.open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _has_ended(process: subprocess.Popen) -> bool:
    # Not `poll`, which would free the process's number, by which its group is ended.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reaped(process: subprocess.Popen) -> int:
    """Ends what is left of a process and of those that it started, and returns its exit status."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


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
    left = [run for run in planned if not places.is_done(run.name)]
    say(f"{len(planned)} runs, {len(planned) - len(left)} done already")
    failed: dict[str, str] = {}
    start = time.monotonic()
    ended = 0

    def end(job: Job, status: int) -> None:
        nonlocal ended
        ended += 1
        minutes = (time.monotonic() - start) / ended * (len(left) - ended) / 60
        if places.is_done(job.name):
            accuracy = json.loads((places.run(job.name) / SUMMARY).read_text(encoding="utf-8"))["accuracy"]
            outcome = f"accuracy {100 * accuracy:.2f} %"
        else:
            failed[job.name] = _last_line(job.log) or f"ended with status {status}"
            outcome = f"FAILED: {failed[job.name]}"
        say(f"{ended} of {len(left)}, {minutes:.0f} min left: {job.name}: {outcome}")
        progress.step()

    def job_of(run: PlannedRun) -> Job:
        return Job(name=run.name, log=places.log(run.name), start=lambda: command_of(run))

    with progress.bar("compare", len(left)):
        run([job_of(run) for run in left], at_once=at_once, on_end=end)
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
    with files.held(lock):
        shutil.rmtree(places.run(run.name), ignore_errors=True)
    own = Layer.of({"mechanism": str(artifact.absolute()), "dataset": f"sqlite:{data}"}, "comparison")
    file = places.settings(run.name)
    files.write_atomically(file, layers.as_toml(layers.laid([run.layer, own]).values))
    # Not -m alone, which would look for the package in the current folder first.
    parts = [sys.executable, "-P", "-m", child, os.getpid(), lock]
    # A spec that names σ asks for no ε.
    flags = ["--json", *(["--without-epsilon"] if run.privacy[0] == "noise_multiplier" else [])]
    return [*map(str, parts), "train", "--force", "--config", str(file), "--out", str(places.run(run.name)), *flags]


def _last_line(log: pathlib.Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
