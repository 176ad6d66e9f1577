"""What tests of runs share: commands in this process, what a check finds, and tables of a run folder."""

import csv
import pathlib
from typing import Any

import click.testing

from tff_mf.experiments import reports
from tff_mf.experiments.cli import cli


def invoke(*arguments: object, **more: Any) -> click.testing.Result:
    """Runs `tff-mf` with arguments in this process; an error that is not its own is raised."""
    return click.testing.CliRunner().invoke(cli, [*map(str, arguments)], **{"catch_exceptions": False, **more})


def critical(folder: pathlib.Path, **more: Any) -> list[str]:
    """Returns what a check of a run would make somebody think that something is wrong with it, fields first."""
    return [f"{each.field}: {each.text}" for each in reports.check(folder, **more) if each.severity == "critical"]


def violated(report: dict[str, Any]) -> set[str]:
    """Returns the fields of the critical findings of a report."""
    return {each["field"] for each in report["findings"] if each["severity"] == "critical"}


def rows(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a table by the names of its columns."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
