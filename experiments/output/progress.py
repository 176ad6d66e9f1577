"""Progress on standard error: a bar on a terminal; elsewhere a line now and then, for work that takes minutes."""

import contextlib
import contextvars
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

import click

_SECONDS_BETWEEN_LINES = 15.0
_ACCURACY = "accuracy_without_out_of_vocab_or_end_of_sentence"

_T = TypeVar("_T")
_Advance = Callable[[int, str], None]


def _silent(steps: int, note: str) -> None:
    """Shows nothing."""


def _print(text: str) -> None:
    """Writes a line where no bar is open."""
    click.echo(text, err=True)


_advance: contextvars.ContextVar[_Advance] = contextvars.ContextVar("advance", default=_silent)
_say: contextvars.ContextVar[Callable[[str], None]] = contextvars.ContextVar("say", default=_print)


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
    # Without a terminal nothing needs it, and its import takes a tenth of a second.
    from rich import console, progress, table

    shown = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=None, table_column=table.Column(ratio=1)),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(table_column=table.Column(no_wrap=True)),
        progress.TextColumn("{task.fields[note]}", markup=False, table_column=table.Column(ratio=1, no_wrap=True)),
        console=console.Console(file=sys.stderr, highlight=False, markup=False, emoji=False),
        redirect_stdout=False,
        redirect_stderr=False,
        expand=True,
    )
    task = shown.add_task(label, total=total, note="")

    def advance(count: int, note: str) -> None:
        shown.update(task, advance=count, note=note)

    with shown:
        tokens = _advance.set(advance), _say.set(shown.console.print)
        try:
            yield advance
        finally:
            _advance.reset(tokens[0])
            _say.reset(tokens[1])


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
    """Writes a message above the bar, if one is open."""
    _say.get()(text)


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
