"""What a report is about: the data set, when the run took place, and who answered the questions."""

import datetime
import pathlib
import re
import tomllib
from typing import Any

from ..run_folder.names import SETTINGS_TOML
from ._case import Case
from .questions import ANSWERED_BY


def about(folder: pathlib.Path, case: Case) -> dict[str, Any]:
    """Returns what is known of a run beside its guarantee, as JSON; `None` where no file says it.

    None of it can be checked, and no figure depends on it.
    """
    settings, ledger = case.record.settings, case.evidence.ledger
    # A planned report can be older than the settings that a run was given.
    given = _of_configuration(folder) if case.realised else None
    started, ended = (None, None) if ledger is None else (ledger.started, ledger.finished)
    return {
        "data_set": {
            "name": _without_folder(_known(settings.get("dataset", given), str)),
            "sha256": _known(settings.get("dataset_sha256"), str),
            "clients": _known(settings.get("training_clients"), int),
            "examples": _known(settings.get("training_examples"), int),
        },
        "started": started,
        "ended": ended,
        "seconds": _seconds(started, ended),
        ANSWERED_BY.name: case.answers.get(ANSWERED_BY.name),
    }


def _of_configuration(folder: pathlib.Path) -> Any:
    try:
        return tomllib.loads((folder / SETTINGS_TOML).read_text(encoding="utf-8"))["run"]["dataset"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _known(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _without_folder(name: str | None) -> str | None:
    """Returns the name of a data set without the folder of its file: a report is published."""
    return None if name is None else re.sub("[^:/]*/", "", name)


def _seconds(started: str | None, ended: str | None) -> int | None:
    """Returns how long a run took; `None` if it is unknown, or the clock was set back meanwhile."""
    if started is None or ended is None:
        return None
    took = datetime.datetime.fromisoformat(ended) - datetime.datetime.fromisoformat(started)
    return int(took.total_seconds()) if took >= datetime.timedelta() else None
