"""A report for people: the same figures as the JSON object, and nothing that is not in it."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..statements import upwards

# What is missing because nobody answered; anything else that is missing is not there.
_ASKED_FOR = frozenset({"trusted", "client", "clients_of_one_person", "enforcement", "population"})


def markdown(report: Mapping[str, Any]) -> str:
    """Returns a report as Markdown."""
    sections = [
        f"# Privacy report ({report['kind']})",
        _one_line(f"**{report['headline']}**"),
        report["caveats"],
        _section("Findings", _findings(report["findings"])),
        _section("Formal statement", [report["statement"]]),
        _section("Figures, if every assumption holds", _accountant(report["accountant"])),
        _section("Assumptions", _assumptions(report["assumptions"])),
        _section("Setting", _pairs(report["setting"])),
        _section("What is covered", [*_bullets(report["covered"]["covered"])]),
        _section("What is not covered", [*_bullets(report["covered"]["not_covered"])]),
        _section("Unit and adjacency", [*_pairs(report["unit"]), f"- adjacency: {report['adjacency']}"]),
        _section("Participation", _pairs(report["participation"])),
        _section("Mechanism", _pairs(report["mechanism"])),
        _section("Clipping", _pairs(report["clipping"])),
        _section("Noise", _pairs(report["noise"])),
        _section("Rounds", _pairs(report["rounds"])),
        _section("Random numbers", _randomness(report["randomness"])),
        _section("Arithmetic", _pairs(report["arithmetic"])),
        _section("Only you know", _questions(report["questions"])),
        _section("Utility", _pairs(report["utility"] or {"metrics": "none"})),
        _section("Audit", _pairs(report["audit"]) if isinstance(report["audit"], Mapping) else [str(report["audit"])]),
        _section("Versions", _pairs(report["versions"])),
        _section("Command", [f"`{' '.join(report['command'])}`"]),
        _section("Files", [*_pairs(report["files"]), f"- report digest: {report['digest']}"]),
    ]
    return "\n\n".join(sections) + "\n"


def _section(title: str, lines: Iterable[str]) -> str:
    return f"## {title}\n\n" + "\n".join(map(_one_line, lines))


def _one_line(text: str) -> str:
    """Returns a text on one line: an answer must not look like a part of the report."""
    return " ".join(text.splitlines())


def _findings(findings: list[dict[str, str]]) -> list[str]:
    return [f"- {each['severity']}: {each['field']}: {each['text']}" for each in findings] or ["None."]


def _assumptions(assumptions: list[dict[str, str]]) -> list[str]:
    rows = [f"| {each['name']} | {each['state']} | {each['text']} |" for each in assumptions]
    return ["| assumption | state | what was assumed and seen |", "|---|---|---|", *rows]


def _accountant(accountant: Mapping[str, Any]) -> list[str]:
    columns = [name for name in ("planned", "realised") if accountant[name] is not None]
    if not columns:
        return ["None: no sensitivity can be computed."]
    rows = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, label in (
        ("zcdp_rho", "ρ (zCDP)"),
        ("mu", "μ (GDP)"),
        ("epsilon", f"ε at δ = {accountant[columns[0]]['delta']}"),
        ("epsilon_by_pld", "the same, by privacy loss distributions"),
        ("epsilon_from_zcdp", "the same, converted from ρ only"),
    ):
        rows.append(f"| {label} | {' | '.join(_up(accountant[column][name]) for column in columns)} |")
    for index, row in enumerate(accountant[columns[0]]["epsilon_at"]):
        values = [_up(accountant[column]["epsilon_at"][index]["epsilon"]) for column in columns]
        rows.append(f"| ε at δ = {row['delta']} | {' | '.join(values)} |")
    return [
        *rows,
        "",
        f"- accountant: {accountant['name']}, {accountant['version']}",
        f"- {accountant['tier']}",
        f"- ε of the clients that really trained: {_up(accountant['epsilon_as_run'])}",
        f"- ε of one person with all of their clients: {_up(accountant['epsilon_of_a_person'])}",
    ]


def _randomness(randomness: Mapping[str, Any]) -> list[str]:
    notes = [f"- {each['severity']}: {each['what']}" for each in randomness["severities"]]
    return [*_pairs({name: value for name, value in randomness.items() if name != "severities"}), *notes]


def _questions(questions: list[dict[str, Any]]) -> list[str]:
    return [
        f"- {each['text']} **{'NOT ANSWERED' if each['answer'] is None else each['answer']}** (`{each['name']}`)"
        for each in questions
    ]


def _pairs(values: Mapping[str, Any]) -> list[str]:
    shown = {name: _missing(name) if value is None else value for name, value in values.items()}
    return [f"- {name.replace('_', ' ')}: {value}" for name, value in shown.items()]


def _missing(name: str) -> str:
    return "NOT STATED" if name in _ASKED_FOR else "none"


def _bullets(values: Iterable[str]) -> list[str]:
    return [f"- {value}" for value in values]


def _up(value: float | None) -> str:
    return "∞" if value is None else upwards(value)
