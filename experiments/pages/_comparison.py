"""The page of a comparison."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..output.digits import nearest
from ..privacy import statements
from ._charts import Chart, Curve, figure
from ._document import document
from ._markup import Markup, element, together
from ._parts import checklist, facts, figures, lines, paragraphs, section, table
from ._scales import Axis

_KINDS = {"epsilon": "ε", "noise_multiplier": "σ"}
_ACCURACY = "accuracy, known words (%)"


def comparison_page(result: Mapping[str, Any], *, name: str, markdown: str) -> str:
    """Returns the page of a comparison.

    Args:
        result: The comparison, as `comparison.json` has it.
        name: Its name.
        markdown: The table as text, for the end of the page.
    """
    about = result.get("specification", {})
    levels = result["levels"]
    done = f"{result['runs_done']} of {result['runs_planned']} runs are done."
    return document(
        f"Comparison: {about.get('title', name)}",
        paragraphs(about.get("paper"), about.get("scaled", {}).get("note"), about.get("notes"), done),
        section("Accuracy", _levels(levels), name="accuracy"),
        section("Figures", figures(*map(figure, _charts(levels))), name="figures"),
        section("Differences", _gaps(result["gaps"]), name="differences"),
        section("Guarantees", _statements(levels), name="guarantees"),
        section(
            "What it rests on",
            element("p", "Tick what you have made sure of. Ticks are kept in this page alone."),
            checklist(_assumptions(result), name="assumptions"),
            name="assumptions",
        ),
        section("The whole comparison", lines("All of it, as comparison.md has it", markdown.splitlines()), name="all"),
    )


def _levels(levels: Sequence[Mapping[str, Any]]) -> Markup:
    header = ["noise for", "mechanism", "accuracy, %", "seeds", "server's rate", "rates tried", "effective RMSE"]
    rows = [
        [
            _privacy(each),
            each["mechanism"],
            _percent(each["accuracy"], each["half_width_95"]),
            each["seeds"],
            f"{each['server_learning_rate']:.4g}",
            len(each["validation_accuracy_by_rate"]),
            nearest(each["effective_rmse"]),
        ]
        for each in levels
    ]
    chosen = "its best by validation" if _several_rates(levels) else "the only one tried here"
    note = f"On test clients, with a 95 % interval over seeds; each mechanism's rate is {chosen}."
    shown = table(header, rows, name="accuracy of each mechanism", words=("mechanism",))
    return together(shown, element("p", note, class_="note"))


def _gaps(gaps: Sequence[Mapping[str, Any]]) -> Markup:
    rows = [
        [_privacy(each), each["better"], each["worse"], _percent(each["gap"], each["half_width_95"]), each["seeds"]]
        for each in gaps
        if each["neighbours"]
    ]
    if not rows:
        return element("p", "None: no two mechanisms have the same noise and a seed in common.")
    header = ["noise for", "better", "worse", "points", "seeds"]
    return table(header, rows, name="differences in accuracy", words=("better", "worse"))


def _charts(levels: Sequence[Mapping[str, Any]]) -> list[Chart]:
    names = list(dict.fromkeys(each["mechanism"] for each in levels))
    groups = [list(group) for _, group in itertools.groupby(levels, key=_privacy)]
    over_rounds = [
        Chart(
            name=f"accuracy-over-rounds-{index}",
            title=f"Accuracy over rounds, noise for {_privacy(group[0])}",
            note="Each seed (thin) and their mean, on validation sentences or, in earlier releases, test clients.",
            x=Axis(label="round", from_zero=True),
            y=Axis(label=_ACCURACY, from_zero=True),
            curves=[curve for level in group for curve in _seeds_and_mean(level, names.index(level["mechanism"]))],
            value=nearest,
        )
        for index, group in enumerate(groups)
    ]
    return [*over_rounds, *_over_privacy(levels, names), _rates(levels, names)]


def _seeds_and_mean(level: Mapping[str, Any], style: int) -> list[Curve]:
    by_seed = level["accuracy_over_rounds"]
    by_round: dict[int, list[float]] = {}
    for points in by_seed.values():
        for number, value in points:
            by_round.setdefault(number, []).append(100 * value)
    seeds = [
        Curve(name=seed, points=[(at, 100 * value) for at, value in points], style=style, faint=True)
        for seed, points in by_seed.items()
        if len(by_seed) > 1
    ]
    mean = [(number, statistics.fmean(values)) for number, values in sorted(by_round.items())]
    return [*seeds, Curve(name=level["mechanism"], points=mean, style=style)]


def _over_privacy(levels: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Chart]:
    """Returns accuracy over ε and over σ, whichever the runs have."""
    found = []
    for kind, symbol in _KINDS.items():
        own = [each for each in levels if kind in each]
        if not own:
            continue
        values = sorted({each[kind] for each in own})
        curves = []
        for index, name in enumerate(names):
            mine = sorted((each for each in own if each["mechanism"] == name), key=lambda each: each[kind])
            curves.append(
                Curve(
                    name=name,
                    points=[(each[kind], 100 * each["accuracy"]) for each in mine],
                    aside=[None if each["half_width_95"] is None else 100 * each["half_width_95"] for each in mine],
                    style=index,
                )
            )
        found.append(
            Chart(
                name=f"accuracy-over-{kind.replace('_', '-')}",
                title=f"Accuracy over {symbol}",
                note="On test clients, mean and 95 % interval over seeds.",
                x=Axis(label=symbol, log=values[0] > 0, named=values),
                y=Axis(label=_ACCURACY, from_zero=True),
                curves=curves,
                value=nearest,
            )
        )
    return found


def _rates(levels: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Chart:
    noisy = [each for each in levels if each["effective_rmse"] > 0]
    several = _several_rates(levels)
    return Chart(
        name="rates",
        title="Best rates over error" if several else "Rates over error",
        note=f"Server's learning rate {'with the best validation accuracy' if several else 'of each mechanism'}.",
        x=Axis(label="effective RMSE of prefix sums", log=True),
        y=Axis(label="server's learning rate", log=True),
        curves=[
            Curve(
                name=name,
                points=[(e["effective_rmse"], e["server_learning_rate"]) for e in noisy if e["mechanism"] == name],
                drawn="dots",
                style=index,
            )
            for index, name in enumerate(names)
        ],
        value=nearest,
    )


def _statements(levels: Sequence[Mapping[str, Any]]) -> Markup:
    """Returns the guarantee of each level, or the reason why there is none."""
    # Comparisons of earlier releases have no statements.
    stated = [(_privacy(each), each["mechanism"], each["statement"]) for each in levels if "statement" in each]
    return facts(
        (about, element("span", text, class_="critical" if text.startswith(statements.REFUSALS) else None))
        for about, text in statements.by_level(stated)
    )


def _assumptions(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = [
        (
            "choice of settings",
            f"{statements.CHOICE_OF_SETTINGS}; where the clients are real, all runs of this page count",
        ),
        ("reports", "the report of each run, report.md in its folder, was read: it states what its ε rests on"),
        ("one measure", "all rows are compared on the same test clients, with the same seeds"),
    ]
    edges = [f"{_privacy(each)}, {each['mechanism']}" for each in result["levels"] if _at_edge(each)]
    if edges:
        text = (
            f"the best rate is the smallest or largest tried, so that a better one may lie beyond: {'; '.join(edges)}"
        )
        found.append(("rates at the edge", text))
    if result["runs_failed"]:
        text = "; ".join(f"{name}: {why}" for name, why in result["runs_failed"].items())
        found.append(("failed runs", f"they are left out for a reason that does not favor a mechanism: {text}"))
    return found


def _several_rates(levels: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether a rate was chosen among several in this comparison."""
    return any(len(each["validation_accuracy_by_rate"]) > 1 for each in levels)


def _at_edge(level: Mapping[str, Any]) -> bool:
    return level["rate_at_edge"] and len(level["validation_accuracy_by_rate"]) > 1


def _privacy(entry: Mapping[str, Any]) -> str:
    return next(statements.level(name, entry[name]) for name in _KINDS if name in entry)


def _percent(value: float, half: float | None) -> str:
    return f"{100 * value:.2f}" + ("" if half is None else f" ± {100 * half:.2f}")
