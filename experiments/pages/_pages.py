"""What the pages of reports, comparisons and plans show: their templates have the words, and here are the figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..output import digits
from ..output.figures import Axis, Chart, Curve, shown
from ..output.text import spaced
from ..privacy import statements
from ._page import page

# In this order: what voids the guarantee comes first.
_STATES = {"violated": "Violated", "assumed": "Assumed: nothing in the files can check it", "holds": "Checked, holds"}
_RUNS = {"planned": "planned", "realised": "as it ran"}
_OF_EPSILON = ("epsilon_over_delta", "epsilon_over_rounds")
_IF_ALL_HOLDS = "It supposes that every assumption below holds."
_MOST_BARS_NAMED = 8

_EPSILON, _DELTA = Axis(label="ε", from_zero=True), Axis(label="δ", log=True)
_ROUND = Axis(label="round", from_zero=True, whole=True)
_CLIENTS = Axis(label="clients", from_zero=True, whole=True)
_DEVIATION, _CLIP_NORMS = Axis(label="standard deviation", from_zero=True), Axis(label="clip norms", from_zero=True)
_ACCURACY = Axis(label="accuracy, known words (%)", from_zero=True)


def report_page(
    report: Mapping[str, Any], curves: Mapping[str, Any], *, run: str, markdown: str, about: Sequence[str] = ()
) -> str:
    """Returns the page of a privacy report.

    Args:
        report: The report, as `reports.build` returns it.
        curves: What its figures show, as `reports.curves` returns it.
        run: Name of the run.
        markdown: The whole report as text, for the end of the page.
        about: What the report is about, as `reports.about_lines` returns it.
    """
    refused = report["claim"]["state"] == statements.REFUSED
    kind = {"planned": "planned run", "realised": "run"}[report["kind"]]
    accountant = report["accountant"]
    assumptions = [
        (
            state,
            title,
            [(spaced(each["name"]), each["text"]) for each in report["assumptions"] if each["state"] == state],
        )
        for state, title in _STATES.items()
    ]
    return page(
        "report.html.j2",
        title=f"Privacy report of a {kind}: {run}",
        report=report,
        about=about,
        refused=refused,
        columns={label: accountant[name] for name, label in _RUNS.items() if accountant[name] is not None},
        assumptions=assumptions,
        charts=_of_report(report, curves),
        text=markdown.splitlines(),
    )


def comparison_page(result: Mapping[str, Any], charts: Iterable[Chart], *, name: str, markdown: str) -> str:
    """Returns the page of a comparison.

    Args:
        result: The comparison, as `comparison.json` has it.
        charts: What its figures show, as `comparison.charts` returns it.
        name: Its name.
        markdown: The table as text, for the end of the page.
    """
    about, levels = result.get("specification", {}), result["levels"]
    return page(
        "comparison.html.j2",
        title=f"Comparison: {about.get('title', name)}",
        about=[about.get("paper"), about.get("scaled", {}).get("note"), about.get("notes")],
        result=result,
        several_rates=any(len(each["validation_accuracy_by_rate"]) > 1 for each in levels),
        charts=list(charts),
        guarantees=statements.by_level(
            (statements.level_of(each), each["mechanism"], each["statement"]) for each in levels
        ),
        refusals=statements.REFUSALS,
        edges=[
            f"{statements.level_of(each)}, {each['mechanism']}"
            for each in levels
            if each["rate_at_edge"] and len(each["validation_accuracy_by_rate"]) > 1
        ],
        failed=[f"{failed}: {why}" for failed, why in result["runs_failed"].items()],
        choice_of_settings=statements.CHOICE_OF_SETTINGS,
        text=markdown.splitlines(),
    )


def plan_page(
    plan: Mapping[str, Any], curves: Mapping[str, Any], explored: Mapping[str, Any] | None, *, text: Sequence[str]
) -> str:
    """Returns the page of a plan.

    Args:
        plan: The plan, as `tff-mf plan --json` prints it.
        curves: What its figures show, as `planning.curves.curves` returns it.
        explored: The points around it, as `planning.explored.explored` returns them; `None` if no ε is stated.
        text: The lines of the plan as the command prints it, for the end of the page.
    """
    cohort, planned = plan["clients_per_round"], 0
    for axis in () if explored is None else explored["axes"]:
        planned = planned * len(axis["values"]) + axis["planned"]
    return page(
        "plan.html.j2",
        scripts=("ticks.js",) if explored is None else ("ticks.js", "explorer.js"),
        title=f"Plan: {cohort:,} of {plan['population']:,} clients a round, {plan['rounds']:,} rounds",
        plan=plan,
        explored=explored,
        planned=None if explored is None else explored["points"][planned],
        charts=_of_plan(plan, curves),
        text=text,
    )


def _of_epsilon(
    over_delta: Mapping[str, Any], over_rounds: Mapping[str, Any], *, about: str, fixed: str, value: Callable[..., str]
) -> list[Chart]:
    """Returns ε over δ and ε over rounds, from the points of each curve by its name."""
    safe = "Between computed points the larger value is drawn."
    return [
        Chart(
            name=f"epsilon-over-{x.label}",
            title=f"ε over {title}",
            note=f"{note} {safe}",
            x=x,
            y=_EPSILON,
            curves=[Curve(name=name, points=own, drawn="steps") for name, own in points.items() if own],
            value=value,
        )
        for title, x, points, note in (("δ", _DELTA, over_delta, about), ("rounds", _ROUND, over_rounds, fixed))
    ]


def _over_rounds(name: str, title: str, y: Axis, curves: Mapping[str, Any], note: str) -> Chart:
    return Chart(
        name=name,
        title=title,
        note=note,
        x=_ROUND,
        y=y,
        curves=[Curve(name=each, points=points) for each, points in curves.items()],
        value=shown if y.whole else digits.nearest,
    )


def _of_report(report: Mapping[str, Any], curves: Mapping[str, Any]) -> list[Chart]:
    planned, found = report["accountant"]["planned"], []
    if report["claim"]["state"] != statements.REFUSED:
        chosen = f"The report is at δ = {planned['delta']}. " if planned else ""
        found += _of_epsilon(
            *({label: curves[each][run] for run, label in _RUNS.items()} for each in _OF_EPSILON),
            about=f"{chosen}{_IF_ALL_HOLDS}",
            fixed=f"Of the first rounds alone, if their number was fixed in advance. {_IF_ALL_HOLDS}",
            value=digits.rounded_up,
        )
    note = "Standard deviation of the noise in one parameter of the sum of all released updates so far."
    errors = {"noise": curves["error_over_rounds"]}
    found.append(_over_rounds("errors", "Error of each round", _DEVIATION, errors, note))
    exact = "Counted in the log, without noise."
    # A log can have rounds without clients.
    if times := curves["clients_by_participations"]:
        named = [at for at, _ in times][:: -(-len(times) // _MOST_BARS_NAMED)]
        found.append(
            Chart(
                name="participations",
                title="Participation of clients",
                note=f"How many clients took part how often. {exact}",
                x=Axis(label="rounds of a client", ticks={at: f"{at:,}" for at in named}),
                y=_CLIENTS,
                curves=[Curve(name="clients", points=times, drawn="bars")],
            )
        )
    if curves["cohorts"]:
        note = f"Of all attempts of the round together. {exact}"
        cohorts = {"clients": curves["cohorts"]}
        found.append(_over_rounds("cohorts", "Clients of each round", _CLIENTS, cohorts, note))
    if curves["accuracy_over_rounds"]:
        note = "On known words of the clients that the run evaluates on, as metrics.csv has it."
        percent = {"accuracy": [(at, 100 * value) for at, value in curves["accuracy_over_rounds"]]}
        found.append(_over_rounds("accuracy", "Accuracy", _ACCURACY, percent, note))
    return found


def _of_plan(plan: Mapping[str, Any], curves: Mapping[str, Any]) -> list[Chart]:
    note = "Standard deviation of the noise in a parameter of the sum of all mean updates so far."
    return [
        *_of_epsilon(
            {plan["recommended"]: curves["epsilon_over_delta"]},
            curves["epsilon_over_rounds"],
            about=f"Of {plan['recommended']} at its planned noise; the plan is at δ = {plan['delta']}.",
            fixed="Of the first rounds alone, if their number is fixed in advance, at the planned noise.",
            value=digits.upwards,
        ),
        _over_rounds("errors", "Error of each round", _CLIP_NORMS, curves["error_over_rounds"], note),
    ]
