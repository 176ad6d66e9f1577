"""The runs of a comparison: their folders, mechanisms and processes."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import tff_mf

from ...base import checkpoint_files
from ..output import files, progress, typed
from ..runs import folders, layers
from ..runs.layers import Layer
from ..runs.names import CHECKPOINTS, COHORTS, REPORT, SUMMARY
from ..runs.settings import RunSettings
from ..runs.summary import Summary
from ._spec import PlannedRun

RESULT, TABLE = "comparison.json", "comparison.md"
FOLDERS = ("runs", "configurations", "mechanisms", "logs")


def folder_of(out: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the folder of a run of a comparison."""
    return out / "runs" / name


def is_done(out: pathlib.Path, name: str) -> bool:
    """Returns whether a run is done: whether it has its report, and has deleted its keys, which it does last."""
    folder = folder_of(out, name)
    secrets = folder / CHECKPOINTS
    keys = (secrets / COHORTS).exists() or checkpoint_files.saved_rounds(secrets)
    return (folder / REPORT).is_file() and not keys


_KNOWN_BY = ("mechanism", "buffers", "bands", "workload", "rounds", "restart_every", "unit_norms", "objective")
_KNOWN_BY_WITH_WORKLOAD = ("server_momentum", "server_warmup", "server_cooldown")


def prepared(
    planned: Sequence[PlannedRun], folder: pathlib.Path, say: Callable[[str], None]
) -> dict[str, pathlib.Path]:
    """Returns the artifact of each run by the run's name, and makes those that are missing."""
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
_SECONDS_BETWEEN_LINES = 10.0
_PATIENCE_SECONDS = 30.0


def _started(command: list[str], path: pathlib.Path) -> subprocess.Popen:
    # In its own session: an interrupt reaches this process only, and the TFF worker of a killed run can be ended.
    # Its result is read from its folder; its log has how far it is, and why it failed.
    nothing = subprocess.DEVNULL
    with path.open("wb") as log:
        return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=log, start_new_session=True)


def _has_ended(process: subprocess.Popen) -> bool:
    # Not `poll`, which would free the process's number, by which its group is ended.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reaped(process: subprocess.Popen) -> int:
    """Ends what is left of a process and of those that it started, and returns its exit status."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _last_line(log: pathlib.Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run_missing(
    planned: Sequence[PlannedRun],
    command_of: Callable[[PlannedRun], list[str]],
    out: pathlib.Path,
    *,
    at_once: int,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Does the runs that are not done, and returns the last line of each that failed, by its name.

    If this is interrupted, it ends the running ones first. `command_of` is called right before a run starts, and `say`
    with messages of one line about the progress.
    """
    left = [run for run in planned if not is_done(out, run.name)]
    logs = {run.name: out / "logs" / f"{run.name}.txt" for run in left}
    say(f"{len(planned)} runs, {len(planned) - len(left)} done already")
    failed: dict[str, str] = {}
    waiting, running, start = list(left), dict[subprocess.Popen, PlannedRun](), time.monotonic()
    told, told_at = set[str](), start

    def end(name: str, status: int) -> None:
        ended = len(left) - len(waiting) - len(running)
        minutes = (time.monotonic() - start) / ended * (len(left) - ended) / 60
        if is_done(out, name):
            outcome = f"accuracy {100 * typed.read(folder_of(out, name) / SUMMARY, Summary, 'summary').accuracy:.2f} %"
        else:
            failed[name] = _last_line(logs[name]) or f"ended with status {status}"
            outcome = f"FAILED: {failed[name]}"
        say(f"{ended} of {len(left)}, {minutes:.0f} min left: {name}: {outcome}")
        progress.step()

    with progress.bar("compare", len(left)):
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    run = waiting.pop(0)
                    running[_started(command_of(run), logs[run.name])] = run
                time.sleep(_POLL_SECONDS)
                for process in [process for process in running if _has_ended(process)]:
                    end(running.pop(process).name, _reaped(process))
                if time.monotonic() > told_at + _SECONDS_BETWEEN_LINES:
                    # Each run says how far it is in its log.
                    lines = [line for run in running.values() if (line := _last_line(logs[run.name])) not in told]
                    for line in filter(None, lines):
                        say(line)
                    told.update(lines)
                    told_at = time.monotonic()
        finally:
            for process in running:
                process.terminate()
            deadline = time.monotonic() + _PATIENCE_SECONDS
            for process in running:
                while not _has_ended(process) and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
                _reaped(process)
    return failed


def command(run: PlannedRun, artifact: pathlib.Path, data: pathlib.Path, out: pathlib.Path, child: str) -> list[str]:
    """Writes the settings of a run, and returns the command that does it, or goes on with it where it was stopped.

    A run that was begun is never begun anew: its rounds would be released twice, with other noise.
    """
    folder = folder_of(out, run.name)
    lock = folder.with_name(f".{run.name}.lock")
    # A run of an earlier comparison, which was killed, may be about to end in this folder.
    with files.held(lock):
        resume = ["--resume"] if folders.has_files(folder) else []
    own = Layer.of({"mechanism": str(artifact.absolute()), "dataset": f"sqlite:{data}"}, "comparison")
    file = out / "configurations" / f"{run.name}.toml"
    files.write_atomically(file, layers.as_toml(layers.laid([run.layer, own]).values))
    # Not -m alone, which would look for the package in the current folder first.
    parts = [sys.executable, "-P", "-m", child, os.getpid(), lock]
    # A spec that names σ asks for no ε.
    flags = ["--without-epsilon"] if run.privacy[0] == "noise_multiplier" else []
    return [*map(str, parts), "train", "--force", "--config", str(file), "--out", str(folder), *resume, *flags]
