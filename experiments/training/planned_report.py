"""What a training run is set to do, on disk before it starts: its `run.json` and its planned report."""

import pathlib

import msgspec

from .. import reports
from ..run_folder.versions import versions
from ..sampling.settings import sampler_name
from .preparation import PreparedRun
from .task import METRICS


def write_plan(prepared: PreparedRun, folder: pathlib.Path) -> None:
    """Writes `run.json`, the mechanism's artifact and the planned report of a run.

    Args:
        prepared: The run.
        folder: Its folder.

    Raises:
        InputValueError: If the folder holds a run with another mechanism or other settings.
    """
    settings, cohorts = prepared.settings, prepared.cohorts
    reports.write_configuration(
        folder,
        prepared.privacy,
        clip_norm=settings.clip_norm,
        cohorts=[cohorts.cohort(t) for t in range(cohorts.rounds)],
        sampler=sampler_name(settings.sampling.kind),
        simulation=True,
        population=prepared.population,
        released_without_noise=[{"name": "metrics of evaluation", "of": prepared.measured_on}],
        evaluation_columns=METRICS,
        settings={**msgspec.to_builtins(settings), "training_clients": len(cohorts.client_ids)},
        versions=versions(),
    )
    reports.write(folder, realised=False)
