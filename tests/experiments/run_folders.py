"""Folders of finished runs, whatever they did, as a run writes them."""

import csv
import dataclasses
import inspect
import json
import pathlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import safetensors.numpy

import tff_mf
from tff_mf.experiments import reports, sampling
from tff_mf.experiments.output import files
from tff_mf.experiments.runs import ledger, names
from tff_mf.experiments.runs.results import ACCURACY

SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=3)
EVALUATED = ("loss", ACCURACY)
PLAN_FIELDS = {field.name for field in dataclasses.fields(tff_mf.Plan)} - {"population"}
COLUMNS = ("round", "seconds", *EVALUATED)

Cohorts = Sequence[Sequence[str]]
Entry = dict[str, Any]


def plan(**changes: Any) -> tff_mf.Plan:
    """Returns the planned guarantee of the runs."""
    arguments: dict[str, Any] = {
        "mechanism": tff_mf.BLT.production("b100"),
        "rounds": 9,
        "sampling": SCHEMA,
        "delta": 1e-6,
        "clients_per_round": 2,
        "noise_multiplier": 5.0,
    }
    return tff_mf.plan(**{**arguments, **changes})


def cohorts(rounds: int = 9) -> list[list[str]]:
    """Returns the planned cohorts."""
    drawn = sampling.plan_cohorts(
        client_ids=[f"c{index}" for index in range(8)], clients_per_round=2, rounds=rounds, sampling=SCHEMA, seed=1
    )
    return [list(drawn.cohort(t)) for t in range(rounds)]


def start(
    folder: pathlib.Path,
    *,
    privacy: tff_mf.Plan | None = None,
    planned: Cohorts | None = None,
    **more: Any,
) -> None:
    """Writes the files that a run writes before its first round."""
    folder.mkdir(exist_ok=True)
    fields = {
        "cohorts": cohorts() if planned is None else planned,
        "sampler": "plan_cohorts",
        "evaluation_columns": EVALUATED,
        "versions": {"tff-mf": tff_mf.__version__},
        "population": 20_000,
        **more,
    }
    of_plan = {name: fields.pop(name) for name in PLAN_FIELDS & fields.keys()}
    reports.write_record(folder, dataclasses.replace(privacy or plan(), **of_plan), **fields)


def run(
    folder: pathlib.Path,
    rounds: Cohorts | None = None,
    *,
    divisors: Sequence[float] | None = None,
    clip_norms: Sequence[float] | None = None,
    restarts: Collection[int] = (),
    killed: Collection[int] = (),
    ended: bool = True,
) -> None:
    """Writes the files that a run writes round by round, and those of a run before it go.

    Args:
        folder: The run's folder.
        rounds: The cohorts.
        divisors: What the sum of each round is divided by.
        clip_norms: The clip norm of each round.
        restarts: Rounds in which noise starts anew.
        killed: Rounds in which the run is killed before their release, and goes on.
        ended: Whether the ledger says that the run ended.
    """
    rounds = cohorts() if rounds is None else rounds
    (folder / names.LEDGER).unlink(missing_ok=True)
    with ledger.open_ledger(folder / names.LEDGER) as book:
        for number, clients in enumerate(rounds, start=1):
            for _ in range(1 + (number in killed)):
                book.begin(
                    number,
                    clients,
                    divisor=2 if divisors is None else divisors[number - 1],
                    clip_norm=1.0 if clip_norms is None else clip_norms[number - 1],
                    restarts=number in restarts,
                )
            book.released_until(number)
        if ended:
            book.end()
    metrics(folder, len(rounds))


def finished(folder: pathlib.Path, **more: Any) -> reports.Report:
    """Writes a complete run and its report, by the arguments of `start` and `run`, and returns the report."""
    of_run = inspect.signature(run).parameters
    start(folder, **{name: value for name, value in more.items() if name not in of_run})
    run(folder, **{name: value for name, value in more.items() if name in of_run})
    return reports.write(folder, realised=True)


def read_entries(folder: pathlib.Path) -> list[Entry]:
    """Returns the entries of a ledger."""
    return [json.loads(line) for line in (folder / names.LEDGER).read_bytes().splitlines()]


def write_ledger(folder: pathlib.Path, entries: Iterable[Entry]) -> None:
    """Writes entries as a ledger."""
    (folder / names.LEDGER).write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def with_reports(entries: Iterable[Entry], number: int = 3, **changes: Any) -> list[Entry]:
    """Returns the entries of a ledger whose releases count two reports each, that of one round with changes."""
    counts = {"came": 3, "counted": 2, "clipped": 1, "zeroed": 0, "refused": {"late": 1}}
    return [
        {**each, "reports": {**counts, **(changes if each["round"] == number else {})}}
        if each["kind"] == "released"
        else each
        for each in entries
    ]


def metrics(folder: pathlib.Path, rounds: int, columns: Sequence[str] = COLUMNS) -> None:
    """Writes metrics of a number of rounds."""
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([number, *[0.5] * (len(columns) - 1)] for number in range(1, rounds + 1))


def change_json(path: pathlib.Path, change: Callable[[Any], Any]) -> None:
    """Rewrites a JSON file in its original format."""
    found = json.loads(path.read_text())
    changed = change(found)
    path.write_text(json.dumps(found if changed is None else changed, indent=1, ensure_ascii=False) + "\n")


def summarise(folder: pathlib.Path) -> None:
    """Writes the summary of a run that matches the other files, and a model."""
    model = safetensors.numpy.save({"0": np.arange(3.0)})
    (folder / "model.safetensors").write_bytes(model)
    measured = dict.fromkeys(("accuracy", "loss", "validation_accuracy", "validation_accuracy_smoothed"), 0.5)
    about = {"model_sha256": files.file_hash(folder / "model.safetensors"), "seconds": 1.5}
    (folder / "summary.json").write_text(json.dumps({**measured, **about}))


def whole(folder: pathlib.Path) -> dict[str, Any]:
    """Writes a finished run with every file that a run can have, killed twice on its way, and returns its report."""
    start(folder)
    reports.write(folder, realised=False)
    run(folder, killed=(5, 8))
    summarise(folder)
    return reports.write(folder, realised=True)
