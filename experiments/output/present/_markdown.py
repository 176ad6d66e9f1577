"""Documents as Markdown that fits a terminal of 80 columns."""

import re
import textwrap
from collections.abc import Iterable, Iterator

from ..text import seen, spaced_as_it_is
from ._document import Block, Callout, Code, Facts, Figure, Item, Listing, Paragraph, Section, Table

_WIDTH = 79
# Text that begins a heading, a list or a table in Markdown at the beginning of a line.
_MARKUP = re.compile(r" (?=[#>*|]|`{3}|~{3}|[-+=_]+(?: |$)|\d+[.)](?: |$))")
# Text that begins a tag, a comment or a character reference in HTML, which Markdown passes on.
_HTML = re.compile(r"<(?=[A-Za-z/!?])|&(?=#|\w+;)")
_UNBROKEN = "\0"


def markdown(document: Section) -> str:
    r"""Returns a document as Markdown.

    Formal guarantee: no text in it begins a heading, a list, a table, a tag or a line of its own.

    Example:
        >>> print(markdown(Section("Title", [Paragraph("one <b>"), Listing([Item("two")])])), end="")
        # Title
        <BLANKLINE>
        one \<b>
        <BLANKLINE>
        - two
    """
    return "\n\n".join(_blocks(document, 1)) + "\n"


def _blocks(section: Section, level: int) -> Iterator[str]:
    yield f"{'#' * level} {seen(section.title)}"
    for block in section.shown:
        if isinstance(block, Section):
            yield from _blocks(block, level + 1)
        elif text := "\n".join(_lines(block)):
            yield text


def _lines(block: Block) -> Iterable[str]:
    match block:
        case Paragraph():
            return [_wrapped(block.text, "")] if block.text else []
        case Callout():
            return [_wrapped(f"**{block.text}**", "")]
        case Listing():
            return map(_bullet, block.items)
        case Facts():
            return (_bullet(Item(label=label, text=text)) for label, text in block.shown)
        case Table():
            return _table(block)
        case Code():
            # Indented as a block of code, so that nothing in a line ends the block.
            return [f"    {spaced_as_it_is(line)}" for line in block.lines]
        case Figure():
            return [_wrapped(f"{block.chart.title}. {block.chart.note}", ""), "", *_table(block.values())]
        case Section():
            return _blocks(block, 2)


def _bullet(item: Item) -> str:
    return f"- {_wrapped(item.line, '  ')[2:]}"


def _table(block: Table) -> list[str]:
    rows = [[seen(cell).replace("|", "\\|") for cell in row] for row in (block.header, *block.full)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    remarks = ["", *map(_bullet, block.remarks)] if block.remarks else []
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:], *remarks]


def _wrapped(text: str, indent: str) -> str:
    # A text of others must not look like a part of the document: it has no line breaks, and no line begins with markup.
    line = _MARKUP.sub(_UNBROKEN, _HTML.sub(r"\\\g<0>", seen(text)))
    filled = textwrap.fill(
        line, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace(_UNBROKEN, " ")
