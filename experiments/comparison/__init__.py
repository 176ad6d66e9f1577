"""Many runs from one specification, which can be interrupted at any time and goes on where it was."""

import json
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf import _validate

from ..configuration import layers, learning_rates, toml_file
from ..configuration.layers import Layer
from ..datasets import named_data
from ..output import files, locks, progress
from ..run_folder import folders
from ..run_folder.names import METRICS, SUMMARY
from . import _artifacts, _jobs, _report, _results, _spec

RESULT = "comparison.json"
TABLE = "comparison.md"


def run_comparison(
    spec: pathlib.Path,
    out: pathlib.Path,
    *,
    child: str,
    jobs: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Does all runs of a specification that are not done, and writes the table and the pictures.

    A run is a process of its own, in `out/runs/`, and is done when its `summary.json` is there, which is written
    in one step. Anything else that an interruption left of a run is removed, and the run begins again. Mechanisms
    are optimized once, and kept in `out/mechanisms/`.

    Args:
        spec: A TOML file, see `docs/experiments.md`.
        out: The folder of all results, made if need be. Other specifications may share it.
        child: Name of the module that each run executes as a process, with the arguments of `tff-mf`.
        jobs: Runs at a time.
        say: Called with a line for a person, now and then.

    Returns:
        What `comparison.json` holds.

    Raises:
        InputError: If the specification or an argument is wrong; nothing is run then.
    """
    _validate.whole("jobs", jobs)
    datasets = {run.configuration.dataset for run in _spec.read(spec)}
    folders.continued_folder(out)
    data_of = {dataset: named_data.data_file(dataset).absolute() for dataset in sorted(datasets)}
    planned = _spec.read(spec, data_of)
    for folder in ("runs", "configurations", "mechanisms", "logs"):
        (out / folder).mkdir(exist_ok=True)
    with locks.held(out / ".lock", lambda: say("waiting for another comparison in this folder to end")):
        artifacts = _artifacts.prepared(planned, out / "mechanisms", say)

        def command_of(run: _spec.PlannedRun) -> list[str]:
            return _command(run, artifacts[run.name], data_of[run.configuration.dataset], out, child)

        failed = _run_all(planned, command_of, out, jobs, say)
        return _written(planned, artifacts, failed, out)


def _run_all(
    planned: Sequence[_spec.PlannedRun],
    command_of: Callable[[_spec.PlannedRun], list[str]],
    out: pathlib.Path,
    at_once: int,
    say: Callable[[str], None],
) -> dict[str, str]:
    left = [run for run in planned if not _summary(out, run.name).is_file()]
    say(f"{len(planned)} runs, {len(planned) - len(left)} done already")
    failed: dict[str, str] = {}
    start = time.monotonic()
    ended = 0

    def end(job: _jobs.Job, status: int) -> None:
        nonlocal ended
        ended += 1
        minutes = (time.monotonic() - start) / ended * (len(left) - ended) / 60
        if _summary(out, job.name).is_file():
            accuracy = json.loads(_summary(out, job.name).read_text(encoding="utf-8"))["accuracy"]
            outcome = f"accuracy {100 * accuracy:.2f} %"
        else:
            failed[job.name] = _last_line(job.log) or f"ended with status {status}"
            outcome = f"FAILED: {failed[job.name]}"
        say(f"{ended} of {len(left)}, {minutes:.0f} min left: {job.name}: {outcome}")
        progress.step()

    def job_of(run: _spec.PlannedRun) -> _jobs.Job:
        return _jobs.Job(
            name=run.name,
            log=out / "logs" / f"{run.name}.txt",
            start=lambda: command_of(run),
        )

    with progress.bar("compare", len(left)):
        _jobs.run([job_of(run) for run in left], at_once=at_once, on_end=end)
    return failed


def _command(
    run: _spec.PlannedRun, artifact: pathlib.Path, data: pathlib.Path, out: pathlib.Path, child: str
) -> list[str]:
    folder = out / "runs" / run.name
    lock = out / "runs" / f".{run.name}.lock"
    # A run of an earlier, killed comparison may be about to end in this folder.
    with locks.held(lock):
        shutil.rmtree(folder, ignore_errors=True)
    own = Layer.of({"mechanism": str(artifact.absolute()), "dataset": f"sqlite:{data}"}, "comparison")
    configuration = out / "configurations" / f"{run.name}.toml"
    files.write_atomically(configuration, toml_file.as_toml(layers.laid([run.layer, own]).values))
    # Not -m alone, which would look for the package in the current folder first.
    parts = [sys.executable, "-P", "-m", child, os.getpid(), lock]
    return [*map(str, parts), "train", "--config", str(configuration), "--out", str(folder), "--json"]


def _written(
    planned: Sequence[_spec.PlannedRun],
    artifacts: Mapping[str, pathlib.Path],
    failed: Mapping[str, str],
    out: pathlib.Path,
) -> dict[str, Any]:
    finished = [_finished(run, artifacts[run.name], out) for run in planned if _summary(out, run.name).is_file()]
    found = _results.levels(finished)
    result = _report.as_dict(found, planned=len(planned), done=len(finished), failed=failed)
    if found:
        # Here, since Matplotlib takes a second to load.
        from . import _plots

        pictures = _plots.draw(
            found,
            out,
            clip_norm=planned[0].configuration.clip_norm,
            setting=_spec.shared_setting(planned),
            min_sep=_spec.shared_separation(planned),
        )
        result["plots"] = [path.name for path in pictures]
    files.write_atomically(out / TABLE, _report.as_markdown(result))
    files.write_atomically(out / RESULT, json.dumps(result, indent=2) + "\n")
    return result


def _finished(run: _spec.PlannedRun, artifact: pathlib.Path, out: pathlib.Path) -> _results.Finished:
    summary = json.loads(_summary(out, run.name).read_text(encoding="utf-8"))
    return _results.Finished(
        label=run.label,
        privacy=run.privacy,
        seed=run.configuration.seed,
        rate=summary["server_learning_rate"],
        effective_rmse=learning_rates.effective_rmse(
            tff_mf.load(artifact),
            summary["rounds"],
            noise_multiplier=summary["noise_multiplier"],
            cohort=summary["cohort"],
        ),
        accuracy=summary["accuracy"],
        validation_accuracy=summary["validation_accuracy"],
        history=_results.history(out / "runs" / run.name / METRICS),
        statement=summary["statement"],
    )


def _summary(out: pathlib.Path, name: str) -> pathlib.Path:
    return out / "runs" / name / SUMMARY


def _last_line(log: pathlib.Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
