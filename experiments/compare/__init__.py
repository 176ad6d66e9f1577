"""Many training runs from one specification: each is resumed until it is done; then a table and two pictures.

`read` gives the runs that a file's lists stand for, `run_comparison` does those that are missing, and `page` says how
they ended.
"""

import dataclasses
import itertools
import json
import math
import operator
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import scipy.stats

from tff_mf.base import validation
from tff_mf.numerics.digits import percent

from .. import reports
from ..data import data_file
from ..output import console, files
from ..output.typed import Number, Record
from ..runs import folders, statements
from ..runs.folders import read_record
from ..runs.names import METRICS, REPORT
from ..runs.results import Summary, read_metrics
from ..runs.statements import REFUSED, Claim
from .runs import SPECS as SPECS
from .runs import PlannedRun, configure, content_of, is_done, read, run_missing, summary_of

RESULT, TABLE = "comparison.json", "comparison.md"
# With fewer seeds, intervals are too wide to say anything.
_FEWEST_SEEDS = 3
_PAPERS = "test_accuracy"
_BASELINE = "the most frequent word"
SMOOTHED = (
    "smoothed validation accuracy (the mean of the evaluations in the last 400 rounds, or in the last fifth of the "
    "rounds if that is less)"
)


def run_comparison(
    spec: pathlib.Path,
    out: pathlib.Path,
    *,
    jobs: int = 1,
    dataset: str | None = None,
) -> "ComparisonResult":
    """Does the runs of a specification that are not done, and writes the table and the pictures.

    Each run is a process, with a folder in `out/runs/`. It is done when its `report.json` is there and its keys are
    deleted; a run that was interrupted goes on after its newest checkpoint, and no released round is run again. Each
    mechanism is optimized once, and kept in `out/mechanisms/`.

    Args:
        spec: A TOML file, see `docs/experiments.md`.
        out: The folder of all results, made if it does not exist. Several specifications may share it.
        jobs: Number of runs at a time.
        dataset: Data set of all runs, in place of the specification's.

    Returns:
        The content of `comparison.json`.
    """
    validation.whole("jobs", jobs)
    datasets = {run.settings.dataset for run in read(spec, dataset=dataset)}
    folders.continued_folder(out)
    data_of = {name: data_file(name).absolute() for name in sorted(datasets)}
    planned = read(spec, data_of, dataset=dataset)
    # The processes of the runs inherit the lock: those of a comparison that was killed have to end first.
    with files.held(
        out / ".lock", lambda: console.say("compare: waiting for another comparison in this folder to end")
    ) as lock:
        for run in planned:
            configure(run, data_of[run.settings.dataset], out)
        waiting = [run for run in planned if not is_done(out, run.name)]
        console.say(f"compare: {len(planned)} runs, {len(planned) - len(waiting)} done already")
        with console.bar("compare", len(waiting)):
            failed = run_missing(
                waiting, out, at_once=jobs, lock=lock, say=lambda text: console.say(f"compare: {text}")
            )
        content = content_of(spec)
        texts = {"title": content.title, "paper": content.paper, "notes": content.notes}
        finished = [_finished(run, out) for run in planned if is_done(out, run.name)]
        result = ComparisonResult(
            specification={name: " ".join(text.split()) for name, text in texts.items() if text},
            runs_planned=len(planned),
            runs_done=len(finished),
            runs_failed=failed,
            levels=levels(finished),
        )
        if result.levels:
            pictures = draw(result, planned, out, name=spec.stem)
            result = msgspec.structs.replace(result, pictures=[path.name for path in pictures])
        files.write_atomically(out / TABLE, page(result, name=out.name))
        files.write_atomically(out / RESULT, json.dumps(msgspec.to_builtins(result), indent=2) + "\n")
        return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished run.

    Attributes:
        run: The run.
        rate: Learning rate of the server.
        summary: How good its model is.
        history: Round and accuracy of each evaluation on validation sentences.
        claim: Its guarantee.
    """

    run: PlannedRun
    rate: float
    summary: Summary
    history: Sequence[tuple[int, float]]
    claim: Claim


def _finished(run: PlannedRun, out: pathlib.Path) -> Finished:
    folder = out / "runs" / run.name
    return Finished(
        run=run,
        rate=float(read_record(folder).training.server_learning_rate),
        summary=summary_of(folder),
        history=read_metrics(folder / METRICS).accuracies,
        claim=reports.read(folder / REPORT).claim,
    )


class LevelResult(Record, kw_only=True, omit_defaults=True):
    """A mechanism at one level of noise, at the best of its rates.

    Attributes:
        mechanism: The mechanism with its options.
        level: The ε or σ that was fixed, in words.
        accuracy: Mean accuracy on test sentences over seeds.
        half_width_95: Half the width of its 95 % interval; `None` of fewer than three seeds.
        baseline_accuracy: What always the most frequent word would reach.
        accuracy_by_seed: Accuracy on test sentences by seed.
        accuracy_over_rounds: Rounds and validation accuracies by seed.
        server_learning_rate: The best rate.
        validation_accuracy_by_rate: Mean validation accuracy of every rate that was tried, in order.
        test_sentences: Numbers of test sentences of its runs.
        claim: The guarantee of its runs.
        published: Results of the paper, by name.
    """

    mechanism: str
    level: str
    accuracy: Number
    half_width_95: Number | None
    baseline_accuracy: Number
    accuracy_by_seed: dict[str, Number]
    accuracy_over_rounds: dict[str, list[tuple[int, Number]]]
    server_learning_rate: Number
    validation_accuracy_by_rate: dict[str, Number]
    test_sentences: list[int]
    claim: Claim
    published: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def learned(self) -> bool:
        """Whether it is better than one guess for all words."""
        return self.accuracy > self.baseline_accuracy

    @property
    def rate_at_edge(self) -> bool:
        """Whether the best rate is the smallest or largest of several, so that a better one may lie beyond."""
        tried = list(self.validation_accuracy_by_rate)
        return len(tried) > 1 and f"{self.server_learning_rate:.6g}" in (tried[0], tried[-1])


class ComparisonResult(Record, kw_only=True, omit_defaults=True):
    """The content of `comparison.json`.

    Attributes:
        specification: What the specification says of itself.
        runs_planned: Number of runs.
        runs_done: Number of runs that are done.
        runs_failed: The last line of each run that failed, by its name.
        levels: Mechanisms at each level of noise, best first.
        pictures: Names of the pictures.
    """

    specification: dict[str, str] = msgspec.field(default_factory=dict)
    runs_planned: int
    runs_done: int
    runs_failed: dict[str, str]
    levels: list[LevelResult]
    pictures: Sequence[str] = ()


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and half the width of its 95 % interval by Student's t; None of fewer than three values.

    Example:
        >>> mean, half = mean_and_half_width([1.0, 2.0, 3.0])
        >>> f"{mean:.1f} {half:.3f}"
        '2.0 2.484'
    """
    mean = statistics.fmean(values)
    if len(values) < _FEWEST_SEEDS:
        return mean, None
    return mean, float(scipy.stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values)))


def levels(finished: Sequence[Finished]) -> list[LevelResult]:
    """Returns each mechanism at each level of privacy, its rate chosen by mean validation accuracy, best first.

    Rates are compared over the seeds that all of them have in common; if there are none, over the seeds of each. They
    are compared by smoothed accuracy, as in Choquette-Choo et al. (2023), table 6.
    """
    results: list[tuple[Any, LevelResult]] = []
    key = operator.attrgetter("run.privacy", "run.label")
    for (privacy, _), group in itertools.groupby(sorted(finished, key=key), key=key):
        by_rate: dict[float, dict[int, Finished]] = {}
        for ended in group:
            by_rate.setdefault(ended.rate, {})[ended.run.settings.seed] = ended
        common = set.intersection(*(set(runs) for runs in by_rate.values()))
        tried = {
            rate: statistics.fmean(
                runs[seed].summary.validation_accuracy_smoothed for seed in runs if seed in common or not common
            )
            for rate, runs in by_rate.items()
        }
        rate = max(tried, key=lambda rate: tried[rate])
        results.append((privacy, _level([by_rate[rate][seed] for seed in sorted(by_rate[rate])], tried)))
    return [level for _, level in sorted(results, key=lambda result: (result[0], -result[1].accuracy))]


def _level(runs: Sequence[Finished], tried: Mapping[float, float]) -> LevelResult:
    """Returns the result of one mechanism by its runs with the best rate, one per seed."""
    first, by_seed = runs[0], {str(ended.run.settings.seed): ended for ended in runs}
    mean, half = mean_and_half_width([ended.summary.accuracy for ended in runs])
    return LevelResult(
        mechanism=first.run.label,
        level=statements.level(*first.run.privacy),
        accuracy=mean,
        half_width_95=half,
        baseline_accuracy=statistics.fmean(ended.summary.baseline_accuracy for ended in runs),
        accuracy_by_seed={seed: ended.summary.accuracy for seed, ended in by_seed.items()},
        accuracy_over_rounds={seed: list(ended.history) for seed, ended in by_seed.items()},
        server_learning_rate=first.rate,
        validation_accuracy_by_rate={f"{rate:.6g}": value for rate, value in sorted(tried.items())},
        test_sentences=sorted({ended.summary.test_sentences for ended in runs}),
        # A run that has no guarantee speaks for all.
        claim=next((ended.claim for ended in runs if ended.claim.state == REFUSED), first.claim),
        published=dict(first.run.published),
    )


def page(result: ComparisonResult, *, name: str = "") -> str:
    """Returns a comparison in words, as Markdown: the content of `comparison.md`."""
    spec, best = result.specification, result.levels
    numbers = sorted({number for level in best for number in level.test_sentences})
    measured = " to ".join(f"{number:,} " for number in dict.fromkeys([*numbers[:1], *numbers[-1:]]))
    chosen = (
        f"its best by {SMOOTHED}"
        if any(len(level.validation_accuracy_by_rate) > 1 for level in best)
        else "the only one tried here"
    )
    has_interval = any(level.half_width_95 is not None for level in best)
    interval = "with a 95 % interval over seeds" if has_interval else "too few seeds for an interval"
    done = (
        f"{result.runs_done} of {result.runs_planned} runs are done. Accuracy is over known words, on {measured}"
        f"sentences of test clients, {interval}; each mechanism's rate is {chosen}."
    )
    said = [f"# Comparison: {spec.get('title', name)}", spec.get("paper", ""), spec.get("notes", ""), done]
    if best:
        said += ["## Accuracy, %", _accuracies(best)]
        at_edge = [f"{level.mechanism} at {level.level}" for level in best if level.rate_at_edge]
        notes = {
            "In parentheses: in the paper.": any(_PAPERS in level.published for level in best),
            f"* did not learn: not better than always {_BASELINE}.": not all(level.learned for level in best),
            f"The best rate is the smallest or largest tried, so that a better one may lie beyond, of: "
            f"{'; '.join(at_edge)}.": bool(at_edge),
        }
        said.append(" ".join(text for text, holds in notes.items() if holds))
    if result.runs_failed:
        failed = [f"- {run}: {why}" for run, why in result.runs_failed.items()]
        said += ["## Failed runs, which are left out", "\n".join(failed)]
    if best:
        said += [f"{statements.CHOICE_OF_SETTINGS}. Where the clients are real, all runs of this page count."]
        # Each statement once, with the level and the mechanisms that it is about.
        lines: dict[tuple[str, str], list[str]] = {}
        for level in best:
            lines.setdefault((level.level, statements.line(level.claim)), []).append(level.mechanism)
        listed = [f"- {level}, {'; '.join(names)}: {line}" for (level, line), names in lines.items()]
        said += ["## Guarantees, or the reason why there is none", "\n".join(listed)]
    return "\n\n".join(filter(None, said)).replace("<", "&lt;") + "\n"


def _accuracies(best: Sequence[LevelResult]) -> str:
    """Returns the accuracy of each mechanism at each level of noise, as the papers' tables have it."""
    columns = list(dict.fromkeys(level.level for level in best))
    rows = {level.mechanism: ["–"] * len(columns) for level in best} | {_BASELINE: ["–"] * len(columns)}
    for level in best:
        column, paper = columns.index(level.level), level.published.get(_PAPERS)
        shown = percent(level.accuracy, level.half_width_95) + ("" if level.learned else "*")
        rows[level.mechanism][column] = shown if paper is None else f"{shown} ({paper:.2f})"
        rows[_BASELINE][column] = percent(level.baseline_accuracy, None)
    lines = [["noise for", *columns], ["---"] * (1 + len(columns))]
    lines += ([name.replace("|", "\\|"), *cells] for name, cells in rows.items())
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(
    result: ComparisonResult, planned: Sequence[PlannedRun], folder: pathlib.Path, *, name: str
) -> list[pathlib.Path]:
    """Writes the two pictures, accuracy over rounds and over ε (or σ), to `folder` and returns their paths."""
    # Here, since Matplotlib takes a second to load.
    from .. import plots

    settings = {plots.numbers(run.settings.rounds, run.settings.participation()) for run in planned}
    title = settings.pop() if len(settings) == 1 else name
    best = result.levels
    looks = plots.styles(level.mechanism for level in best)
    over_rounds, over_privacy = (folder / f"accuracy-over-{what}.png" for what in ("rounds", "privacy"))
    columns = list(dict.fromkeys(level.level for level in best))
    size = (plots.COLUMN * max(1.0, 0.92 * len(columns)), 3.3)
    with plots.picture(over_rounds, size=size, columns=len(columns), sharey=True) as (whole, panels):
        for axes, column in zip(panels[0], columns, strict=True):
            for level in (level for level in best if level.level == column):
                _draw_over_rounds(axes, level, looks[level.mechanism])
            axes.set(title=f"Noise for {column}", xlabel="round", xlim=(0, None), ylim=(0, None))
        panels[0, 0].set_ylabel("validation accuracy, known words (%)")
        several = any(len(level.accuracy_by_seed) > 1 for level in best)
        whole.suptitle(f"{title}; {'each seed (thin) and their mean' if several else 'one seed'}", fontsize=7.5)
        plots.legend_below(whole, panels[0], 2 * len(columns))

    has_intervals = all(level.half_width_95 is not None for level in best)
    size = (plots.COLUMN * max(1.0, 0.25 * len(columns)), 3.3)
    with plots.picture(over_privacy, size=size) as (whole, panels):
        axes = panels[0, 0]
        for place, (name, look) in enumerate(looks.items()):
            own = [level for level in best if level.mechanism == name]
            # Side by side, so that intervals do not cover one another.
            at = [columns.index(level.level) + (place - (len(looks) - 1) / 2) * 0.6 / len(looks) for level in own]
            means = np.array([100 * level.accuracy for level in own])
            halves = np.array([100 * (level.half_width_95 or 0.0) for level in own])
            # An accuracy is from 0 to 100.
            bars = [np.minimum(halves, means), np.minimum(halves, 100 - means)] if has_intervals else None
            axes.errorbar(at, means, yerr=bars, capsize=2, elinewidth=0.7, label=name, **look)
        axes.set_xticks(range(len(columns)), columns, rotation=0 if len(columns) < 6 else 45)
        axes.margins(y=0.1)
        axes.set(xlabel="noise for", xlim=(-0.5, len(columns) - 0.5))
        axes.set(ylabel="test accuracy, known words (%)", ylim=(0, None))
        shown = "mean and 95 % interval over seeds" if has_intervals else "too few seeds for an interval"
        whole.suptitle(f"{title}; {shown}", fontsize=7.5)
        plots.legend_below(whole, panels[0], 2)
    return [over_rounds, over_privacy]


def _draw_over_rounds(axes: Any, level: LevelResult, look: Mapping[str, Any]) -> None:
    by_round: dict[int, list[float]] = {}
    for history in level.accuracy_over_rounds.values():
        if len(level.accuracy_by_seed) > 1:
            faint = {"color": look["color"], "linewidth": 0.4, "alpha": 0.4}
            axes.plot([number for number, _ in history], [100 * value for _, value in history], **faint)
        for number, value in history:
            by_round.setdefault(number, []).append(100 * value)
    means = {number: statistics.fmean(values) for number, values in sorted(by_round.items())}
    # A marker on an axis is whole.
    every = max(1, len(means) // 8)
    axes.plot(list(means), list(means.values()), label=level.mechanism, markevery=every, clip_on=False, **look)
