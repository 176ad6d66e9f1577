"""Asks the operator's questions on a terminal, or writes them to a file to fill in."""

import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import click

from tff_mf.base import strict_json
from tff_mf.base.errors import InputError, InputValueError

from ..output import files
from ..output.present import folded
from ..reports import questions
from ..runs.names import ANSWERS

_DRAFT = "answers.draft.json"
_OPEN = "-"


def ask(folder: pathlib.Path) -> pathlib.Path:
    """Asks every question, one by one, and writes the answers to a run's folder; earlier answers are the defaults.

    Formal guarantee: `answers.json` does not change until every question was asked, and is then replaced atomically.

    Args:
        folder: The run's folder.

    Returns:
        The file.

    Raises:
        InputValueError: If there is no terminal to ask on.
        click.Abort: If the input ended or was interrupted. The answers so far are kept beside the file, for the next
            time.
    """
    path = folder / ANSWERS
    if not sys.stdin.isatty():
        raise InputValueError(
            f"--answer asks on a terminal, and there is none: `tff-mf report {folder} --questions` writes {path}, to "
            "fill in with an editor or a program."
        )
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise InputValueError(f"answers={str(path)!r} cannot be written: it is a folder, or its folder is read-only.")
    answers, draft = _earlier(folder), folder / _DRAFT
    _say(
        f"{len(questions.ASKED)} questions; until all but the last are answered, ε is provisional. Enter accepts the "
        f"answer in brackets, or leaves a question open; {_OPEN} withdraws an answer."
    )
    asked: dict[str, Any] = {}
    try:
        for number, question in enumerate(questions.ASKED, start=1):
            click.echo(err=True)
            _say(f"{number}. {question.text}")
            asked[question.name] = _answer(question, answers[question.name])
    except (click.Abort, KeyboardInterrupt):
        if asked:
            files.write_atomically(draft, questions.as_text({**answers, **asked}))
        kept = "; your answers so far are kept for the next time" if asked else ""
        click.echo(f"\nstopped: {path} is unchanged{kept}", err=True)
        raise click.Abort from None
    files.write_atomically(path, questions.as_text(asked))
    draft.unlink(missing_ok=True)
    missing = [each.name for each in questions.QUESTIONS if asked[each.name] is None]
    click.echo(f"\nwritten to {path}" + (f"; still open: {', '.join(missing)}" if missing else ""), err=True)
    return path


def write_form(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Writes a file to fill in and use as `answers.json`: a key for each question, with the existing answers.

    Args:
        folder: The run's folder.
        out: The file.

    Raises:
        InputValueError: If the file is not empty or cannot be written, or the existing answers are damaged.
    """
    # A shell that redirects its output there has emptied it already.
    if os.path.lexists(out) and not (out.is_file() and out.stat().st_size == 0):
        raise InputValueError(
            f"out={str(out)!r} exists, and is not overwritten: fill it in, change answers with `tff-mf report "
            f"{folder} --answer`, or name another file with --out."
        )
    own = folder / ANSWERS
    given = {} if own.is_file() and own.stat().st_size == 0 else questions.read_answers(folder)
    try:
        files.write_atomically(out, questions.as_text(given))
    except OSError as error:
        raise InputValueError(f"out={str(out)!r} cannot be written: {error.strerror or error}.") from error
    for question in questions.ASKED:
        _say(f"{question.name}: {question.text}", indent="  ")
    # A link to it, or another spelling of its path, is the same file.
    there = own.exists() and out.samefile(own)
    then = "" if there else f", and copy it to {own}"
    _say(f"written to {out}: replace each null with an answer{then}; then run tff-mf report {folder}")


def _say(text: str, *, indent: str = "") -> None:
    """Writes a text to standard error, wrapped to the terminal."""
    for line in folded(text, indent=indent):
        click.echo(line, err=True)


def _answer(question: questions.Question, default: Any) -> Any:
    """Returns a valid answer, or `None` if the question is left open."""
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
        click.echo(f"{typed!r:.80} does not answer this question.", err=True)


def _shown(answer: Any) -> str:
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    return str(answer)


def _earlier(folder: pathlib.Path) -> Mapping[str, Any]:
    """Returns the answers to start from, of the file or of a later session that was interrupted.

    Answers withdrawn in that session are open. Of a damaged file, every valid answer is kept.
    """
    found: dict[str, Any] = {question.name: None for question in questions.ASKED}
    for path in (folder / ANSWERS, folder / _DRAFT):
        if not os.path.lexists(path) or (path.name == _DRAFT and _is_old(path)):
            continue
        try:
            given = strict_json.loads(path.read_text(encoding="utf-8"))
            questions.checked(given, str(path))
        except (OSError, ValueError, RecursionError, InputError):
            click.echo(
                f"{path} is empty or damaged: its readable answers are kept, the others are asked again.", err=True
            )
            given = _readable(path)
        fitting = (each for each in questions.ASKED if each.name in given)
        found |= {
            each.name: given[each.name] for each in fitting if given[each.name] is None or each.fits(given[each.name])
        }
    return found


def _is_old(draft: pathlib.Path) -> bool:
    """Returns whether the answers were changed after the interrupted session, whose answers are then not used."""
    answers = draft.with_name(ANSWERS)
    try:
        return answers.stat().st_mtime_ns > draft.stat().st_mtime_ns
    except OSError:
        return False


def _readable(path: pathlib.Path) -> Mapping[str, Any]:
    """Returns the content of a damaged file, or nothing if it is not a JSON object."""
    try:
        given = strict_json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return given if isinstance(given, Mapping) else {}
