"""Numbers and tables as text: labels, significant digits, and lines no wider than the terminal."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

import tff_mf
from tff_mf.base import strict_json
from tff_mf.numerics import digits

from ..output.present import Paragraph, Section, labelled, terminal
from ..runs.layers import Layer, Preset

_GAP = "  "
_MOST_LISTED = 8

# Rounded up, so that a copied value is safe.
_UPWARDS = (
    *("grid_mu", "grid_tail"),
    *("epsilon", "epsilon_by_pld", "epsilon_from_zcdp", "zcdp_rho", "mu", "noise_multiplier"),
    *("amplified_epsilon", "amplified_noise_multiplier", "epsilon_if_cohorts_are_known"),
)
# With more digits: they are close to each other, and used in calculations.
_UPWARDS_IN_FULL = ("sensitivity", "sensitivity_as_run", "sensitivity_replace_one")
_DOWNWARDS = ("effective_noise_multiplier",)
_TYPED = ("delta", "momentum")
_LABELS = {
    "mu": "μ of Gaussian DP",
    "zcdp_rho": "ρ of zCDP",
    "epsilon": "ε",
    "epsilon_by_pld": "ε by PLD, to compare",
    "epsilon_from_zcdp": "ε from ρ alone",
    "delta": "δ",
    "grid_bits": "bits of the grid",
    "dimension": "model parameters",
    "grid_mu": "μ_c of the grid",
    "grid_tail": "tail of the grid",
    "noise_multiplier": "noise multiplier σ",
    "effective_noise_multiplier": "effective σ",
    "sensitivity_as_run": "as run, in float32",
    "sensitivity_replace_one": "for replace-one",
    "sensitivity_rule": "rule",
    "rms_loss": "RmsLoss",
    "max_loss": "MaxLoss",
    "rms_error": "RMS error",
    "max_error": "largest error",
    "amplified_rms_error": "amplified RMS error",
    "duality_gap": "relative duality gap",
    "of": "approximates",
    "out": "file",
    "message": "search",
    "amplified_noise_multiplier": "amplified σ",
    "amplified_epsilon": "amplified ε",
    "epsilon_if_cohorts_are_known": "ε if cohorts are known",
}

# Characters of the longest setting that the column of values is wide enough for.
_LONGEST = 16
_MARKS = {"None": "–", "True": "yes", "False": "no"}
_UNITS = dict.fromkeys(("rms_error", "max_error", "amplified_rms_error"), " clip norms")


def show_document(document: Section) -> None:
    """Prints a document."""
    for line in terminal(document):
        click.echo(line)


def _entries(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line per entry, or more if it is long; skips entries that are None."""
    shown = {name: value for name, value in result.items() if value is not None}
    yield from labelled(
        [(_LABELS.get(name, name.replace("_", " ")), _words(name, value)) for name, value in shown.items()]
    )


def report(
    result: Mapping[str, Any],
    *,
    as_json: bool,
    words: Mapping[str, Any] | None = None,
    below: Sequence[str] = (),
) -> None:
    """Prints a result, as one JSON object or one line per entry.

    JSON has all digits, and null in place of an unbounded ε or ρ.

    Args:
        result: The values, by name.
        as_json: Whether to print JSON.
        words: Texts that replace entries where no JSON is printed; `None` leaves an entry out.
        below: Paragraphs after the entries.
    """
    if as_json:
        finite = {key: strict_json.finite(each) if isinstance(each, float) else each for key, each in result.items()}
        click.echo(json.dumps(finite, allow_nan=False))
        return
    for line in _entries({**result, **(words or {})}):
        click.echo(line)
    if below:
        click.echo()
        paragraphs(*below)


def paragraphs(*texts: str | None) -> None:
    """Prints texts as wide as the terminal, with empty lines between them; skips those that are empty or None."""
    show_document(Section("", [Paragraph(text or "") for text in texts]))


def show(rows: Sequence[tuple[str, str]]) -> None:
    """Prints labels with a text beside each; skips rows without a text."""
    for line in labelled(rows):
        click.echo(line)


def settings(preset: Preset | None, layer: Layer, shown: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    """Prints the settings of a run.

    Args:
        preset: Its preset, if it has one.
        layer: Its values.
        shown: Value and source of every field, as `layers.shown` returns them.
        as_json: Whether to print JSON.
    """
    row = preset.row(layer.values) if preset else None
    if as_json:
        about = {"preset": preset.name, "title": preset.title, "paper": preset.paper} if preset else {}
        published = {"published": dict(row.published)} if row else {}
        notes = {"notes": preset.notes} if preset else {}
        report({**about, **notes, **published, "run": shown}, as_json=True)
        return
    if preset:
        published = ""
        if row and row.published:
            results = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.published.items())
            published = f"published ({row.source}): {results}"
        paragraphs(f"{preset.name}: {preset.title}. {preset.paper}.", preset.notes, published)
        click.echo()
    values = {name: _MARKS.get(str(entry["value"]), str(entry["value"])) for name, entry in shown.items()}
    column = max(len(value) for value in values.values() if len(value) <= _LONGEST)
    names, rows = max(map(len, values)), []
    for name, value in values.items():
        own, before = (value, "") if len(value) <= _LONGEST else ("", f"{value}{_GAP}")
        rows.append((f"{name:{names}}{_GAP}{own:{column}}", f"{before}{shown[name]['source']}"))
    show(rows)


def workload(value: tff_mf.Workload) -> str:
    """Returns a workload as text.

    Example:
        >>> workload(tff_mf.Momentum(momentum=0.9))
        'prefix sums with momentum 0.9'
    """
    parts = []
    if isinstance(value, tff_mf.Momentum | tff_mf.MomentumWithRates):
        parts.append(f"momentum {value.momentum}")
    if isinstance(value, tff_mf.LearningRates):
        rates = value.rates
        if isinstance(rates, tff_mf.LinearSchedule):
            how = f"that rise for {rates.warmup_rounds} rounds and fall for {rates.cooldown_rounds}"
        else:
            how = f"of {len(rates)} rounds"
        parts.append(f"learning rates {how}")
    return f"prefix sums with {' and '.join(parts)}" if parts else "prefix sums"


def _words(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value) if name in _TYPED else f"{_rounding(name)(value)}{_UNITS.get(name, '')}"
    if isinstance(value, list | tuple):
        return _listed(value)
    return str(value)


def _rounding(name: str) -> Callable[[float], str]:
    if name in _UPWARDS:
        return digits.upwards
    if name == "seconds":
        return lambda value: digits.nearest(value, 2)
    if name in _UPWARDS_IN_FULL:
        return lambda value: digits.upwards(value, 6)
    return digits.downwards if name in _DOWNWARDS else digits.nearest


def _listed(values: Sequence[Any]) -> str:
    if not all(isinstance(value, int | float) for value in values):
        return ", ".join(map(str, values))
    if all(isinstance(value, int) for value in values):
        return " × ".join(map(str, values)) + " numbers"
    if len(values) <= _MOST_LISTED:
        return ", ".join(map(digits.parameter, values))
    return f"{len(values)} numbers, from {digits.parameter(values[0])} to {digits.parameter(values[-1])}"
