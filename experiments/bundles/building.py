"""Writes a bundle: everything that a server and its devices need, and `SHA256SUMS`.

Graphs are built from the files that are already in the bundle, so that they cannot contradict `run.json`.
"""

import hashlib
import json
import pathlib
import stat
from typing import Any

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.problem import grids

from .. import reports
from ..output import progress
from ..output.files import new_folder
from ..runs import folders as package_versions
from ..runs import statements
from ..runs.names import VOCABULARY
from ._source import Source, deployed_again
from .device_policy import DevicePolicy, write_device_policy

SUMS = "SHA256SUMS"
TOKENIZE = "device/tokenize"
SAMPLER = "devices with a timer and a count of rounds, checked by the server"


def export(
    source: Source,
    out: pathlib.Path,
    *,
    round_minutes: float,
    population: int | None = None,
    task_name: str | None = None,
) -> dict[str, Any]:
    """Writes the bundle of a deployment, or nothing if it fails.

    Args:
        source: The settings of the deployment.
        out: Folder of the bundle: a new one, or an empty one.
        round_minutes: Planned duration of the longest round: the timer of a device runs for `min_sep` of them.
        population: Number of devices that can take part, if it is known, for the report.
        task_name: Name of the task in `device-policy.json`; derived from the settings if it is not given.

    Returns:
        What `aggregators.export_process` returns of the graphs, the `grid` (`tff_mf.problem.grids.description`),
        `timer_hours` of the devices' policy, and `task_name`.

    Raises:
        InputValueError: If no ε can be stated for the deployment, except with an `insecure_seed`.
    """
    if population is not None:
        validation.whole("population", population)
    # A policy that no client can hold is refused before anything is built.
    named = "later" if task_name is None else task_name
    privacy = source.privacy
    DevicePolicy.of(privacy.participation, rounds=privacy.rounds, round_minutes=round_minutes, task_name=named)
    with new_folder(out) as aside:
        return _write(source, aside, round_minutes, population, task_name)


def _write(
    source: Source, folder: pathlib.Path, round_minutes: float, population: int | None, task_name: str | None
) -> dict[str, Any]:
    """Writes the files of a bundle to an empty folder."""
    # First those that graphs are built from, and those that need no graph.
    reports.write_record(
        folder,
        source.privacy,
        sampler=SAMPLER,
        population=population,
        clients_per_person=source.asked.clients_per_person,
        settings=source.asked,
        server_learning_rate=source.settings.chosen_rate(source.privacy),
        # It would name the folder that is written to.
        command=(),
        versions=package_versions.versions(),
    )
    planned = reports.write(folder, realised=False)
    # An `insecure_seed` was asked for, and stands in every file.
    if planned.claim.state == statements.REFUSED and not source.privacy.insecure:
        raise InputValueError(f"nothing is exported: {planned.headline.rstrip('.')}. Take settings with an ε.")
    device = write_device_policy(folder, round_minutes=round_minutes, task_name=task_name)
    words = json.dumps(list(source.vocabulary), ensure_ascii=False)
    (folder / VOCABULARY).write_text(words + "\n", encoding="utf-8")
    exported = _graphs(folder)
    progress.step("hashes")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    # As sha256sum writes it, and `sha256sum --check` reads it.
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n" for path in files
    ]
    (folder / SUMS).write_text("".join(sums), encoding="utf-8")
    # Only their owner may write files, whatever the umask is.
    for path in (*folder.rglob("*"), folder):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
    progress.step()
    grid = source.privacy.grid
    exported["grid"] = None if grid is None else grids.description(grid)
    return {**exported, "timer_hours": device.timer_seconds / 3600, "task_name": device.task_name}


def _graphs(folder: pathlib.Path) -> dict[str, Any]:
    """Adds the graphs to a folder that has the other files; returns what `aggregators.export_process` returns."""
    from ... import aggregators
    from ..training import learning_process, task

    settings, privacy, vocabulary = deployed_again(folder)
    progress.step("process")
    with aggregators.tff_session():
        language_task = task.build_task(settings, vocabulary)
        process, _ = learning_process.build_process(settings, privacy, language_task, loop=learning_process.DEVICE_LOOP)
        progress.step("graphs")
        exported = aggregators.export_process(
            process,
            folder,
            initial_weights=language_task.initial_weights,
            batch_size=settings.batch_size,
            client_epochs=settings.client_epochs,
            max_examples=settings.max_examples,
        )
        aggregators.export_computation(
            task.build_tokenizer(vocabulary), folder / TOKENIZE, inputs="sentences", outputs="examples"
        )
    return exported
