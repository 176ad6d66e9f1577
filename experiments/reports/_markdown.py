"""A report as Markdown: the content of the JSON object, and nothing else."""

from collections.abc import Mapping
from typing import Any

from ..output.digits import rounded_up as rounded_up
from ..output.text import spaced, up, words
from . import _appendix, _grid_text, _run_text
from ._device_reports import DEVICE_REPORTS
from ._layout import below, bullets, paragraph, section, table


def markdown(report: Mapping[str, Any]) -> str:
    """Returns a report as Markdown that fits a terminal of 80 columns: findings first, settings last."""
    counted = report.get(DEVICE_REPORTS)
    sections = [
        f"# Privacy report ({report['kind']})",
        paragraph(f"**{report['headline']}**"),
        "\n".join(bullets(_run_text.about(report))),
        # Unlike in the JSON object, assumptions follow further down.
        paragraph(report["caveats"].replace("assumed above", "assumed below")),
        section("Findings", finding_lines(report["findings"]) or ["None: nothing contradicts what is stated."]),
        section("Figures, if every assumption holds", _figure_lines(report)),
        section("Formal statement", [paragraph(report["statement"])]),
        section("What it rests on", _assumptions(report["assumptions"])),
        section("What is covered", bullets(report["covered"]["covered"])),
        section("What is not covered", bullets(report["covered"]["not_covered"])),
        section("What only the operator knows", _questions(report["questions"])),
        section("The run", bullets(_run_text.run(report))),
        *([section("Reports of devices", bullets(_run_text.device_reports(counted)))] if counted else []),
        section("Mechanism and noise", bullets([*_run_text.mechanism(report), *_grid_text.lines(report)])),
        section("Audit of the noise", bullets(_run_text.audit(report["audit"]))),
        section("Quality of the model", [paragraph(_quality(report["utility"]))]),
        *_appendix.sections(report),
    ]
    return "\n\n".join(sections) + "\n"


def finding_lines(findings: list[dict[str, str]], run: str = "RUN") -> list[str]:
    """Returns findings as a list in words, by severity, with all open questions in one item.

    Args:
        findings: As a report has them.
        run: The run's folder in the text.
    """
    unanswered = [each for each in findings if each["text"].startswith("not answered: ")]
    lines = []
    for severity in ("critical", "warning", "note"):
        several = [each for each in findings if each["severity"] == severity and each not in unanswered]
        lines += [f"{severity.capitalize()}, {spaced(each['field'])}: {each['text']}" for each in several]
        if severity == "critical" and unanswered:
            names = ", ".join(spaced(each["field"]) for each in unanswered)
            lines.append(
                f"Not answered yet, and ε is provisional: {names}. `tff-mf report {run} --answer` asks for it."
            )
    return bullets(lines)


def _figure_lines(report: Mapping[str, Any]) -> list[str]:
    accountant = report["accountant"]
    shown = {"planned": "planned", "realised": "as it ran"}
    columns = {name: accountant[name] for name in shown if accountant[name] is not None}
    if not columns:
        return ["None: no ε can be stated."]
    first = next(iter(columns.values()))
    rows = [["", *(shown[name] for name in columns)]]
    rows.append([f"ε at δ = {first['delta']}", *(up(each["epsilon"]) for each in columns.values())])
    for index, row in enumerate(first["epsilon_at"]):
        if row["delta"] != first["delta"]:
            values = (_at(each["epsilon_at"], index) for each in columns.values())
            rows.append([f"ε at δ = {row['delta']}", *values])
    rows.append(["ρ (zCDP)", *(up(each["zcdp_rho"]) for each in columns.values())])
    rows.append(["μ (GDP)", *(up(each["mu"]) for each in columns.values())])
    return [*table(rows), "", *bullets(_about_figures(report, columns))]


def _at(rows: list[Mapping[str, Any]], index: int) -> str:
    return up(rows[index]["epsilon"]) if index < len(rows) else ""


def _about_figures(report: Mapping[str, Any], columns: Mapping[str, Any]) -> list[str]:
    claim = report["claim"]
    lines = ["Every figure is rounded up in its last digit, so that none is smaller than it is."]
    if len(columns) > 1:
        lines.append(
            "Planned is for any client that keeps to the participation schema, as it ran for those in the log, by the "
            f"rounds that each took part in. {_headline_is_of(report['findings'])}"
        )
    if report["tier"] is not None:
        lines.append(f"In words: {report['tier']}, by {report['tier_source']}.")
    if claim["cohort"] != claim["clients_per_round"]:
        lines.append(
            f"These are the figures of cohorts of {claim['cohort']}. ε of the {claim['clients_per_round']} clients a "
            f"round that really trained, at the same δ: {up(claim['epsilon_as_run'])}."
        )
    several = claim["clients_of_one_person"]
    if several is None:
        lines.append("ε of a person can be stated once it is answered how many clients one person can have.")
    elif several > 1:
        person = up(claim["epsilon_of_a_person"])
        lines.append(f"ε of one person with {several} clients, who are all taken away at once: {person}.")
    return lines


def _headline_is_of(findings: list[dict[str, str]]) -> str:
    if any(each["field"] == "rounds" and each["text"].startswith("stopped after") for each in findings):
        return "The run was stopped early: the headline is about the larger one."
    return "The headline is about the run as it ran."


def _assumptions(assumptions: list[dict[str, str]]) -> list[str]:
    """Returns the assumptions of the guarantee: first the violated ones, last those that were checked and hold."""
    titles = {
        "violated": "Violated:",
        "assumed": "Assumed, since nothing here can check it:",
        "holds": "Checked, and holds:",
    }
    lines = []
    for state, title in titles.items():
        found = [f"{spaced(each['name'])}: {each['text']}" for each in assumptions if each["state"] == state]
        if found:
            lines += [*([""] if lines else []), title, "", *bullets(found)]
    return lines


def _questions(questions: list[dict[str, Any]]) -> list[str]:
    lines = []
    for each in questions:
        answer = "NOT ANSWERED" if each["answer"] is None else words(each["answer"])
        lines += [*bullets([each["text"]]), below(f"**{answer}**")]
    return lines


def _quality(utility: Mapping[str, Any] | None) -> str:
    if utility is None:
        return "Nothing is known of it."
    accuracy = _formatted(utility.get("accuracy"), "{:.2%}")
    return f"Accuracy {accuracy}, loss {_formatted(utility.get('loss'), '{:.3f}')}: {words(utility.get('source'))}."


def _formatted(value: Any, form: str) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return form.format(value) if is_number else words(value)
