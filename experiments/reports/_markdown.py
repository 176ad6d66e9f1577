"""A report as Markdown: the content of the JSON object, and nothing else."""

import decimal
import math
import re
from collections.abc import Mapping
from typing import Any

from ..output.digits import rounded_up as rounded_up
from ..output.text import spaced, up, words
from . import _arithmetic, _figures
from ._device_reports import DEVICE_REPORTS
from ._layout import below, bullets, digits, paragraph, plain, section, table

_OPTIMIZED_FOR = re.compile(
    r"(?:MadeFor|OptimizedFor)\(rounds=(\d+), participation=(\w+)\((?:min_sep=(\d+), max_participations=(\d+))?\)"
)
_LESS, _MORE = decimal.ROUND_FLOOR, decimal.ROUND_CEILING


def about(report: Mapping[str, Any]) -> list[str]:
    """Returns what a report is about, as far as it is known: data set, time, who answered, and versions."""
    found, answered = report["about"], any(each["answer"] is not None for each in report["questions"])
    data = found["data_set"]
    of_data = [data["name"], *(f"{data[name]} {name}" for name in ("clients", "examples") if data[name] is not None)]
    of_data.append(None if data["sha256"] is None else f"SHA-256 {data['sha256']}")
    took = "" if found["seconds"] is None else f", {found['seconds']} seconds"
    packages = ", ".join(f"{name} {words(each)}" for name, each in report["versions"].items())
    rows = {
        "Data set": ", ".join(each for each in of_data if each is not None),
        "Time": None
        if found["started"] is None
        else f"{found['started']} to {found['ended'] or 'no recorded end'}{took}",
        "Questions answered by": found["answered_by"] or ("a person who is not named" if answered else "nobody yet"),
        "Report by": report["accountant"]["version"],
        "Run with": packages,
    }
    return [f"{label}: {text or 'not known'}." for label, text in rows.items()]


def run(report: Mapping[str, Any]) -> list[str]:
    """Returns the participation in a run, as planned and as observed."""
    rounds, setting, claimed = report["rounds"], report["setting"], report["participation"]
    lines = [_rounds(rounds), *_clients(setting, rounds), _schema(claimed)]
    if claimed["observed_max_participations"] is not None:
        lines.append(_observed(claimed))
    if setting["population"] is not None:
        lines.append(f"δ is held against a population of {setting['population']} clients.")
    return lines


def mechanism(report: Mapping[str, Any]) -> list[str]:
    """Returns how the noise is generated, and its scale."""
    made, clipping, noise = report["mechanism"], report["clipping"], report["noise"]
    found = _OPTIMIZED_FOR.match(made["made_for"] or "")
    lines = [f"The mechanism is {words(made['kind'])}{_made_for(found)}."]
    if made["rounds_at_most"] is not None:
        lines.append(f"It has noise for {made['rounds_at_most']} rounds and no more.")
    lines.append(
        f"Every update is clipped to an L2 norm of {plain(clipping['clip_norm'])}."
        if clipping["adaptive_count_stddev"] is None
        else f"Every update is clipped, at first to an L2 norm of {plain(clipping['clip_norm'])}. The norm adapts to "
        f"noised counts, whose noise has a standard deviation of {digits(clipping['adaptive_count_stddev'], _LESS)}."
    )
    if clipping["restart_every"] is not None:
        lines.append(f"The noise starts anew every {clipping['restart_every']} rounds.")
    return [*lines, *_noise(report["setting"], report["rounds"], noise)]


def device_reports(counted: Mapping[str, Any]) -> list[str]:
    """Returns the counts of device reports, for an operator."""
    refused = [f"{number} {reason}" for reason, number in counted["refused"].items()]
    return [
        f"Of {counted['came']} reports in {counted['rounds']} rounds {counted['counted']} were counted. Of those "
        f"{counted['clipped']} were above the clip norm, and scaled to it; {counted['zeroed']} were not finite, and "
        "count as zero.",
        f"Refused: {', '.join(refused) or 'none'}.",
        f"Rounds without an update: {counted['rounds_without_updates']}.",
        _sentence(counted["note"]),
    ]


def audit(found: Any) -> list[str]:
    """Returns the result of a run's audit."""
    if not isinstance(found, Mapping):
        return [
            "None was made; `tff-mf audit RUN` tests the noise that really runs." if found == "none" else words(found)
        ]
    tests = [each for each in found.get("tests", []) if isinstance(each, Mapping)] if _is_list(found, "tests") else []
    source = f"{_sentence(words(found.get('source')))}"
    if found.get("passed") is not True:
        failed = [words(each.get("name")) for each in tests if each.get("passed") is not True]
        return [f"Failed: {', '.join(failed) or 'it does not say of what'}.", source]
    shown, claimed = (_number(found.get(name)) for name in ("shown_epsilon", "claimed_epsilon"))
    at_least = f"{math.floor(shown * 1000) / 1000:.3f}" if shown is not None else "none"
    canaries = f"Canaries show an ε of {at_least} or more (rounded down); {up(claimed)} is claimed of the plan."
    return [
        f"Passed: {len(tests)} tests of the noise of {words(found.get('rounds'))} rounds, in "
        f"{words(found.get('coordinates'))} coordinates.",
        # Not shown where the claim is refused.
        *([] if claimed is None else [canaries]),
        source,
    ]


def _rounds(rounds: Mapping[str, Any]) -> str:
    if rounds["released"] is None:
        return f"{rounds['planned']} rounds are planned."
    ended = "" if rounds["ended"] else " The ledger does not say that the run ended."
    return f"{rounds['released']} of {rounds['planned']} rounds were released.{ended}"


def _clients(setting: Mapping[str, Any], rounds: Mapping[str, Any]) -> list[str]:
    clients, cohort = setting["clients_per_round"], setting["cohort"]
    if clients != cohort:
        text = f"{clients} clients a round simulate cohorts of {cohort}, with noise in proportion."
    else:
        text = f"{clients} {'simulated ' if setting['simulation'] else ''}clients take part in a round."
    smallest, largest = rounds["smallest_cohort"], rounds["largest_cohort"]
    if smallest is None or (smallest, largest) == (clients, clients):
        return [text]
    return [text, f"In the log there are {smallest} to {largest} clients a round."]


def _schema(claimed: Mapping[str, Any]) -> str:
    b, k = claimed["min_sep"], claimed["max_participations"]
    if k == 1:
        return "A client may take part in one round."
    if claimed["schema"] == "FixedEpoch":
        return f"A client may take part once an epoch of {b} rounds, always in the same place, and {k} times at most."
    return f"A client may take part in {k} rounds at most, each {b} or more after the one before."


def _observed(claimed: Mapping[str, Any]) -> str:
    most, apart = claimed["observed_max_participations"], claimed["observed_min_sep"]
    if apart is None:
        return "In the log nobody took part twice."
    return (
        f"In the log clients took part in {most} rounds at most, and two rounds of a client are {apart} apart or more."
    )


def _made_for(found: re.Match | None) -> str:
    if found is None:
        return ""
    rounds, _, b, k = found.groups()
    often = "taking part once" if b is None else f"{k} participations of a client, {b} rounds apart"
    return f", made for {rounds} rounds and {often}"


def _noise(setting: Mapping[str, Any], rounds: Mapping[str, Any], noise: Mapping[str, Any]) -> list[str]:
    lines = [f"The noise multiplier is {digits(noise['noise_multiplier'], _LESS)} (rounded down)."]
    if setting["cohort"] != setting["clients_per_round"]:
        as_float32 = digits(noise["noise_multiplier_as_run"], _LESS)
        lines.append(f"In the simulation, of {setting['clients_per_round']} clients a round, it is {as_float32}.")
    if noise["sensitivity"] is not None:
        exact = "exact" if noise["sensitivity_exact"] else "an upper bound"
        value = digits(noise["sensitivity"], _MORE)
        lines.append(f"The sensitivity is {value} (rounded up), {exact}: {words(noise['sensitivity_rule'])}.")
    stddev = digits(noise["stddev_of_z_in_the_sum"], _LESS)
    text = f"Before it is correlated, the noise in a sum of updates has a standard deviation of {stddev} a coordinate"
    mean = noise["stddev_of_z_in_the_mean"]
    divided = (
        "" if mean is None else f", and of {digits(mean, _LESS)} after the sum is divided by {plain(rounds['divisor'])}"
    )
    return [*lines, f"{text}{divided}."]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_list(found: Mapping[str, Any], name: str) -> bool:
    return isinstance(found.get(name), list)


def markdown(report: Mapping[str, Any]) -> str:
    """Returns a report as Markdown that fits a terminal of 80 columns: findings first, settings last."""
    counted = report.get(DEVICE_REPORTS)
    sections = [
        f"# Privacy report ({report['kind']})",
        paragraph(f"**{report['headline']}**"),
        "\n".join(bullets(about(report))),
        # Unlike in the JSON object, assumptions follow further down.
        paragraph(report["caveats"].replace("assumed above", "assumed below")),
        section("Findings", finding_lines(report["findings"]) or ["None: nothing contradicts what is stated."]),
        section("Figures, if every assumption holds", _figure_lines(report)),
        section("Formal statement", [paragraph(report["statement"])]),
        section("What it rests on", _assumptions(report["assumptions"])),
        section("What is covered", bullets(report["covered"]["covered"])),
        section("What is not covered", bullets(report["covered"]["not_covered"])),
        section("What only the operator knows", _questions(report["questions"])),
        section("The run", bullets(run(report))),
        *([section("Reports of devices", bullets(device_reports(counted)))] if counted else []),
        section("Mechanism and noise", bullets([*mechanism(report), *_arithmetic.lines(report)])),
        section("Audit of the noise", bullets(audit(report["audit"]))),
        section("Quality of the model", [paragraph(_quality(report["utility"]))]),
        *_figures.sections(report),
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
