"""What commands show people: paragraphs, headings, lists and tables, by rich, as wide as the terminal; and progress.

A block is a text, a `Facts` or a `Table`. A text that begins with `# ` or `## ` is a heading, and one whose lines begin
with `- ` a list; one in `**` is the answer, and all others are paragraphs. In a terminal texts are shown as they are,
without any other markup.

Progress is on standard error: a bar on a terminal; elsewhere a line now and then, for work that takes minutes.
"""

# rich is imported by who prints: its import takes a tenth of a second, which `--json` need not wait for.

import contextlib
import dataclasses
import io
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from tff_mf.numerics.digits import rounded_up

# Unicode categories of invisible characters, which can hide or reorder the visible ones; joiners cannot.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"
_NARROWEST, _WIDEST, _FALLBACK = 40, 120, 80

_SECONDS_BETWEEN_LINES = 15.0
# Rounds that an estimate of the remaining time rests on.
_FEWEST_TIMED = 3
_ACCURACY = "accuracy_without_out_of_vocab_or_end_of_sentence"

_Advance = Callable[[int, str], None]


@dataclasses.dataclass(frozen=True)
class Facts:
    """Labels with a text beside each; those without a text are not shown."""

    rows: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, whose first column has names in it and no figures."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


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
            is_name = index == 0
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


def _print(text: str) -> None:
    """Writes a line where no bar is open."""
    click.echo(text, err=True)


# What advances the bars that are open, and prints above them; the last one is the innermost.
_open: list[tuple[_Advance, Callable[[str], None]]] = []


@contextlib.contextmanager
def bar(label: str, total: int | None) -> Iterator[_Advance]:
    """Yields a function to call with the number of steps done and a note; `step` calls it too, from anywhere.

    Nothing is written unless standard error is a terminal. The total is `None` if it is not known.
    """
    if not sys.stderr.isatty():
        yield lambda steps, note: None
        return
    # Without a terminal nothing needs it, and its import takes a tenth of a second.
    from rich import console, progress

    with progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(20),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=console.Console(file=sys.stderr, highlight=False, markup=False, emoji=False),
        redirect_stdout=False,
        redirect_stderr=False,
    ) as shown:
        task = shown.add_task(label, total=total, note="")

        def advance(count: int, note: str) -> None:
            shown.update(task, advance=count, note=note)

        _open.append((advance, shown.console.print))
        try:
            yield advance
        finally:
            _open.pop()


def step(note: str = "") -> None:
    """Advances the open bar, if there is one; `note` names the next step."""
    if _open:
        _open[-1][0](1, note)


def say(text: str) -> None:
    """Writes a message above the bar, if one is open."""
    (_open[-1][1] if _open else _print)(text)


class _Lines:
    """When a line is due, of work that takes minutes, where there is no bar."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def due(self, *, at_once: bool = False) -> bool:
        """Returns whether a line is due."""
        now = time.monotonic()
        if sys.stderr.isatty() or (now - self._last < _SECONDS_BETWEEN_LINES and not at_once):
            return False
        self._last = now
        return True


@contextlib.contextmanager
def rounds(total: int, label: str, unit: str = "round") -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """Yields a function to call after every round, or other unit, with its number and metrics.

    The remaining time is estimated from rounds after the first of this process, whose time is mostly tracing.
    """
    lines, done = _Lines(), 0
    first: tuple[int, float] | None = None
    with bar(label, total) as advance:

        def report(number: int, metrics: Mapping[str, float]) -> None:
            nonlocal first, done
            first = first or (number, time.monotonic())
            accuracy = f"validation accuracy {metrics[_ACCURACY]:.4f}" if _ACCURACY in metrics else ""
            advance(number - done, accuracy)
            done = number
            if lines.due(at_once=number >= total):
                timed, left = number - first[0], ""
                if timed >= _FEWEST_TIMED and number < total:
                    left = f"{(time.monotonic() - first[1]) / timed * (total - number):.0f} s left"
                _print(", ".join(filter(None, (f"{unit} {number} of {total}", left, accuracy))))

        yield report


@contextlib.contextmanager
def search() -> Iterator[Callable[[Any], None]]:
    """Yields a function to call after every iteration of an optimizer; a search of a few seconds writes no lines."""
    lines = _Lines()
    with bar("optimize", None) as advance:

        def report(where: Any) -> None:
            advance(1, f"{where.rounds} rounds, error {where.error:.6g}")
            if lines.due():
                _print(f"optimize: {where.rounds} rounds, iteration {where.iteration}, error {where.error:.6g}")

        yield report
