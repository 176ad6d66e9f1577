"""Makes a bundle: everything that a server and its devices need, and a manifest of it."""

import dataclasses
import json
import pathlib

from tff_mf import _validate

from ... import aggregators
from .. import learning_process, progress, reporting, reports, run_files, task
from ._device_file import write_device_policy
from ._device_policy import DevicePolicy
from ._folders import new_folder
from ._manifest import TOKENIZE, VOCABULARY, Manifest, file_hashes, write_manifest
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
    with new_folder(out) as aside, aggregators.tff_session():
        return _write(source, aside, policy, population, task_name)


def _write(
    source: Source, folder: pathlib.Path, policy: ParticipationPolicy, population: int | None, task_name: str | None
) -> str:
    settings, privacy = source.settings, source.privacy
    versions = reporting.versions()
    reports.write_configuration(
        folder,
        privacy,
        clip_norm=settings.clip_norm,
        sampler=SAMPLER,
        population=population,
        settings=dataclasses.asdict(settings),
        versions=versions,
    )
    reports.write(folder, realised=False)
    run_files.write(source.configuration, folder)
    write_policy(folder, policy)
    write_device_policy(folder, task_name=task_name)
    vocabulary = list(source.vocabulary)
    (folder / VOCABULARY).write_text(json.dumps(vocabulary, ensure_ascii=False) + "\n", encoding="utf-8")
    progress.step("process")
    language_task = learning_process.build_task(settings, vocabulary)
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
    progress.step("manifest")
    manifest = Manifest(
        process=exported["process"],
        stages=exported["stages"],
        forms=exported["forms"],
        lite=exported["lite"],
        local_data={name: exported[name] for name in ("batch_size", "client_epochs", "max_examples")},
        test_only=privacy.insecure,
        versions=versions,
        files=file_hashes(folder),
    )
    digest = write_manifest(folder, manifest)
    progress.step()
    return digest
