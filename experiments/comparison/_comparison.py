"""Many runs from one specification. A comparison that was interrupted continues when it is started again."""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf import validation

from ..configuration import learning_rates
from ..datasets import named_data
from ..output import files, locks
from ..run_folder import folders
from . import _artifacts, _report, _results, _runs, _spec
from ._places import RESULT, TABLE, Places


def run_comparison(
    spec: pathlib.Path,
    out: pathlib.Path,
    *,
    child: str,
    jobs: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Does the runs of a specification that are not done, and writes the table and the pictures.

    Each run is a process, with a folder in `out/runs/`. It is done when its `summary.json` is there, which is written
    in one step; whatever else an interruption left of a run is removed, and the run begins again. Each mechanism is
    optimized once, and kept in `out/mechanisms/`.

    Args:
        spec: A TOML file, see `docs/experiments.md`.
        out: The folder of all results, made if it does not exist. Several specifications may share it.
        child: Name of the module that each run executes as a process. It takes the process that it ends with, a file to
            lock, and the arguments of `tff-mf`.
        jobs: Number of runs at a time.
        say: Called with messages of one line about the progress.

    Returns:
        The content of `comparison.json`.

    Raises:
        InputError: If the specification or an argument is wrong; no run is started then.
    """
    validation.whole("jobs", jobs)
    datasets = {run.configuration.dataset for run in _spec.read(spec)}
    folders.continued_folder(out)
    data_of = {dataset: named_data.data_file(dataset).absolute() for dataset in sorted(datasets)}
    planned = _spec.read(spec, data_of)
    places = Places(out)
    places.make()
    with locks.held(places.lock, lambda: say("waiting for another comparison in this folder to end")):
        artifacts = _artifacts.prepared(planned, places.mechanisms, say)

        def command_of(run: _spec.PlannedRun) -> list[str]:
            return _runs.command(run, artifacts[run.name], data_of[run.configuration.dataset], places, child)

        failed = _runs.run_missing(planned, command_of, places, at_once=jobs, say=say)
        return _written(planned, artifacts, failed, places)


def _written(
    planned: Sequence[_spec.PlannedRun],
    artifacts: Mapping[str, pathlib.Path],
    failed: Mapping[str, str],
    places: Places,
) -> dict[str, Any]:
    """Writes table, pictures and `comparison.json`, and returns the content of the latter."""
    finished = [_finished(run, artifacts[run.name], places) for run in planned if places.summary(run.name).is_file()]
    found = _results.levels(finished)
    result = _report.as_dict(found, planned=len(planned), done=len(finished), failed=failed)
    if found:
        # Here, since Matplotlib takes a second to load.
        from . import _plots

        pictures = _plots.draw(
            found,
            places.out,
            clip_norm=planned[0].configuration.clip_norm,
            setting=_spec.shared_setting(planned),
            min_sep=_spec.shared_min_sep(planned),
        )
        result["plots"] = [path.name for path in pictures]
    files.write_atomically(places.out / TABLE, _report.as_markdown(result))
    files.write_atomically(places.out / RESULT, json.dumps(result, indent=2) + "\n")
    return result


def _finished(run: _spec.PlannedRun, artifact: pathlib.Path, places: Places) -> _results.Finished:
    summary = json.loads(places.summary(run.name).read_text(encoding="utf-8"))
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
            restart_every=summary.get("restart_every"),
        ),
        accuracy=summary["accuracy"],
        validation_accuracy=summary["validation_accuracy"],
        history=_results.history(places.metrics(run.name)),
        smoothed=summary.get("validation_accuracy_smoothed"),
        test_sentences=summary.get("test_sentences"),
        statement=summary["statement"],
    )
