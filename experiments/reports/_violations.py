"""Reasons for which the report of a finished run states no ε."""

import pathlib

from ._build import build


def violations(folder: pathlib.Path) -> list[str]:
    """Returns why the report of a run that is over will state no ε, each with its field; nothing is written.

    What is wrong with a summary is no part of it: that is written from what is returned.
    """
    findings = build(folder, realised=True)["findings"]
    of_run = [each for each in findings if each["field"] not in ("summary", "model")]
    return [f"{each['field']}: {each['text']}" for each in of_run if each["severity"] == "critical"]
