"""The configuration and the planned report of a training run."""

import dataclasses
import pathlib

from .. import reports, sampling
from ..configuration.settings import TrainingSettings
from ..privacy.plan import PrivacyPlan, population
from ..run_folder.versions import versions
from ..sampling import CohortPlan


def plan(folder: pathlib.Path, settings: TrainingSettings, privacy: PrivacyPlan, cohorts: CohortPlan) -> None:
    """Writes the configuration of a training run and its planned report.

    Args:
        folder: The run's folder.
        settings: Everything but privacy.
        privacy: The mechanism and its noise.
        cohorts: Who will take part when.
    """
    from . import task

    reports.write_configuration(
        folder,
        privacy,
        clip_norm=settings.clip_norm,
        cohorts=[cohorts.cohort(t) for t in range(cohorts.rounds)],
        sampler=sampling.planner_name(settings.sampling.kind),
        simulation=True,
        population=population(privacy, cohorts),
        released_without_noise=[{"name": "metrics of evaluation", "of": "clients that do not train"}],
        evaluation_columns=task.METRICS,
        settings={**dataclasses.asdict(settings), "training_clients": len(cohorts.client_ids)},
        versions=versions(),
    )
    reports.write(folder, realised=False)
