"""Asks on a terminal for what only the user knows, and writes the file that scripts fill in."""

import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import click

from tff_mf.errors import InputError, InputValueError

from ..output import files, strict_json
from ..reports import questions
from ..run_folder.names import ANSWERS
from . import _screens

_DRAFT = "answers.draft.json"
_OPEN = "-"


def ask(folder: pathlib.Path) -> pathlib.Path:
    """Asks every question, one by one, and writes the answers to a run's folder; earlier ones are the defaults.

    Formal guarantee: `answers.json` is the file of before, to the byte, until every question was asked, and then the
    new one, whole.

    Args:
        folder: The run's folder.

    Returns:
        The file.

    Raises:
        InputValueError: If there is no terminal to ask on.
        click.Abort: If the input ended or was interrupted. What was answered until then is kept beside the file, for
            the next time.
    """
    path = folder / ANSWERS
    if not sys.stdin.isatty():
        raise InputValueError(
            f"--answer asks on a terminal, and there is none: `tff-mf report {folder} --questions` writes {path}, to "
            "fill in with an editor or a program."
        )
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise InputValueError(f"answers={str(path)!r} cannot be written: it is a folder, or in one that is closed.")
    answers, draft = _earlier(folder), folder / _DRAFT
    _say(
        f"{len(questions.QUESTIONS)} questions; without all answers no ε is stated. Enter takes what is in brackets, "
        f"or leaves a question open; {_OPEN} takes an answer back."
    )
    asked: dict[str, Any] = {}
    try:
        for number, question in enumerate(questions.QUESTIONS, start=1):
            click.echo(err=True)
            _say(f"{number}. {question.text}")
            asked[question.name] = _answer(question, answers[question.name])
    except (click.Abort, KeyboardInterrupt):
        if asked:
            files.write_atomically(draft, questions.as_text({**answers, **asked}))
        kept = "; what you answered is kept for the next time" if asked else ""
        click.echo(f"\nstopped: {path} is as it was{kept}", err=True)
        raise click.Abort from None
    files.write_atomically(path, questions.as_text(asked))
    draft.unlink(missing_ok=True)
    missing = [name for name, answer in asked.items() if answer is None]
    click.echo(f"\nwritten to {path}" + (f"; still open: {', '.join(missing)}" if missing else ""), err=True)
    return path


def write_form(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Writes the file that `answers.json` is to be: a key for each question, with the answers that there are.

    Args:
        folder: The run's folder.
        out: The file.

    Raises:
        InputValueError: If the file holds something, or cannot be written, or the answers that there are are damaged.
    """
    # A shell that was told to write there has emptied it already.
    if os.path.lexists(out) and not (out.is_file() and out.stat().st_size == 0):
        raise InputValueError(
            f"out={str(out)!r} is there already, and is not overwritten: fill it in, change answers with `tff-mf "
            f"report {folder} --answer`, or name another file with --out."
        )
    own = folder / ANSWERS
    given = {} if own.is_file() and own.stat().st_size == 0 else questions.read_answers(folder)
    try:
        files.write_atomically(out, questions.as_text(given))
    except OSError as error:
        raise InputValueError(f"out={str(out)!r} cannot be written: {error.strerror or error}.") from error
    for question in questions.QUESTIONS:
        _say(f"{question.name}: {question.text}", indent="  ")
    # A link to it, or the same path spelled otherwise, is the same file.
    there = own.exists() and out.samefile(own)
    then = "" if there else f", and copy it to {own}"
    _say(f"written to {out}: put an answer in place of each null{then}; then tff-mf report {folder}")


def _say(text: str, *, indent: str = "") -> None:
    """Writes a text to standard error, in lines that fit the terminal."""
    for line in _screens.folded(text, indent=indent):
        click.echo(line, err=True)


def _answer(question: questions.Question, default: Any) -> Any:
    """Returns an answer that fits, or `None` if the question is left open."""
    while True:
        shown = "" if default is None else f" [{_shown(default)}]"
        typed = click.prompt(f"{question.name}{shown}", default="", show_default=False, err=True).strip()
        if not typed:
            return default
        if typed == _OPEN:
            return None
        try:
            answer = question.parse(typed)
        except ValueError:
            answer = None
        if answer is not None and question.fits(answer):
            return answer
        click.echo(f"{typed!r:.80} does not answer that.", err=True)


def _shown(answer: Any) -> str:
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    return str(answer)


def _earlier(folder: pathlib.Path) -> Mapping[str, Any]:
    """Returns the answers to start from: those of the file or, if it was broken off since, of the last session.

    What was taken back there is open. Of a damaged file, every answer that fits its question is kept.
    """
    found: dict[str, Any] = {question.name: None for question in questions.QUESTIONS}
    for path in (folder / ANSWERS, folder / _DRAFT):
        if not os.path.lexists(path) or (path.name == _DRAFT and _is_old(path)):
            continue
        try:
            given = strict_json.loads(path.read_text(encoding="utf-8"))
            questions.checked(given, str(path))
        except (OSError, ValueError, RecursionError, InputError):
            click.echo(f"{path} is empty or damaged: what can be read of it is kept, the rest is asked anew.", err=True)
            given = _readable(path)
        fitting = (each for each in questions.QUESTIONS if each.name in given)
        found |= {
            each.name: given[each.name] for each in fitting if given[each.name] is None or each.fits(given[each.name])
        }
    return found


def _is_old(draft: pathlib.Path) -> bool:
    """Returns whether the answers were changed after a session was broken off: what was typed there is no default."""
    answers = draft.with_name(ANSWERS)
    try:
        return answers.stat().st_mtime_ns > draft.stat().st_mtime_ns
    except OSError:
        return False


def _readable(path: pathlib.Path) -> Mapping[str, Any]:
    """Returns what a damaged file says, nothing if it is no JSON object."""
    try:
        given = strict_json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return given if isinstance(given, Mapping) else {}
