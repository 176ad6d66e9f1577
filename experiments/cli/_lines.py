"""What a command prints for people: labels in a column, with wrapped text beside them."""

import textwrap
from collections.abc import Iterable

import click

_WIDTH = 79
_LEAST = 30


def show(rows: Iterable[tuple[str, str]]) -> None:
    """Prints a label and a text a row; what has no text is left out."""
    rows = [(label, text) for label, text in rows if text]
    width = max((len(label) for label, _ in rows), default=0) + 2
    for label, text in rows:
        lines = textwrap.wrap(text, max(_LEAST, _WIDTH - width), break_long_words=False, break_on_hyphens=False)
        for index, line in enumerate(lines):
            click.echo(f"{'' if index else label:{width}}{line}")
