"""What commands print for people: paragraphs, headings, lists and tables, by rich, as wide as the terminal.

A block is a text, a `Facts` or a `Table`. A text that begins with `# ` or `## ` is a heading, and one whose lines begin
with `- ` a list; one in `**` is the answer, and all others are paragraphs. In a terminal texts are shown as they are,
without any other markup.
"""

# rich is imported by who prints: its import takes a tenth of a second, which `--json` need not wait for.

import dataclasses
import io
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from tff_mf.numerics.digits import rounded_up

# Unicode categories of invisible characters, which can hide or reorder the visible ones; joiners cannot.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"
_NARROWEST, _WIDEST, _FALLBACK = 40, 120, 80


@dataclasses.dataclass(frozen=True)
class Facts:
    """Labels with a text beside each; those without a text are not shown."""

    rows: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, whose first columns (`names`) have names in them and no figures."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1


@dataclasses.dataclass(frozen=True)
class Markdown:
    """A page that is shown as rich shows Markdown."""

    text: str


Block = str | Facts | Table | Markdown


def width() -> int:
    """Returns the width of lines: the terminal's or COLUMNS, at most 120; 80 if neither is known."""
    return min(max(shutil.get_terminal_size((_FALLBACK, 24)).columns, _NARROWEST), _WIDEST)


def show(blocks: Iterable[Block]) -> None:
    """Prints blocks with empty lines between them; empty texts are left out."""
    printed, encoding = text(blocks, terminal=sys.stdout.isatty()), sys.stdout.encoding or "utf-8"
    # A terminal without Greek letters shows question marks in their place.
    sys.stdout.write(printed.encode(encoding, "replace").decode(encoding))


def text(blocks: Iterable[Block], *, terminal: bool = False) -> str:
    """Returns what `show` prints, on a terminal with its styles, without spaces at the ends of lines."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(width=width(), highlight=False, markup=False, emoji=False, file=file, force_terminal=terminal)
    for number, block in enumerate(block for block in blocks if block):
        if number:
            console.print()
        console.print(_rendered(block))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _rendered(block: Block) -> Any:
    """Returns what rich prints for a block."""
    from rich import box, table
    from rich.text import Text

    if isinstance(block, Markdown):
        # Imported here: it takes as long as everything else of `account`.
        from rich import markdown

        return markdown.Markdown(block.text, justify="left")
    if isinstance(block, Table):
        drawn = table.Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
        for index, title in enumerate(block.header):
            is_name = index < block.names
            drawn.add_column(Text(title), justify="left" if is_name else "right", no_wrap=is_name, overflow="fold")
        rows = block.rows
    elif isinstance(block, Facts) or block.startswith("- "):
        drawn = table.Table.grid(padding=(0, 2, 0, 0))
        drawn.add_column(no_wrap=True)
        drawn.add_column(overflow="fold")
        if isinstance(block, Facts):
            rows = [row for row in block.rows if row[1]]
        else:
            rows = [("-", line.removeprefix("- ")) for line in block.splitlines()]
    else:
        strong = block.startswith(("#", "**"))
        return Text(seen(block.strip("#* ") if strong else block), style="bold" if strong else "")
    for row in rows:
        drawn.add_row(*(Text(seen(cell)) for cell in row))
    return drawn


def seen(text: str) -> str:
    """Returns a text in one line, with a mark for each character that would hide or reorder the others.

    Example:
        >>> seen(f"us {chr(27)}[8m"), seen(f"{chr(0x202e)}ε≤0")
        ('us �[8m', '�ε≤0')
    """
    line = " ".join(text.split())
    return "".join(
        "\ufffd" if unicodedata.category(character) in _UNSEEN and character not in _JOINERS else character
        for character in line
    )


def up(value: float | None) -> str:
    """Returns a figure of a guarantee, rounded up; `None` in JSON is infinite."""
    return "∞" if value is None else rounded_up(value)
