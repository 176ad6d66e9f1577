"""The parts of a document. All texts are plain: a renderer escapes what its medium would take for markup."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..figures import Chart

# Most values of a figure that texts show, and most for which a page has a table.
_MOST_IN_TEXT = 12


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A text, not shown if it is empty; a quiet one is a remark on what is above it."""

    text: str
    quiet: bool = False


@dataclasses.dataclass(frozen=True)
class Callout:
    """The text that comes first; a bad one says that something is wrong."""

    text: str
    bad: bool = False


@dataclasses.dataclass(frozen=True)
class Item:
    """An entry of a list.

    Attributes:
        text: The text.
        label: What it is about.
        state: "critical", "warning", "note", "violated", "assumed" or "holds"; empty if it has none.
    """

    text: str
    label: str = ""
    state: str = ""

    @property
    def lead(self) -> str:
        """The label with a colon, unless it is a sentence."""
        return self.label if not self.label or self.label[-1] in ".?" else f"{self.label}:"

    @property
    def line(self) -> str:
        """Label and text."""
        return f"{self.lead} {self.text}".strip()


@dataclasses.dataclass(frozen=True)
class Listing:
    """A list."""

    items: Sequence[Item]


@dataclasses.dataclass(frozen=True)
class Facts:
    """Labels with a text beside each; those without a text are not shown."""

    rows: Sequence[tuple[str, str]]

    @property
    def shown(self) -> list[tuple[str, str]]:
        """The rows that have a text."""
        return [(label, text) for label, text in self.rows if text]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        header: Titles of the columns.
        rows: Rows of as many cells, or of two: a name, and a text in place of all other cells.
        name: What it shows.
        names: How many columns, from the first, have names in them and no figures.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    name: str
    names: int = 1

    @property
    def full(self) -> list[Sequence[str]]:
        """The rows with a cell in each column."""
        return [row for row in self.rows if len(row) == len(self.header)]

    @property
    def remarks(self) -> list[Item]:
        """The rows with a text in place of their cells."""
        return [Item(label=row[0], text=" ".join(row[1:])) for row in self.rows if len(row) != len(self.header)]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture of a chart."""

    chart: Chart

    def values(self, most: int = _MOST_IN_TEXT) -> Table:
        """Returns the values of the picture, of at most so many places and of the last one."""
        curves = self.chart.named
        places = sorted({at for curve in curves for at, _ in curve.points})
        some = sorted({*places[:: max(1, -(-len(places) // most))], *places[-1:]})
        by_place = [dict(curve.points) for curve in curves]
        rows = [[_place(at), *(self._value(each[at]) if at in each else "" for each in by_place)] for at in some]
        title = self.chart.title
        return Table([self.chart.x.label, *(curve.name for curve in curves)], rows, f"values of {title}")

    def _value(self, value: float | None) -> str:
        return "∞" if value is None or math.isinf(value) else self.chart.value(value)


@dataclasses.dataclass(frozen=True)
class Code:
    """Lines that are shown as they are."""

    lines: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part with a title, of blocks and sections."""

    title: str
    blocks: Sequence[Block | None]

    @property
    def shown(self) -> list[Block]:
        """The blocks that there are."""
        return [each for each in self.blocks if each is not None]


Block = Paragraph | Callout | Listing | Facts | Table | Figure | Code | Section


@dataclasses.dataclass(frozen=True)
class Document(Section):
    """A whole document: the first section, which has its title and all others."""


def _place(at: float) -> str:
    return f"{at:,.0f}" if float(at).is_integer() else f"{at:.3g}"
