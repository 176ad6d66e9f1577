"""Makes a bundle: everything that a server and its devices need, and a manifest of it.

Two exports of one source are equal to the byte, wherever, whenever and beside whatever they run; a test keeps it so.
Therefore graphs are built in a process of their own, from the files that are in the bundle by then.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping

from tff_mf import _validate

from .. import reports
from ..configuration import toml_file
from ..output import progress
from ..run_folder import versions as package_versions
from ..run_folder.names import VOCABULARY
from . import runner
from ._device_file import write_device_policy
from ._device_policy import DevicePolicy
from ._folders import new_folder, set_modes
from ._manifest import RUNNER, Manifest, file_entries, write_manifest
from ._own_process import graphs
from ._policy import ParticipationPolicy, write_policy
from ._source import Source

SAMPLER = "devices with a timer and a count of rounds, checked by the server"


def export(
    source: Source,
    out: pathlib.Path,
    *,
    round_minutes: float,
    population: int | None = None,
    task_name: str | None = None,
) -> str:
    """Writes the bundle of a deployment, whole or not at all, and returns its digest.

    Args:
        source: What is deployed.
        out: The bundle's folder: a new one, or an empty one.
        round_minutes: The longest that a round takes, as planned: the device's timer is `min_sep` of them.
        population: Number of devices that can take part, if known, for the report.
        task_name: Name of the task in `device-policy.json`; one that follows from the settings if it is not given.

    Raises:
        InputError: If an argument is out of range, or `out` holds something or cannot be written.
    """
    policy = ParticipationPolicy.of(source.privacy.participation, round_minutes=round_minutes)
    if population is not None:
        _validate.whole("population", population)
    # What no client can hold is refused before anything is built.
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
        source: What is deployed.
        folder: The folder.
        policy: What devices keep to.
        population: Number of devices that can take part, if known.
        versions: What the bundle is said to be made with.
        task_name: Name of the task for devices; one that follows from the settings if it is not given.

    Raises:
        InputError: If the source cannot be exported.
    """
    settings, privacy = source.settings, source.privacy
    reports.write_configuration(
        folder,
        privacy,
        clip_norm=settings.clip_norm,
        sampler=SAMPLER,
        population=population,
        settings=dataclasses.asdict(settings),
        # It would name the folder that is written to.
        command=(),
        versions=dict(versions),
    )
    reports.write(folder, realised=False)
    toml_file.write(source.configuration, folder)
    write_policy(folder, policy)
    write_device_policy(folder, task_name=task_name)
    (folder / RUNNER).write_bytes(pathlib.Path(runner.__file__).read_bytes())
    words = json.dumps(list(source.vocabulary), ensure_ascii=False)
    (folder / VOCABULARY).write_text(words + "\n", encoding="utf-8")
    exported = graphs(folder)
    progress.step("manifest")
    manifest = Manifest(
        process=exported["process"],
        stages=exported["stages"],
        forms=exported["forms"],
        lite=exported["lite"],
        local_data={name: exported[name] for name in ("batch_size", "client_epochs", "max_examples")},
        test_only=privacy.insecure,
        versions=versions,
        files=file_entries(folder),
    )
    digest = write_manifest(folder, manifest)
    set_modes(folder)
    progress.step()
    return digest
