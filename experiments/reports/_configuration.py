"""Writes the configuration of a run from its privacy plan."""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tff_mf
from tff_mf.errors import InputValueError

from ..privacy.plan import PrivacyPlan
from ..run_folder import run_json
from ..run_folder.ledger import cohort_digest
from ..run_folder.run_json import Configuration, check_fields


def write_configuration(
    folder: pathlib.Path,
    plan: PrivacyPlan,
    *,
    clip_norm: float,
    cohorts: Sequence[Sequence[str]] = (),
    **more: Any,
) -> Configuration:
    """Writes `run.json` and the mechanism's artifact to a run's folder, and returns what the file says.

    A run that goes on finds both there. They are left as they are, so that cohorts, noise and command are those it was
    started with.

    Args:
        folder: The run's folder.
        plan: Mechanism, noise and participation.
        clip_norm: Clip norm ζ.
        cohorts: The clients of each round, as planned.
        more: Fields of `Configuration` that the plan does not determine: `adjacency`, `sampler`, `simulation`,
            `population`, `released_without_noise`, `evaluation_columns`, `settings`, `command` and `versions`;
            `restart_every` and `adaptive_count_stddev` if the plan has none.

    Raises:
        InputValueError: If another field is given, or the folder is that of a run that was set to do something else.
    """
    check_fields(more)
    of_plan = {name: getattr(plan, name) for name in ("restart_every", "adaptive_count_stddev")}
    for name, value in of_plan.items():
        if value is not None and more.get(name, value) != value:
            raise InputValueError(f"{name}={more[name]!r} is not that of the plan, {value!r}: leave it out.")
    fields = {
        **of_plan,
        "rounds": plan.rounds,
        "participation": type(plan.participation).__name__,
        "min_sep": plan.participation.min_sep,
        "max_participations": plan.participation.max_participations,
        "noise_multiplier": plan.noise_multiplier,
        "delta": plan.delta,
        "clients_per_round": plan.clients_per_round,
        "cohort": plan.cohort,
        "clip_norm": clip_norm,
        "insecure_seed": plan.insecure_seed,
        "divisor": plan.clients_per_round,
        "cohorts": [cohort_digest(clients) for clients in cohorts],
        "command": [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]],
    }
    return run_json.begin(folder, plan.mechanism, {**fields, **more})


def read_plan(configuration: Configuration, mechanism: tff_mf.Mechanism) -> PrivacyPlan:
    """Returns the privacy plan that `write_configuration` wrote.

    Args:
        configuration: The content of `run.json`.
        mechanism: The mechanism of the artifact beside it.
    """
    return PrivacyPlan(
        mechanism=mechanism,
        rounds=configuration.rounds,
        participation=configuration.schema,
        noise_multiplier=configuration.noise_multiplier,
        delta=configuration.delta,
        clients_per_round=configuration.clients_per_round,
        cohort=configuration.cohort,
        insecure_seed=configuration.insecure_seed,
        restart_every=configuration.restart_every,
        adaptive_count_stddev=configuration.adaptive_count_stddev,
    )
