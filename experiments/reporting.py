"""What the training program has to do for its reports."""

import dataclasses
import importlib.metadata
import pathlib
import platform
from typing import Any

import tff_mf

from . import reports, sampling
from .privacy import PrivacyPlan
from .sampling import CohortPlan
from .settings import TrainingSettings

CONFIGURATION = reports.CONFIGURATION

_PACKAGES = (
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
        sampler=sampling.planner_name(settings.sampling.kind),
        simulation=True,
        population=population(privacy, cohorts),
        released_without_noise=[{"name": "metrics of evaluation", "of": "clients that do not train"}],
        evaluation_columns=task.METRICS,
        settings={**dataclasses.asdict(settings), "training_clients": len(cohorts.client_ids)},
        versions=versions(),
    )
    reports.write(folder, realised=False)


def population(privacy: PrivacyPlan, cohorts: CohortPlan) -> int:
    """Returns the number of clients of a deployment in proportion to its simulation, rounded up.

    δ is held against 1 / population, so that the larger one is the stricter.
    """
    return -(-len(cohorts.client_ids) * privacy.cohort // privacy.clients_per_round)


def realise(folder: pathlib.Path) -> dict[str, Any]:
    """Writes the report of a run that is over, and returns it."""
    return reports.write(folder, realised=True)


def violations(folder: pathlib.Path) -> list[str]:
    """Returns why the report of a run that is over will state no ε, each with its field; nothing is written.

    What is wrong with a summary is no part of it: that is written from what is returned.
    """
    findings = reports.build(folder, realised=True)["findings"]
    of_run = [each for each in findings if each["field"] not in ("summary", "model")]
    return [f"{each['field']}: {each['text']}" for each in of_run if each["severity"] == "critical"]


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a run depends on."""
    found = {"python": platform.python_version(), "tff-mf": tff_mf.__version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
