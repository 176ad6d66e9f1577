"""The result of a comparison as a table and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..configuration import learning_rates
from ..output.digits import percent
from ..privacy import statements
from ._results import Level, fitted, gaps, mean_and_half_width

_CHOSEN_BY = (
    "its best by smoothed validation accuracy (the mean of the evaluations in the last 400 rounds, or in the last "
    "fifth of the rounds if that is less)"
)


def as_dict(
    found: Sequence[Level],
    *,
    planned: int,
    done: int,
    failed: Mapping[str, str],
    about: Mapping[str, Any] | None = None,
    published: Mapping[Any, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Returns the content of `comparison.json`.

    Args:
        found: The levels, best first.
        planned: Number of runs.
        done: Number of runs that are done.
        failed: The last line of each run that failed, by its name.
        about: What the specification says of itself, and what of it was made smaller.
        published: The paper's results by label, level of privacy and rate.
    """
    line = fitted(found)
    return {
        **({"specification": dict(about)} if about else {}),
        "runs_planned": planned,
        "runs_done": done,
        "runs_failed": dict(failed),
        "levels": [_level(level, line, published or {}) for level in found],
        "gaps": gaps(found),
        "rate_regression": None if line is None else {"slope": line.slope, "intercept": line.intercept},
        "rate_regression_of_the_paper": {
            "slope": learning_rates.PAPER.slope,
            "intercept": learning_rates.PAPER.intercept,
        },
    }


def as_markdown(result: Mapping[str, Any]) -> str:
    """Returns the content of `comparison.md`."""
    about = result.get("specification", {})
    paper = any(level.get("published") for level in result["levels"])
    lines = [f"{about['title']}. {about.get('paper', '')}".strip(), ""] if "title" in about else []
    lines += [about["scaled"]["note"], ""] if "scaled" in about else []
    lines += [about["notes"], ""] if "notes" in about else []
    lines += [
        f"{result['runs_done']} of {result['runs_planned']} runs are done. Accuracy is over known words, on "
        f"{_measured_on(result['levels'])}, with a 95 % interval over seeds; each mechanism's rate is "
        f"{_chosen_by(result['levels'])}.",
        "",
        f"{statements.CHOICE_OF_SETTINGS}. Where the clients are real, all runs of this page count.",
        "",
        "| noise for | mechanism | accuracy, % | seeds | server's rate | rates tried | effective RMSE | proposed |"
        + (" in the paper |" if paper else ""),
        "|---|---|---|---|---|---|---|---|" + ("---|" if paper else ""),
    ]
    for level in result["levels"]:
        proposed, tried = level["proposed_rate"], len(level["validation_accuracy_by_rate"])
        edge = " (edge)" if level["rate_at_edge"] and tried > 1 else ""
        lines.append(
            f"| {statements.level_of(level)} | {level['mechanism']} | "
            f"{percent(level['accuracy'], level['half_width_95'])} | {level['seeds']} | "
            f"{level['server_learning_rate']:.4g}{edge} | "
            f"{tried} | {level['effective_rmse']:.4g} | "
            f"{'–' if proposed is None else format(proposed, '.4g')} |" + (f" {_published(level)} |" if paper else "")
        )
    lines += ["", "| noise for | better | worse | gap, points | seeds |", "|---|---|---|---|---|"]
    for gap in filter(lambda gap: gap["neighbours"], result["gaps"]):
        shown = percent(gap["gap"], gap["half_width_95"])
        lines.append(f"| {statements.level_of(gap)} | {gap['better']} | {gap['worse']} | {shown} | {gap['seeds']} |")
    if any("(edge) |" in line for line in lines):
        lines += ["", "`(edge)`: the best rate is the smallest or largest tried, so that a better one may lie beyond."]
    lines += ["", "The guarantee of each level, or the reason why there is none:", ""] if result["levels"] else []
    entries = ((statements.level_of(level), level["mechanism"], level["statement"]) for level in result["levels"])
    lines += [f"- {about}: {statement}" for about, statement in statements.by_level(entries)]
    for name, text in result["runs_failed"].items():
        lines.append(f"Failed: `{name}`: {text}")
    return "\n".join(lines) + "\n"


def _level(
    level: Level, line: learning_rates.Regression | None, published: Mapping[Any, Mapping[str, float]]
) -> dict[str, Any]:
    mean, half = mean_and_half_width(list(level.accuracies.values()))
    usable = line is not None and level.effective_rmse > 0
    in_paper = published.get((level.label, level.privacy, level.rate))
    return {
        level.privacy[0]: level.privacy[1],
        "mechanism": level.label,
        "accuracy": mean,
        "half_width_95": half,
        "seeds": len(level.best),
        "accuracy_by_seed": {str(seed): value for seed, value in level.accuracies.items()},
        "accuracy_over_rounds": {str(run.seed): [list(point) for point in run.history] for run in level.best},
        "server_learning_rate": level.rate,
        "rate_at_edge": level.at_edge,
        "test_sentences": sorted({run.test_sentences for run in level.best}),
        "validation_accuracy_by_rate": {f"{rate:.6g}": value for rate, value in sorted(level.tried.items())},
        "effective_rmse": level.effective_rmse,
        "statement": level.statement,
        "proposed_rate": line.proposed(level.effective_rmse) if usable and line is not None else None,
        **({"published": dict(in_paper)} if in_paper else {}),
    }


def _measured_on(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns which sentences accuracy is measured on; without how many if no run is done."""
    numbers = sorted({number for level in found for number in level["test_sentences"]})
    if not numbers:
        return "sentences of test clients"
    return f"{numbers[0]:,}{f' to {numbers[-1]:,}' if len(numbers) > 1 else ''} sentences of test clients"


def _chosen_by(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns how each mechanism's rate was chosen among the rates of this comparison."""
    if all(len(level["validation_accuracy_by_rate"]) == 1 for level in found):
        return "the only one tried here"
    return _CHOSEN_BY


def _published(level: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in level.get("published", {}).items()) or "–"
