"""The page of a privacy report."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ..output.digits import nearest, rounded_up
from ..output.text import spaced, up, words
from ..privacy import statements
from ._charts import Chart, Curve, figure, styled
from ._document import document
from ._markup import Markup, element, together
from ._parts import bullets, checklist, facts, figures, lines, paragraphs, section, table
from ._scales import Axis

# In this order: what voids the guarantee comes first.
_STATES = {"violated": "Violated", "assumed": "Assumed: nothing in the files can check it", "holds": "Checked, holds"}
_RUNS = {"planned": "planned", "realised": "as it ran"}
_SAFE = "Between computed points the larger value is drawn."
_IF_ALL_HOLDS = "It supposes that every assumption below holds."


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
    return document(
        f"Privacy report of a {kind}: {run}",
        element("div", element("p", report["headline"]), class_="headline refused" if refused else "headline"),
        bullets(about),
        paragraphs(report["caveats"].replace("assumed above", "assumed below")),
        section("Findings", _findings(report["findings"]), name="findings"),
        section("Figures", _table(report["accountant"]), _charts(report, curves, refused=refused), name="figures"),
        section("What it rests on", *_assumptions(report["assumptions"]), name="assumptions"),
        section("What only the operator knows", _answers(report["questions"]), name="answers"),
        section("What is covered", *_covered(report), name="covered"),
        section("The run", _facts(report), name="run"),
        section("The whole report", lines("All of it, as report.md has it", markdown.splitlines()), name="report"),
    )


def _findings(findings: Sequence[Mapping[str, str]]) -> Markup:
    if not findings:
        return element("p", "None: nothing contradicts what is stated.")
    order = ("critical", "warning", "note")
    return bullets(
        together(
            element("b", f"{each['severity'].capitalize()}, {spaced(each['field'])}", class_=severity),
            f": {each['text']}",
        )
        for severity in order
        for each in findings
        if each["severity"] == severity
    )


def _table(accountant: Mapping[str, Any]) -> Markup:
    """Returns the figures of the plan and of the run, rounded up."""
    columns = {label: accountant[name] for name, label in _RUNS.items() if accountant[name] is not None}
    if not columns:
        return element("p", "None: no ε can be stated.")
    first = next(iter(columns.values()))
    rows = [(f"ε at δ = {first['delta']}", *(up(each["epsilon"]) for each in columns.values()))]
    for index, row in enumerate(first["epsilon_at"]):
        if row["delta"] != first["delta"]:
            values = (up(each["epsilon_at"][index]["epsilon"]) for each in columns.values())
            rows.append((f"ε at δ = {row['delta']}", *values))
    rows.append(("ρ (zCDP)", *(up(each["zcdp_rho"]) for each in columns.values())))
    rows.append(("μ (GDP)", *(up(each["mu"]) for each in columns.values())))
    shown = table(["if every assumption holds", *columns], rows, name="figures of the guarantee")
    note = "Every figure is rounded up in its last digit, so that none is smaller than it is."
    return element("div", shown, element("p", note, class_="note"))


def _charts(report: Mapping[str, Any], curves: Mapping[str, Any], *, refused: bool) -> Markup:
    steps = functools.partial(_by_run, drawn="steps")
    delta = report["accountant"]["planned"] or {}
    chosen = f"The report is at δ = {delta['delta']}. " if delta else ""
    of_epsilon = (
        Chart(
            name="epsilon-over-delta",
            title="ε over δ",
            note=f"{chosen}{_IF_ALL_HOLDS} {_SAFE}",
            x=Axis(label="δ", log=True),
            y=Axis(label="ε", from_zero=True),
            curves=steps(curves["epsilon_over_delta"]),
            value=rounded_up,
        ),
        Chart(
            name="epsilon-over-rounds",
            title="ε over rounds",
            note=f"Of the first rounds alone, if their number was fixed in advance. {_IF_ALL_HOLDS} {_SAFE}",
            x=Axis(label="round", from_zero=True),
            y=Axis(label="ε", from_zero=True),
            curves=steps(curves["epsilon_over_rounds"]),
            value=rounded_up,
        ),
    )
    charts = (
        *(() if refused else of_epsilon),
        Chart(
            name="error-over-rounds",
            title="Error of each round",
            note="Standard deviation of the noise in one parameter of the sum of all released updates so far.",
            x=Axis(label="round", from_zero=True),
            y=Axis(label="standard deviation", from_zero=True),
            curves=[Curve(name="noise", points=curves["error_over_rounds"])],
            value=nearest,
        ),
        *_logged(curves),
    )
    return figures(*map(figure, charts))


def _logged(curves: Mapping[str, Any]) -> list[Chart]:
    """Returns the figures of what the logs have; a plan has none."""
    found = []
    exact = "Counted in the log, without noise."
    # A log can have rounds without clients.
    if curves["clients_by_participations"]:
        found.append(
            Chart(
                name="participations",
                title="Participation of clients",
                note=f"How many clients took part how often. {exact}",
                x=Axis(label="rounds of a client", named=_some([at for at, _ in curves["clients_by_participations"]])),
                y=Axis(label="clients", from_zero=True),
                curves=[Curve(name="clients", points=curves["clients_by_participations"], drawn="bars")],
            )
        )
    if curves["cohorts"]:
        found.append(
            Chart(
                name="cohorts",
                title="Clients of each round",
                note=f"Of all attempts of the round together. {exact}",
                x=Axis(label="round", from_zero=True),
                y=Axis(label="clients", from_zero=True),
                curves=[Curve(name="clients", points=curves["cohorts"])],
            )
        )
    if curves["accuracy_over_rounds"]:
        percent = [(at, 100 * value) for at, value in curves["accuracy_over_rounds"]]
        found.append(
            Chart(
                name="accuracy",
                title="Accuracy",
                note="On known words of the clients that the run evaluates on, as metrics.csv has it.",
                x=Axis(label="round", from_zero=True),
                y=Axis(label="accuracy, known words (%)", from_zero=True),
                curves=[Curve(name="accuracy", points=percent, style=2)],
                value=nearest,
            )
        )
    return found


def _some(values: Sequence[float]) -> list[float]:
    return list(values)[:: -(-len(values) // 8)]


def _by_run(points: Mapping[str, Any], *, drawn: str) -> list[Curve]:
    kept = [Curve(name=_RUNS[name], points=points[name], drawn=drawn) for name in _RUNS if points[name]]
    return styled(kept)


def _assumptions(assumptions: Sequence[Mapping[str, str]]) -> list[Markup]:
    """Returns the assumptions by state; all but the violated ones can be ticked."""
    found = [element("p", "Tick what you have verified yourself. Ticks are kept in this page alone.")]
    for state, title in _STATES.items():
        own = [(spaced(each["name"]), each["text"]) for each in assumptions if each["state"] == state]
        if not own:
            continue
        found.append(element("h3", title, class_={"violated": "critical"}.get(state, state)))
        if state == "violated":
            found.append(bullets(together(element("b", name), f": {text}") for name, text in own))
        else:
            found.append(checklist(own, name=state))
    return found


def _answers(questions: Sequence[Mapping[str, Any]]) -> Markup:
    return facts(
        (each["text"], "NOT ANSWERED" if each["answer"] is None else words(each["answer"])) for each in questions
    )


def _covered(report: Mapping[str, Any]) -> list[Markup]:
    covered = report["covered"]
    return [
        bullets(covered["covered"]),
        element("h3", "What is not"),
        bullets(covered["not_covered"]),
        element("h3", "Formal statement"),
        paragraphs(report["statement"]),
    ]


def _facts(report: Mapping[str, Any]) -> Markup:
    schema, setting, noise = report["participation"], report["setting"], report["noise"]
    return facts(
        [
            ("rounds planned", f"{schema['rounds']:,}"),
            ("rounds released", words(report["rounds"]["released"])),
            ("participation", f"{schema['schema']}, b = {schema['min_sep']:,}, k = {schema['max_participations']:,}"),
            ("smallest separation seen", words(schema["observed_min_sep"])),
            ("most participations seen", words(schema["observed_max_participations"])),
            ("clients a round", f"{setting['clients_per_round']:,}"),
            ("cohort that a round stands for", f"{setting['cohort']:,}"),
            ("population", words(setting["population"])),
            ("mechanism", words(report["mechanism"]["kind"])),
            ("noise multiplier σ", repr(noise["noise_multiplier"])),
            ("sensitivity", None if noise["sensitivity"] is None else rounded_up(noise["sensitivity"])),
            ("clip norm ζ", repr(report["clipping"]["clip_norm"])),
            ("digest of the report", report["digest"]),
        ]
    )
