"""What the training program has to do for its reports."""

import dataclasses
import importlib.metadata
import pathlib
import platform
from typing import Any

from . import reports
from .privacy import PrivacyPlan
from .sampling import CohortPlan
from .settings import TrainingSettings

CONFIGURATION = reports.CONFIGURATION

_PACKAGES = (
    "tff-mf",
    "tensorflow",
    "tensorflow-federated",
    "tensorflow-privacy",
    "dp-accounting",
    "numpy",
    "scipy",
)


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
        sampler="tff_mf.experiments.sampling.plan_cohorts",
        simulation=True,
        population=len(cohorts.client_ids) * privacy.cohort // privacy.clients_per_round,
        released_without_noise=[{"name": "metrics of evaluation", "of": "clients that do not train"}],
        evaluation_columns=task.METRICS,
        settings={**dataclasses.asdict(settings), "training_clients": len(cohorts.client_ids)},
        versions=versions(),
    )
    reports.write(folder, realised=False)


def realise(folder: pathlib.Path) -> dict[str, Any]:
    """Writes the report of a run that is over, and returns it."""
    return reports.write(folder, realised=True)


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a run depends on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
