"""A progress bar on a terminal, a line now and then elsewhere; always on standard error."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

_SECONDS_BETWEEN_LINES = 15.0
_SECONDS_BETWEEN_SEARCH_LINES = 2.0
_ACCURACY = "accuracy_without_out_of_vocab_or_end_of_sentence"


@contextlib.contextmanager
def rounds(total: int, label: str) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """Yields a function to call after every round with its number and metrics.

    The time that is left is judged by the rounds of this process: a run that was resumed had its first ones elsewhere.
    """
    if sys.stderr.isatty():
        # Searches report here too, and run where only floor 1 is installed.
        import tqdm

        with tqdm.tqdm(total=total, desc=label, unit="round") as bar:

            def advance(round_number: int, metrics: Mapping[str, float]) -> None:
                if not bar.n:
                    bar.initial = bar.n = bar.last_print_n = round_number - 1
                if _ACCURACY in metrics:
                    bar.set_postfix(accuracy=f"{metrics[_ACCURACY]:.4f}")
                bar.update(round_number - bar.n)

            yield advance
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
        print(f"{label}: round {round_number} of {total}, {left:.0f} s left{shown}", file=sys.stderr, flush=True)

    yield report


class _Search(Protocol):
    @property
    def rounds(self) -> int: ...

    @property
    def iteration(self) -> int: ...

    @property
    def error(self) -> float: ...


def search() -> Callable[[_Search], None]:
    """Returns a function to call after every iteration of an optimizer; a search below two seconds stays silent."""
    last = time.monotonic()

    def report(where: _Search) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_SEARCH_LINES:
            return
        last = now
        print(
            f"optimize: {where.rounds} rounds, iteration {where.iteration}, error {where.error:.6g}",
            file=sys.stderr,
            flush=True,
        )

    return report
