"""What the tables in a run's folder publish: every cell of them has a name and a round, or is a finding."""

import csv
import pathlib

from ..run_folder.participation_log import PARTICIPATION

METRICS = "metrics.csv"
# Columns of it that say nothing of anybody's data.
HARMLESS = frozenset({"round", "seconds"})


def read_metrics(path: pathlib.Path, problems: list[tuple[str, str]]) -> tuple[list[str], int, int]:
    """Returns the columns of metrics.csv, the last round in it, and the last one that was evaluated.

    Formal guarantee: if it adds no problem, every cell that is not empty belongs to a column with a name of its own and
    to a round: the names of the columns say all that the file can hold.

    Args:
        path: The file; one that is missing has no columns.
        problems: Takes what is wrong with it, each with its field of the report.
    """
    if not path.exists():
        return [], 0, 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            columns, *rows = list(csv.reader(file, strict=True)) or [[]]
            last, evaluated = _rounds(columns, rows)
    except (OSError, ValueError, csv.Error) as error:
        problems.append(("log", f"{METRICS} is damaged: {error}"))
        return [], 0, 0
    return columns, last, evaluated


def other_tables(folder: pathlib.Path) -> list[tuple[str, str]]:
    """Returns what is wrong with tables that no run writes: nothing says what their columns were computed from."""
    known = (METRICS, PARTICIPATION)
    names = sorted(each.name for each in folder.iterdir() if each.suffix.lower() == ".csv" and each.name not in known)
    text = "is no file of a run, and nothing says what it was computed from: released without noise"
    return [("released without noise", f"{name!a} {text}") for name in names]


def _rounds(columns: list[str], rows: list[list[str]]) -> tuple[int, int]:
    """Returns the last round, and the last one with more than what is harmless.

    Raises:
        ValueError: If a cell has no column, no round, or is text where a number must be.
    """
    if "round" not in columns:
        raise ValueError("it has no column 'round'")
    if not all(columns) or len(set(columns)) < len(columns):
        raise ValueError(f"every column needs a name of its own, and they are {columns}")
    rounds, evaluated = [0], [0]
    for line, row in enumerate(filter(None, rows), start=1):
        if len(row) > len(columns):
            raise ValueError(f"row {line} has {len(row)} cells, and there are {len(columns)} columns")
        cells = dict(zip(columns, row, strict=False))
        if not cells.get("round", "").isdecimal():
            raise ValueError(f"row {line} has the round {cells.get('round', '')!r}, which is no whole number")
        # Raises for text.
        float(cells.get("seconds") or 0)
        rounds.append(int(cells["round"]))
        evaluated += rounds[-1:] if any(text for name, text in cells.items() if name not in HARMLESS) else []
    return max(rounds), max(evaluated)
