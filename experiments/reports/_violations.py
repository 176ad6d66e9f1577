"""Why the final report of a run states no ε, or a provisional one."""

import pathlib

from ._build import build
from .questions import QUESTIONS, read_answers


def violations(folder: pathlib.Path) -> list[str]:
    """Returns why the final report of a run will state no ε, each reason with its field; nothing is written.

    Findings on the summary are left out, since the summary is written from the result.
    """
    findings = build(folder, realised=True)["findings"]
    of_run = [each for each in findings if each["field"] not in ("summary", "model")]
    return [f"{each['field']}: {each['text']}" for each in of_run if each["severity"] == "critical"]


def open_questions(folder: pathlib.Path) -> list[str]:
    """Returns the questions to the operator of a run that are not answered.

    Raises:
        InputValueError: If `answers.json` is damaged.
    """
    answers = read_answers(folder)
    return [question.name for question in QUESTIONS if answers[question.name] is None]
