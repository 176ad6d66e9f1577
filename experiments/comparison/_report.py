"""The result of a comparison as JSON and in words."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from tff_mf.numerics.digits import percent

from ..output.console import Block, Facts, Table
from ..runs import statements
from ._result import ComparisonResult, Gap, LevelResult
from ._results import Level, gaps, mean_and_half_width

_PAPERS = "test_accuracy"
_BASELINE = "the most frequent word"
_CHOSEN_BY = (
    "its best by smoothed validation accuracy (the mean of the evaluations in the last 400 rounds, or in the last "
    "fifth of the rounds if that is less)"
)


def result_of(
    found: Sequence[Level],
    *,
    planned: int,
    done: int,
    failed: Mapping[str, str],
    about: Mapping[str, Any] | None = None,
) -> ComparisonResult:
    """Returns the content of `comparison.json`, without pictures.

    Args:
        found: The levels, best first.
        planned: Number of runs.
        done: Number of runs that are done.
        failed: The last line of each run that failed, by its name.
        about: What the specification says of itself.
    """
    return ComparisonResult(
        specification=dict(about) if about else UNSET,
        runs_planned=planned,
        runs_done=done,
        runs_failed=dict(failed),
        levels=[_level(level) for level in found],
        gaps=gaps(found),
    )


def blocks(result: ComparisonResult, *, name: str = "", written: Sequence[str] = ()) -> list[Block]:
    """Returns a comparison in words."""
    about, levels = result.about, result.levels
    # Unknown if no run is done.
    numbers = sorted({number for level in levels for number in level.test_sentences})
    measured = " to ".join(f"{number:,}" for number in dict.fromkeys([*numbers[:1], *numbers[-1:]]))
    sentences = f"{measured} sentences of test clients".lstrip()
    chosen = any(len(level.validation_accuracy_by_rate) != 1 for level in levels)
    done = (
        f"{result.runs_done} of {result.runs_planned} runs are done. Accuracy is over known words, on "
        f"{sentences}, with a 95 % interval over seeds; each mechanism's rate is "
        f"{_CHOSEN_BY if chosen else 'the only one tried here'}."
    )
    ahead = _ahead(result.gaps)
    found: list[Block] = [
        f"# Comparison: {about.get('title', name)}".removesuffix(": "),
        f"**{ahead}**" if ahead else "",
        about.get("paper", ""),
        about.get("notes", ""),
        done,
    ]
    if levels:
        found += ["## Accuracy, %", *_accuracies(levels), "## Rates and errors", *_rates(levels)]
        found += ["## Differences", _differences(result.gaps)]
    found += ["## What it rests on", _assumptions(result)]
    if levels:
        found += ["## Guarantees, or the reason why there is none", _guarantees(levels)]
    return [*found, Facts([("written", ", ".join(written))])] if written else found


def _ahead(gaps: Iterable[Gap]) -> str:
    """Returns which mechanism is ahead at each level of noise, and whether its interval says so."""
    best: dict[str, Gap] = {}
    for each in gaps:
        best.setdefault(each.level, each)
    said = []
    for level, each in best.items():
        gap, half = each.gap, each.half_width_95
        unsure = ", of one seed" if half is None else "" if half < gap else ", which does not tell them apart"
        said.append(f"{level}: {each.better} over {each.worse} by {percent(gap, half)} points{unsure}")
    return "; ".join(said)


def _accuracies(levels: Sequence[LevelResult]) -> list[Block]:
    """Returns the accuracy of each mechanism at each level of noise, as the papers' tables have it."""
    columns = list(dict.fromkeys(each.level for each in levels))
    cells = {(each.mechanism, each.level): _accuracy(each) for each in levels}
    names = dict.fromkeys(each.mechanism for each in levels)
    rows = [[name, *(cells.get((name, column), "–") for column in columns)] for name in names]
    baselines = {each.level: each.baseline_accuracy for each in levels if each.baseline_accuracy}
    if baselines:
        rows.append([_BASELINE, *(percent(baselines[each], None) if each in baselines else "–" for each in columns)])
    notes = {
        "In parentheses: in the paper.": any(_PAPERS in each.in_paper for each in levels),
        f"* did not learn: not better than always {_BASELINE}.": not all(map(_learned, levels)),
    }
    note = " ".join(text for text, holds in notes.items() if holds)
    return [Table(["noise for", *columns], rows), note]


def _accuracy(level: LevelResult) -> str:
    paper = level.in_paper.get(_PAPERS)
    shown = percent(level.accuracy, level.half_width_95) + ("" if _learned(level) else "*")
    return shown if paper is None else f"{shown} ({paper:.2f})"


def _learned(level: LevelResult) -> bool:
    """Returns whether a mechanism is better than one guess for all words, as far as that was measured."""
    return level.accuracy > (level.baseline_accuracy or 0.0)


def _rates(levels: Sequence[LevelResult]) -> list[Block]:
    more = [{name: value for name, value in each.in_paper.items() if name != _PAPERS} for each in levels]
    header = ["noise for", "mechanism", "seeds", "server's rate", "rates tried", "effective RMSE"]
    rows, edges = [], []
    for level, published in zip(levels, more, strict=True):
        tried = len(level.validation_accuracy_by_rate)
        edges += [level] if level.rate_at_edge and tried > 1 else []
        rows.append(
            [
                level.level,
                level.mechanism,
                str(level.seeds),
                f"{level.server_learning_rate:.4g}{' (edge)' if edges[-1:] == [level] else ''}",
                str(tried),
                f"{level.effective_rmse:.4g}",
                *([", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in published.items())] * any(more)),
            ]
        )
    note = "(edge): the best rate is the smallest or largest tried, so that a better one may lie beyond."
    header += ["in the paper"] * any(more)
    return [Table(header, rows, names=2), note if edges else ""]


def _differences(gaps: Iterable[Gap]) -> Block:
    rows = [
        [
            each.level,
            each.better,
            each.worse,
            percent(each.gap, each.half_width_95),
            str(each.seeds),
        ]
        for each in gaps
        if each.neighbours
    ]
    if not rows:
        return "None: no two mechanisms have the same noise and a seed in common."
    return Table(["noise for", "better", "worse", "gap, points", "seeds"], rows, names=3)


def _guarantees(levels: Sequence[LevelResult]) -> str:
    """Returns each statement once, with the level and the mechanisms that it is about."""
    said: dict[tuple[str, str], list[str]] = {}
    for each in levels:
        said.setdefault((each.level, statements.line(each.claim)), []).append(each.mechanism)
    return "\n".join(f"- {level}, {'; '.join(names)}: {line}" for (level, line), names in said.items())


def _assumptions(result: ComparisonResult) -> str:
    edges = [
        f"{each.level}, {each.mechanism}"
        for each in result.levels
        if each.rate_at_edge and len(each.validation_accuracy_by_rate) > 1
    ]
    failed = [f"{name}: {why}" for name, why in result.runs_failed.items()]
    counted = f"{statements.CHOICE_OF_SETTINGS}; where the clients are real, all runs of this page count"
    found = {
        "choice of settings": counted,
        "reports": "the report of each run, report.md in its folder, was read: it states what its ε rests on",
        "one measure": "all rows are compared on the same test clients, with the same seeds",
        "rates at the edge": "the best rate is the smallest or largest tried, so that a better one may lie beyond: "
        f"{'; '.join(edges)}"
        if edges
        else "",
        "failed runs": f"they are left out for a reason that does not favor a mechanism: {'; '.join(failed)}"
        if failed
        else "",
    }
    return "\n".join(f"- {label}: {text}" for label, text in found.items() if text)


def _level(level: Level) -> LevelResult:
    mean, half = mean_and_half_width(list(level.accuracies.values()))
    baselines = [run.baseline for run in level.best if run.baseline is not None]
    in_paper = level.best[0].published
    return LevelResult(
        **{level.privacy[0]: level.privacy[1]},
        mechanism=level.label,
        accuracy=mean,
        half_width_95=half,
        baseline_accuracy=statistics.fmean(baselines) if baselines else UNSET,
        seeds=len(level.best),
        accuracy_by_seed={str(seed): value for seed, value in level.accuracies.items()},
        accuracy_over_rounds={str(run.seed): list(run.history) for run in level.best},
        server_learning_rate=level.rate,
        rate_at_edge=level.at_edge,
        test_sentences=sorted({run.test_sentences for run in level.best}),
        validation_accuracy_by_rate={f"{rate:.6g}": value for rate, value in sorted(level.tried.items())},
        effective_rmse=level.effective_rmse,
        claim=level.claim,
        published=dict(in_paper) if in_paper else UNSET,
    )
