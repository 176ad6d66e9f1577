"""Progress on standard error: a bar on a terminal; elsewhere a line now and then, for work that takes minutes."""

import contextlib
import contextvars
import itertools
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

import click

_SECONDS_BETWEEN_LINES = 15.0
_ACCURACY = "accuracy_without_out_of_vocab_or_end_of_sentence"
_CLEARED_LINE = "\r\x1b[K"
_LONGEST_BAR = 36
_SHORTEST_BAR = 1
# What click writes beside the bar: gaps, brackets, percentage and remaining time.
_BESIDE_BAR = len("  []  100%  00:00:00  ")

_T = TypeVar("_T")
_Advance = Callable[[int, str], None]


def _silent(steps: int, note: str) -> None:
    """Shows nothing."""


_advance: contextvars.ContextVar[_Advance] = contextvars.ContextVar("advance", default=_silent)


@contextlib.contextmanager
def bar(label: str, total: int | None) -> Iterator[_Advance]:
    """Yields a function to call with the number of steps done and a note; `step` calls it too, from anywhere.

    Nothing is written unless standard error is a terminal.

    Args:
        label: Name of the work.
        total: Number of steps; `None` if it is not known.
    """
    if not sys.stderr.isatty():
        yield _silent
        return
    unknown = itertools.repeat("") if total is None else None
    # The next line would not overwrite one that the terminal wraps.
    room = max(0, _columns() - 1 - len(label) - _BESIDE_BAR)
    longest = min(_LONGEST_BAR, max(_SHORTEST_BAR, room // 2))
    with click.progressbar(
        unknown,
        length=total,
        label=label,
        item_show_func=lambda note: (note or "")[: max(0, room - longest)],
        width=longest,
        show_eta=room > 0,
        file=sys.stderr,
    ) as shown:
        token = _advance.set(shown.update)
        try:
            yield shown.update
        finally:
            _advance.reset(token)


def step(note: str = "") -> None:
    """Advances the open bar, if there is one; `note` names the next step."""
    _advance.get()(1, note)


def steps(items: Iterable[_T], total: int, label: str) -> Iterator[_T]:
    """Yields `items`, and shows a bar."""
    with bar(label, total) as advance:
        for item in items:
            yield item
            advance(1, "")


def say(text: str) -> None:
    """Writes a message above the bar, if one is open; on a terminal, wrapped between words."""
    if sys.stderr.isatty():
        text = "\n".join(textwrap.wrap(text, _columns(), break_long_words=False, break_on_hyphens=False))
    click.echo(f"{_CLEARED_LINE if _advance.get() is not _silent else ''}{text}", err=True)


@contextlib.contextmanager
def rounds(total: int, label: str, unit: str = "round") -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """Yields a function to call after every round, or other unit, with its number and metrics.

    The remaining time is estimated from the rounds of this process, which are not all rounds of a resumed run.
    """
    if sys.stderr.isatty():
        with bar(label, total) as advance:
            done = 0

            def show(round_number: int, metrics: Mapping[str, float]) -> None:
                nonlocal done
                accuracy = f"accuracy {metrics[_ACCURACY]:.4f}" if _ACCURACY in metrics else ""
                advance(round_number - done, accuracy)
                done = round_number

            yield show
        return
    start = last = time.monotonic()
    before: int | None = None

    def report(round_number: int, metrics: Mapping[str, float]) -> None:
        nonlocal last, before
        before = round_number - 1 if before is None else before
        now = time.monotonic()
        if round_number < total and now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        left = (now - start) / max(1, round_number - before) * (total - round_number)
        shown = f", accuracy {metrics[_ACCURACY]:.4f}" if _ACCURACY in metrics else ""
        print(f"{label}: {unit} {round_number} of {total}, {left:.0f} s left{shown}", file=sys.stderr, flush=True)

    yield report


def _columns() -> int:
    """Returns the width of the terminal on standard error."""
    if "COLUMNS" not in os.environ:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return shutil.get_terminal_size().columns


class _Search(Protocol):
    @property
    def rounds(self) -> int: ...

    @property
    def iteration(self) -> int: ...

    @property
    def error(self) -> float: ...


@contextlib.contextmanager
def search() -> Iterator[Callable[[_Search], None]]:
    """Yields a function to call after every iteration of an optimizer; a search of a few seconds writes no lines."""
    if sys.stderr.isatty():
        with bar("optimize", None) as advance:
            yield lambda where: advance(1, f"{where.rounds} rounds, error {where.error:.6g}")
        return
    last = time.monotonic()

    def report(where: _Search) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        print(
            f"optimize: {where.rounds} rounds, iteration {where.iteration}, error {where.error:.6g}",
            file=sys.stderr,
            flush=True,
        )

    yield report
