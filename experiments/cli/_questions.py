"""Asks the operator's questions on a terminal, or writes them to a file to fill in."""

import os
import pathlib
import sys
from typing import Any

import click

from tff_mf.base.errors import InputValueError

from ..output import files
from ..output.present import folded
from ..reports import questions
from ..runs.names import ANSWERS

_OPEN = "-"


def ask(folder: pathlib.Path) -> None:
    """Asks every question, one by one; earlier answers are the defaults.

    Formal guarantee: `answers.json` is replaced atomically after each answer, and has all others as they were.
    """
    path = folder / ANSWERS
    if not sys.stdin.isatty():
        raise InputValueError(
            f"--answer asks on a terminal, and there is none: `tff-mf report {folder} --questions` writes {path}, to "
            "fill in with an editor or a program."
        )
    answers = questions.read_answers(folder)
    files.check_file(path, "answers")
    _say(
        f"{len(questions.ASKED)} questions; until all but the last are answered, ε is provisional. Enter accepts the "
        f"answer in brackets, or leaves a question open; {_OPEN} withdraws an answer."
    )
    for number, question in enumerate(questions.ASKED, start=1):
        click.echo(err=True)
        _say(f"{number}. {question.text}")
        try:
            answers[question.name] = _answer(question, answers[question.name])
        except (click.Abort, KeyboardInterrupt):
            click.echo(f"\nstopped: the answers so far are in {path}", err=True)
            raise click.Abort from None
        files.write_atomically(path, questions.as_text(answers))
    missing = [each.name for each in questions.QUESTIONS if answers[each.name] is None]
    click.echo(f"\nwritten to {path}" + (f"; still open: {', '.join(missing)}" if missing else ""), err=True)


def write_form(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Writes a file to fill in and use as `answers.json`: a key for each question, with the existing answers."""
    # A shell that redirects its output there has emptied it already.
    if os.path.lexists(out) and not (out.is_file() and out.stat().st_size == 0):
        raise InputValueError(
            f"out={str(out)!r} exists, and is not overwritten: fill it in, change answers with `tff-mf report "
            f"{folder} --answer`, or name another file with --out."
        )
    own = folder / ANSWERS
    given = {} if own.is_file() and own.stat().st_size == 0 else questions.read_answers(folder)
    files.check_file(out)
    files.write_atomically(out, questions.as_text(given))
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
    default_text = ("no", "yes")[default] if isinstance(default, bool) else str(default)
    shown = "" if default is None else f" [{default_text}]"
    while True:
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
