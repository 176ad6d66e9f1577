"""The appendix of a report: figures in other privacy measures and with all digits, settings, versions, hashes."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from ..output.text import seen, spaced, up, words
from ._layout import WIDTH, bullets, section

# Largest difference of two accountants that agree, relative where ε is above 1.
_APART = 1e-6


def sections(report: Mapping[str, Any]) -> list[str]:
    """Returns the sections for readers who check or repeat a run."""
    return [
        section(
            "Appendix: accountants, and all digits", bullets([*_accountants(report["accountant"]), *_exact(report)])
        ),
        section("Appendix: random numbers and arithmetic", bullets(_randomness(report))),
        section("Appendix: settings", bullets(_pairs(report["settings"])) or ["None are known."]),
        section("Appendix: command", _command(report["command"])),
        section("Appendix: files, by SHA-256", _files(report)),
    ]


def _accountants(accountant: Mapping[str, Any]) -> list[str]:
    named = {"planned": "planned", "realised": "as it ran"}
    columns = {named[name]: accountant[name] for name in named if accountant[name] is not None}
    lines = [f"Accountant: {accountant['name']}, {accountant['version']}."]
    if not columns:
        return lines
    by_pld = _each(columns, "epsilon_by_pld")
    agree = all(_agree(each["epsilon"], each["epsilon_by_pld"]) for each in columns.values())
    more = " It agrees with the closed form to a millionth: where the last digit differs, that is by rounding up."
    lines.append(f"ε by privacy loss distributions, as a check: {by_pld}.{more if agree else ''}")
    only = _each(columns, "epsilon_from_zcdp")
    lines.append(f"ε for whoever knows ρ alone, which is always more: {only}.")
    return lines


def _each(columns: Mapping[str, Any], name: str) -> str:
    return ", ".join(f"{up(each[name])} {label}" for label, each in columns.items())


def _agree(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _APART * max(1.0, one)


def _exact(report: Mapping[str, Any]) -> list[str]:
    noise = report["noise"]
    names = {
        "noise_multiplier": "Noise multiplier",
        "noise_multiplier_as_run": "Noise multiplier as it ran",
        "sensitivity": "Sensitivity",
    }
    if noise["noise_multiplier"] == noise["noise_multiplier_as_run"]:
        del names["noise_multiplier_as_run"]
    return [
        f"{label} with all digits: {words(noise[name])}" for name, label in names.items() if noise[name] is not None
    ]


def _randomness(report: Mapping[str, Any]) -> list[str]:
    randomness, arithmetic = report["randomness"], report["arithmetic"]
    seed = randomness["insecure_seed"]
    return [
        f"Random numbers: {randomness['algorithm']}.",
        f"Keys: {randomness['entropy']}." if seed is None else f"TEST ONLY: every key follows from the seed {seed}.",
        *(f"What can be wrong with them, {each['severity']}: {each['what']}." for each in randomness["severities"]),
        *(f"{name.capitalize()}: {text}." for name, text in arithmetic.items() if name != "severity"),
        f"What can be wrong with that, {arithmetic['severity']}.",
    ]


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{spaced(str(name))}: {words(each)}" for name, each in values.items()]


def _command(command: list[str]) -> list[str]:
    """Returns a command to copy, with line breaks between its words."""
    if not command:
        return ["It is not known."]
    lines = [""]
    for word in map(seen, map(shlex.quote, command)):
        # Indented as a block of code, so that nothing in a word ends the block.
        if lines[-1] and len(f"    {lines[-1]} {word} \\") > WIDTH:
            lines.append("  ")
        lines[-1] += f"{' ' if lines[-1].strip() else ''}{word}"
    return [f"    {line}" for line in [*(f"{line} \\" for line in lines[:-1]), lines[-1]]]


def _files(report: Mapping[str, Any]) -> list[str]:
    hashes = dict(report["files"])
    if report["mechanism"]["sha256"] not in hashes.values():
        hashes["the mechanism that the run was set to have"] = report["mechanism"]["sha256"]
    hashes["digest of this report"] = report["digest"]
    return [
        f"- {words(name)}\n  {each if isinstance(each, str) else json.dumps(each)}" for name, each in hashes.items()
    ]
