"""`tff-mf check`: whether an implementation of private sums is one."""

import importlib
import os
import sys

import rich_click as click

from tff_mf import conformance
from tff_mf.base.errors import InputValueError

from ..output import console
from ..output.console import Facts
from . import _options
from ._screens import Answer


@_options.command
@click.argument("subject", metavar="MODULE:FUNCTION")
def check(subject: str) -> Answer:
    """Judge an implementation of private sums, anybody's, by what it releases.

    FUNCTION of a module, in this folder or installed, returns what is checked, its claim, and a tree of arrays like a
    client's update: see tff_mf.conformance. Exit status 1 if a law is broken.
    """
    sys.path.insert(0, os.getcwd())
    module, colon, name = subject.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)() if colon else None
    except (ImportError, AttributeError) as error:
        raise InputValueError(f"subject={subject!r} cannot be loaded: {error}.") from error
    if not (isinstance(made, tuple) and len(made) == 3):
        raise InputValueError(f"subject={subject!r} must be MODULE:FUNCTION that returns (subject, claim, like).")
    checked, claim, like = made
    with console.bar("check", len(conformance.LAWS)) as advance:
        verdict = conformance.check(checked, claim, like=like, elsewhere=subject, progress=lambda law: advance(1, law))
    rows = [
        (outcome.law, f"{outcome.status}: {conformance.LAWS[outcome.law]}. {outcome.said}")
        for outcome in verdict.outcomes
    ]
    return Answer(verdict.as_dict(), [verdict.headline, Facts(rows)], failed=verdict.failed)
