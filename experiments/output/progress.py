"""Progress on standard error: a bar on a terminal; elsewhere a line now and then, for work that takes minutes."""

import contextlib
import contextvars
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import click

_SECONDS_BETWEEN_LINES = 15.0
# Rounds that an estimate of the remaining time rests on.
_FEWEST_TIMED = 3
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

    Nothing is written unless standard error is a terminal. The total is `None` if it is not known.
    """
    if not sys.stderr.isatty():
        yield _silent
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
