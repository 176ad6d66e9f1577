"""What commands print for people: Markdown and tables, by rich, as wide as the terminal."""

import shutil

import rich.console
import rich.markdown

_NARROWEST, _WIDEST, _FALLBACK = 40, 120, 80


def width() -> int:
    """Returns the width of lines: the terminal's or COLUMNS, at most 120; 80 if neither is known."""
    return min(max(shutil.get_terminal_size((_FALLBACK, 24)).columns, _NARROWEST), _WIDEST)


def markdown(text: str) -> None:
    """Prints Markdown."""
    rich.console.Console(width=width(), highlight=False).print(rich.markdown.Markdown(text, justify="left"))
