"""Many runs from one specification. A comparison that was interrupted continues when it is started again."""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf.base import validation

from ..output import files
from ..output.present import markdown
from ..runs import folders, learning_rates
from ..training.datasets import named_data
from . import _report, _results, _runs, _scaling, _spec
from ._runs import RESULT, TABLE, Places


def run_comparison(
    spec: pathlib.Path,
    out: pathlib.Path,
    *,
    child: str,
    jobs: int = 1,
    dataset: str | None = None,
    fraction: float | None = None,
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
        dataset: Data set of all runs, in place of the specification's.
        fraction: Part of the size at which the runs are done, see `docs/experiments.md`; None is full size.
        say: Called with messages of one line about the progress.

    Returns:
        The content of `comparison.json`.

    Raises:
        InputError: If the specification or an argument is wrong; no run is started then.
    """
    validation.whole("jobs", jobs)
    datasets = {run.configuration.dataset for run in _spec.read(spec, dataset=dataset, fraction=fraction)}
    folders.continued_folder(out)
    data_of = {name: named_data.data_file(name).absolute() for name in sorted(datasets)}
    places = Places(out)
    planned = _spec.read(spec, data_of, dataset=dataset, fraction=fraction)
    about = _about(spec, planned, fraction)
    if "scaled" in about:
        say(about["scaled"]["note"])
    places.make()
    with files.held(places.lock, lambda: say("waiting for another comparison in this folder to end")):
        artifacts = _runs.prepared(planned, places.mechanisms, say)

        def command_of(run: _spec.PlannedRun) -> list[str]:
            return _runs.command(run, artifacts[run.name], data_of[run.configuration.dataset], places, child)

        failed = _runs.run_missing(planned, command_of, places, at_once=jobs, say=say)
        return _written(planned, artifacts, failed, places, about)


def _about(spec: pathlib.Path, planned: Sequence[_spec.PlannedRun], fraction: float | None) -> dict[str, Any]:
    """Returns what the results say of their specification, and what of it was made smaller."""
    found: dict[str, Any] = dict(_spec.about(spec))
    if fraction is not None:
        changed = _scaling.changes(planned)
        found["scaled"] = {"fraction": fraction, "fields": changed, "note": _scaling.in_words(fraction, changed)}
    return found


def _written(
    planned: Sequence[_spec.PlannedRun],
    artifacts: Mapping[str, pathlib.Path],
    failed: Mapping[str, str],
    places: Places,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes table, pictures and `comparison.json`, and returns the content of the latter."""
    done = [run for run in planned if places.summary(run.name).is_file()]
    finished = [_finished(run, artifacts[run.name], places) for run in done]
    found = _results.levels(finished)
    published = {
        (ended.label, ended.privacy, ended.rate): run.published for run, ended in zip(done, finished, strict=True)
    }
    result = _report.as_dict(
        found, planned=len(planned), done=len(finished), failed=failed, about=about, published=published
    )
    if found:
        # Here, since Matplotlib takes a second to load.
        from . import charts

        pictures = charts.draw(
            result,
            places.out,
            clip_norm=planned[0].configuration.clip_norm,
            setting=_spec.shared_setting(planned),
            min_sep=_spec.shared_min_sep(planned),
        )
        result["plots"] = [path.name for path in pictures]
    files.write_atomically(places.out / TABLE, markdown(_report.document(result, name=places.out.name)))
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
            restart_every=summary["restart_every"],
        ),
        accuracy=summary["accuracy"],
        validation_accuracy=summary["validation_accuracy_smoothed"],
        history=_results.history(places.metrics(run.name)),
        test_sentences=summary["test_sentences"],
        claim=summary["claim"],
    )
