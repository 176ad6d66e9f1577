"""Numbers and tables as text: labels, significant digits, and lines no wider than the terminal."""

import itertools
import json
import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

import tff_mf
from tff_mf.base import strict_json

from ..configuration.layers import Layer
from ..configuration.presets import Preset
from ..output import digits

_NARROWEST = 40
_WIDEST = 120
_FALLBACK = 80
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


def width() -> int:
    """Returns the width of lines: the terminal's or COLUMNS, at most 120; 80 if neither is known."""
    return min(max(shutil.get_terminal_size((_FALLBACK, 24)).columns, _NARROWEST), _WIDEST)


def folded(text: str, *, indent: str = "") -> list[str]:
    """Returns lines of whole words; later ones begin with `indent`.

    Example:
        >>> folded("one two", indent="  ")
        ['one two']
    """
    return textwrap.wrap(text, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]


def _entries(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line per entry, or more if it is long; skips entries that are None."""
    shown = {name: value for name, value in result.items() if value is not None}
    yield from labelled(
        [(_LABELS.get(name, name.replace("_", " ")), _words(name, value)) for name, value in shown.items()]
    )


def labelled(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yields a line for each label and its text, or more if the text is long; skips rows without a text.

    Example:
        >>> list(labelled([("n", "20 rounds"), ("note", "")]))
        ['n  20 rounds']
    """
    rows = [(label, text) for label, text in rows if text]
    column = max((len(label) for label, _ in rows), default=0) + len(_GAP)
    for label, text in rows:
        yield from folded(f"{label:{column}}{text}", indent=" " * column)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields a table, in several parts if it is too wide, each with the first column.

    Args:
        header: Titles of the columns.
        rows: Rows of as many cells, or of two: a name, and a text in place of all other cells.
    """
    full = [row for row in rows if len(row) == len(header)]
    widths = [max(map(_columns, column)) for column in zip(header, *full, strict=True)]
    widths[0] = max(_columns(row[0]) for row in (header, *rows))
    for number, part in enumerate(_parts(widths)):
        if number:
            yield ""
        for row in (header, *full):
            cells = [_padded(row[index], widths[index]) for index in part]
            yield (row[0] + " " * (widths[0] - _columns(row[0])) + "".join(f"{_GAP}{cell}" for cell in cells)).rstrip()
    for row in rows:
        if len(row) != len(header):
            yield from folded(f"{row[0]:{widths[0]}}{_GAP}{row[1]}", indent=" " * (widths[0] + len(_GAP)))


def markdown(text: str) -> Iterator[str]:
    r"""Yields a page of paragraphs, lists and tables as wide as the terminal; the first two columns label a row.

    Example:
        >>> list(markdown("one\n\n| a | b | c |\n|---|---|---|\n| d | with | 1 |"))
        ['one', '', 'a  b     c', 'd  with  1']
    """
    for is_table, group in itertools.groupby(text.splitlines(), key=lambda line: line.startswith("|")):
        if is_table:
            header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in group)
            first = max(_columns(row[0]) for row in (header, *rows))
            named = [[f"{row[0]:{first}}{_GAP}{row[1]}", *row[2:]] for row in (header, *rows)]
            yield from table(named[0], named[1:])
        else:
            for line in group:
                yield from folded(line, indent="  " if line.startswith("- ") else "")


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


def blocks(*parts: str | Iterable[str] | None) -> Iterator[str]:
    """Yields texts, folded, and other blocks of lines, with an empty line between them; skips those that are empty."""
    for number, part in enumerate(filter(None, parts)):
        if number:
            yield ""
        yield from folded(part) if isinstance(part, str) else part


def paragraphs(*texts: str | None) -> None:
    """Prints texts as wide as the terminal, with empty lines between them; skips those that are empty or None."""
    for line in blocks(*texts):
        click.echo(line)


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


def _parts(widths: Sequence[int]) -> Iterator[list[int]]:
    """Yields groups of columns, after the first, that fit side by side."""
    part: list[int] = []
    used = widths[0]
    for index in range(1, len(widths)):
        needed = widths[index] + len(_GAP)
        if part and used + needed > width():
            yield part
            part, used = [], widths[0]
        part.append(index)
        used += needed
    yield part


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


def _columns(text: str) -> int:
    """Returns the width of a text: combining marks have none."""
    return sum(not unicodedata.combining(character) for character in text)


def _padded(text: str, columns: int) -> str:
    return " " * (columns - _columns(text)) + text
