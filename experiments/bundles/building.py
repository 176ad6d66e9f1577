"""Writes a bundle: everything that a server and its devices need, and a manifest.

Two exports of one source are equal byte for byte, whenever, wherever and beside whichever other programs they run.
Therefore graphs are built in their own process, from the files that are already in the bundle.
"""

import json
import pathlib
import stat
from collections.abc import Mapping

import msgspec

from tff_mf import validation

from .. import reports
from ..configuration import toml_file
from ..output import progress
from ..output.files import new_folder
from ..run_folder import folders as package_versions
from ..run_folder.names import VOCABULARY
from ._device_file import write_device_policy
from ._device_policy import DevicePolicy
from ._manifest import Manifest, file_entries, write_manifest
from ._own_process import graphs
from ._policy import ParticipationPolicy, write_policy
from ._runner_file import runner_file
from ._source import Source
from .names import RUNNER

SAMPLER = "devices with a timer and a count of rounds, checked by the server"


def export(
    source: Source,
    out: pathlib.Path,
    *,
    round_minutes: float,
    population: int | None = None,
    task_name: str | None = None,
) -> str:
    """Writes the bundle of a deployment, or nothing if it fails, and returns its digest.

    Args:
        source: The settings of the deployment.
        out: Folder of the bundle: a new one, or an empty one.
        round_minutes: Planned duration of the longest round: the timer of a device runs for `min_sep` of them.
        population: Number of devices that can take part, if it is known, for the report.
        task_name: Name of the task in `device-policy.json`; derived from the settings if it is not given.

    Raises:
        InputError: If an argument is out of range, or `out` is not empty or cannot be written.
    """
    policy = ParticipationPolicy.of(source.privacy.participation, round_minutes=round_minutes)
    if population is not None:
        validation.whole("population", population)
    # A policy that no client can hold is refused before anything is built.
    DevicePolicy.of(policy, rounds=source.privacy.rounds, task_name="later" if task_name is None else task_name)
    with new_folder(out) as aside:
        return write(source, aside, policy, population, package_versions.versions(), task_name)


def write(
    source: Source,
    folder: pathlib.Path,
    policy: ParticipationPolicy,
    population: int | None,
    versions: Mapping[str, str],
    task_name: str | None = None,
) -> str:
    """Writes the files of a bundle to an empty folder, and returns its digest.

    Args:
        source: The settings of the deployment.
        folder: The folder.
        policy: The policy of devices.
        population: Number of devices that can take part, if it is known.
        versions: Versions of Python and of the packages, as the bundle states them.
        task_name: Name of the task for devices; derived from the settings if it is not given.

    Raises:
        InputError: If the source cannot be exported.
    """
    _write_inputs(source, folder, policy, population, versions, task_name)
    exported = graphs(folder)
    progress.step("manifest")
    manifest = Manifest(
        process=exported["process"],
        stages=exported["stages"],
        forms=exported["forms"],
        lite=exported["lite"],
        grid=exported["grid"],
        local_data={name: exported[name] for name in ("batch_size", "client_epochs", "max_examples")},
        test_only=source.privacy.insecure,
        versions=versions,
        files=file_entries(folder),
    )
    digest = write_manifest(folder, manifest)
    _set_modes(folder)
    progress.step()
    return digest


def _write_inputs(
    source: Source,
    folder: pathlib.Path,
    policy: ParticipationPolicy,
    population: int | None,
    versions: Mapping[str, str],
    task_name: str | None,
) -> None:
    """Writes the files of a bundle that graphs are built from, and those that need no graph."""
    settings = source.settings
    reports.write_configuration(
        folder,
        source.privacy,
        clip_norm=settings.clip_norm,
        sampler=SAMPLER,
        population=population,
        settings=msgspec.to_builtins(settings),
        # It would name the folder that is written to.
        command=(),
        versions=dict(versions),
    )
    # The report reads them.
    toml_file.write(source.configuration, folder)
    reports.write(folder, realised=False)
    write_policy(folder, policy)
    write_device_policy(folder, task_name=task_name)
    (folder / RUNNER).write_bytes(runner_file().encode())
    words = json.dumps(list(source.vocabulary), ensure_ascii=False)
    (folder / VOCABULARY).write_text(words + "\n", encoding="utf-8")


def _set_modes(folder: pathlib.Path) -> None:
    """Takes the right to write a bundle's files from all but their owner, whatever the umask is."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
