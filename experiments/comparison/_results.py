"""The runs of a comparison as they ended: best learning rates, test accuracy, intervals and gaps."""

import dataclasses
import itertools
import json
import math
import operator
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import scipy.stats

import tff_mf
from tff_mf.base import validation

from ..output import files, typed
from ..output.console import markdown
from ..runs import derived, folders, statements
from ..runs.metrics import read_metrics
from ..runs.names import METRICS, REPORT, SUMMARY
from ..runs.run_record import read_record
from ..runs.statements import REFUSED, Claim
from ..runs.summary import Summary
from ..training.datasets import named_data
from . import _report, _runs, _spec
from ._result import ComparisonResult, Gap
from ._runs import RESULT, TABLE

_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished run: what the table and the pictures show of it.

    Attributes:
        label: The mechanism with its options.
        privacy: Which of ε and σ was fixed, and its value.
        rate: Learning rate of the server.
        effective_rmse: L_e of figure 11.
        accuracy: On test sentences.
        baseline: What always the most frequent word would reach on them; None in a run that did not measure it.
        validation_accuracy: In the mean of the last evaluations (`runs.metrics.smoothed`).
        history: Round and accuracy of each evaluation on validation sentences.
        published: Results of the paper for it, by name.
    """

    label: str
    privacy: tuple[str, float]
    seed: int
    rate: float
    effective_rmse: float
    accuracy: float
    baseline: float | None = None
    validation_accuracy: float
    history: Sequence[tuple[int, float]]
    test_sentences: int
    claim: Claim
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """A mechanism at one level of privacy, at the best of its rates: its runs there, one per seed.

    `tried` has the mean validation accuracy of every rate.
    """

    label: str
    privacy: tuple[str, float]
    best: Sequence[Finished]
    tried: Mapping[float, float]

    @property
    def rate(self) -> float:
        return self.best[0].rate

    @property
    def effective_rmse(self) -> float:
        return self.best[0].effective_rmse

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried, so that a better one may lie beyond."""
        return self.rate in (min(self.tried), max(self.tried))

    @property
    def claim(self) -> Claim:
        """The guarantee of its first run, or the one of a run that has none."""
        return next((run.claim for run in self.best if run.claim.state == REFUSED), self.best[0].claim)

    @property
    def accuracies(self) -> dict[int, float]:
        """Accuracy on test clients by seed."""
        return {run.seed: run.accuracy for run in self.best}


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and half the width of its 95 % interval by Student's t; None for a single value.

    Example:
        >>> mean, half = mean_and_half_width([1.0, 2.0, 3.0])
        >>> f"{mean:.1f} {half:.3f}"
        '2.0 2.484'
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    quantile = scipy.stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1)
    return mean, float(quantile * statistics.stdev(values) / math.sqrt(len(values)))


def levels(finished: Sequence[Finished]) -> list[Level]:
    """Returns each mechanism at each level of privacy, its rate chosen by mean validation accuracy, best first.

    Rates are compared over the seeds that all of them have in common; if there are none, over the seeds of each. They
    are compared by smoothed accuracy, as in Choquette-Choo et al. (2023), table 6.
    """
    found = []
    key = operator.attrgetter("label", "privacy")
    for (label, privacy), grouped in itertools.groupby(sorted(finished, key=key), key=key):
        group = list(grouped)
        by_rate: dict[float, dict[int, Finished]] = {}
        for run in group:
            by_rate.setdefault(run.rate, {})[run.seed] = run
        common = set.intersection(*(set(runs) for runs in by_rate.values()))
        tried = {
            rate: statistics.fmean(
                run.validation_accuracy for seed, run in runs.items() if seed in common or not common
            )
            for rate, runs in by_rate.items()
        }
        best = max(tried, key=lambda rate: tried[rate])
        runs = [by_rate[best][seed] for seed in sorted(by_rate[best])]
        found.append(Level(label=label, privacy=privacy, best=runs, tried=tried))
    return sorted(found, key=lambda level: (level.privacy, -statistics.fmean(level.accuracies.values())))


def gaps(found: Sequence[Level]) -> list[Gap]:
    """Returns the difference in accuracy of any two mechanisms at one level of privacy, over their common seeds."""
    result = []
    for (above, better), (below, worse) in itertools.combinations(enumerate(found), 2):
        shared = sorted(better.accuracies.keys() & worse.accuracies.keys())
        if better.privacy != worse.privacy or not shared:
            continue
        mean, half = mean_and_half_width([better.accuracies[seed] - worse.accuracies[seed] for seed in shared])
        result.append(
            Gap(
                **{better.privacy[0]: better.privacy[1]},
                better=better.label,
                worse=worse.label,
                gap=mean,
                half_width_95=half,
                seeds=len(shared),
                neighbours=below == above + 1,
            )
        )
    return result


def run_comparison(
    spec: pathlib.Path,
    out: pathlib.Path,
    *,
    child: str,
    jobs: int = 1,
    dataset: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> ComparisonResult:
    """Does the runs of a specification that are not done, and writes the table and the pictures.

    Each run is a process, with a folder in `out/runs/`. It is done when its `report.json` is there and its keys are
    deleted; a run that was interrupted goes on after its newest checkpoint, and no released round is run again. Each
    mechanism is optimized once, and kept in `out/mechanisms/`.

    Args:
        spec: A TOML file, see `docs/experiments.md`.
        out: The folder of all results, made if it does not exist. Several specifications may share it.
        child: Name of the module that each run executes as a process. It takes the process that it ends with, a file to
            lock, and the arguments of `tff-mf`.
        jobs: Number of runs at a time.
        dataset: Data set of all runs, in place of the specification's.
        say: Called with messages of one line about the progress.

    Returns:
        The content of `comparison.json`.
    """
    validation.whole("jobs", jobs)
    datasets = {run.settings.dataset for run in _spec.read(spec, dataset=dataset)}
    folders.continued_folder(out)
    data_of = {name: named_data.data_file(name).absolute() for name in sorted(datasets)}
    planned = _spec.read(spec, data_of, dataset=dataset)
    for name in _runs.FOLDERS:
        (out / name).mkdir(exist_ok=True)
    with files.held(out / ".lock", lambda: say("waiting for another comparison in this folder to end")):
        artifacts = _runs.prepared(planned, out / "mechanisms", say)

        def command_of(run: _spec.PlannedRun) -> list[str]:
            return _runs.command(run, artifacts[run.name], data_of[run.settings.dataset], out, child)

        failed = _runs.run_missing(planned, command_of, out, at_once=jobs, say=say)
        return _written(planned, artifacts, failed, out, _spec.about(spec))


def _written(
    planned: Sequence[_spec.PlannedRun],
    artifacts: Mapping[str, pathlib.Path],
    failed: Mapping[str, str],
    out: pathlib.Path,
    about: Mapping[str, Any],
) -> ComparisonResult:
    """Writes table, pictures and `comparison.json`, and returns the content of the latter."""
    done = [run for run in planned if _runs.is_done(out, run.name)]
    finished = [_finished(run, artifacts[run.name], _runs.folder_of(out, run.name)) for run in done]
    found = levels(finished)
    result = _report.result_of(
        found,
        planned=len(planned),
        done=len(finished),
        failed=failed,
        about=about,
    )
    if found:
        # Here, since Matplotlib takes a second to load.
        from . import charts

        pictures = charts.draw(
            result,
            out,
            setting=_spec.shared_setting(planned),
            min_sep=_spec.shared_min_sep(planned),
        )
        result = msgspec.structs.replace(result, pictures=[path.name for path in pictures])
    files.write_atomically(out / TABLE, markdown(_report.blocks(result, name=out.name)))
    files.write_atomically(out / RESULT, json.dumps(result.as_json(), indent=2) + "\n")
    return result


def _finished(run: _spec.PlannedRun, artifact: pathlib.Path, folder: pathlib.Path) -> Finished:
    summary = typed.read(folder / SUMMARY, Summary, "summary")
    report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    record = read_record(folder)
    return Finished(
        label=run.label,
        privacy=run.privacy,
        seed=run.settings.seed,
        rate=float(record.training.server_learning_rate),
        effective_rmse=derived.rmse_of_plan(record.plan(tff_mf.load(artifact))),
        accuracy=summary.accuracy,
        baseline=summary.baseline_accuracy,
        validation_accuracy=summary.validation_accuracy_smoothed,
        history=read_metrics(folder / METRICS).accuracies,
        test_sentences=summary.test_sentences,
        claim=statements.of_facts(report["claim"]),
        published=run.published,
    )
