"""The screen of --show: all settings of a run, and where each is from."""

from collections.abc import Mapping
from typing import Any

import click

from ..configuration import presets
from ..configuration.layers import Layer
from . import _options

# Characters of the longest value that the column of values is wide enough for.
_LONGEST_VALUE = 16
_WORDS = {"None": "–", "True": "yes", "False": "no"}


def show(preset: presets.Preset | None, layer: Layer, shown: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
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
        _options.report({**about, **notes, **published, "run": shown}, as_json=True)
        return
    if preset:
        published = ""
        if row and row.published:
            results = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.published.items())
            published = f"published ({row.source}): {results}"
        _options.paragraphs(f"{preset.name}: {preset.title}. {preset.paper}.", preset.notes, published)
        click.echo()
    values = {name: _WORDS.get(str(entry["value"]), str(entry["value"])) for name, entry in shown.items()}
    names, column = max(map(len, values)), max(len(value) for value in values.values() if len(value) <= _LONGEST_VALUE)
    rows = []
    for name, value in values.items():
        own, before = (value, "") if len(value) <= _LONGEST_VALUE else ("", f"{value}  ")
        rows.append((f"{name:{names}}  {own:{column}}", f"{before}{shown[name]['source']}"))
    _options.show(rows)
