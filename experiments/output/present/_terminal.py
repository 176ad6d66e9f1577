"""Documents as lines of a terminal."""

import shutil
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from ..text import seen, spaced_as_it_is
from ._document import Block, Callout, Code, Facts, Figure, Listing, Paragraph, Section, Table

_NARROWEST = 40
_WIDEST = 120
_FALLBACK = 80
_GAP = "  "
# Levels of titles that have a line below them.
_LINED = 2


def width() -> int:
    """Returns the width of lines: the terminal's or COLUMNS, at most 120; 80 if neither is known."""
    return min(max(shutil.get_terminal_size((_FALLBACK, 24)).columns, _NARROWEST), _WIDEST)


def terminal(document: Section, *, level: int = 1) -> Iterator[str]:
    """Yields the lines of a document, no wider than the terminal, with empty lines between its blocks.

    Example:
        >>> list(terminal(Section("Title", [Paragraph("one"), Facts([("n", "20 rounds"), ("note", "")])])))
        ['Title', '=====', '', 'one', '', 'n  20 rounds']
    """
    if document.title:
        yield seen(document.title) + (":" if level > _LINED else "")
        yield from ["=-"[level - 1] * _columns(document.title)] if level <= _LINED else []
    first = not document.title
    for block in document.shown:
        lines = list(_lines(block, level))
        if lines and not first:
            yield ""
        yield from lines
        first = first and not lines


def folded(text: str, *, indent: str = "", first: str = "") -> list[str]:
    """Returns lines of whole words; the first begins with `first`, and later ones with `indent`.

    Example:
        >>> folded("one two", indent="  ")
        ['one two']
    """
    how = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, width(), initial_indent=first, subsequent_indent=indent, **how) or [""]


def _labelled(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yields a line for each label and its text, or more if the text is long."""
    column = max((_columns(label) for label, _ in rows), default=0) + len(_GAP)
    for label, text in rows:
        # A hash stands below a long label.
        fits = column + max(map(len, text.split()), default=0) <= width()
        yield from folded(label + " " * (column - _columns(label)) + text, indent=" " * column if fits else _GAP)


def _lines(block: Block, level: int) -> Iterable[str]:
    match block:
        case Section():
            return terminal(block, level=level + 1)
        case Paragraph() | Callout():
            return folded(seen(block.text)) if block.text else []
        case Listing():
            return [line for each in block.items for line in folded(seen(each.line), first="- ", indent=_GAP)]
        case Facts():
            return _labelled([(spaced_as_it_is(label), seen(text)) for label, text in block.shown])
        case Table():
            return _table(block)
        case Code():
            return [f"    {spaced_as_it_is(line)}" for line in block.lines]
        case Figure():
            return [*folded(seen(f"{block.chart.title}. {block.chart.note}")), "", *_table(block.values())]


def _table(block: Table) -> Iterator[str]:
    """Yields a table, in several parts if it is too wide, each with the columns of names."""
    rows = [[*map(seen, row)] for row in (block.header, *block.full)]
    widths = [max(map(_columns, column)) for column in zip(*rows, strict=True)]
    names = block.names
    widths[0] = max([widths[0], *(_columns(each.label) for each in block.remarks)])
    own = sum(widths[:names]) + len(_GAP) * (names - 1)
    for number, part in enumerate(_parts(widths, names, own)):
        if number:
            yield ""
        for row in rows:
            left = _GAP.join(row[at] + " " * (widths[at] - _columns(row[at])) for at in range(names))
            right = (" " * (widths[at] - _columns(row[at])) + row[at] for at in part)
            yield (left + "".join(f"{_GAP}{cell}" for cell in right)).rstrip()
    for each in block.remarks:
        first = seen(each.label)
        yield from folded(f"{first:{widths[0]}}{_GAP}{seen(each.text)}", indent=" " * (widths[0] + len(_GAP)))


def _parts(widths: Sequence[int], names: int, own: int) -> Iterator[list[int]]:
    """Yields groups of columns, after those of names, that fit side by side."""
    part: list[int] = []
    used = own
    for index in range(names, len(widths)):
        needed = widths[index] + len(_GAP)
        if part and used + needed > width():
            yield part
            part, used = [], own
        part.append(index)
        used += needed
    yield part


def _columns(text: str) -> int:
    """Returns the width of a text: combining marks have none."""
    return sum(not unicodedata.combining(character) for character in text)
