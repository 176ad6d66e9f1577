"""`run.json` from the privacy plan of a run, and the plan from `run.json`."""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tff_mf
from tff_mf.base.errors import InputValueError

from ..run_folder import run_record
from ..run_folder.ledger import cohort_digest
from ..run_folder.run_record import RunRecord

# Fields that a privacy plan has under the same name.
_OF_PLAN = ("rounds", "noise_multiplier", "delta", "clients_per_round", "cohort", "insecure_seed")
# Fields that a pipeline may name itself if its plan has none.
_IF_PLANNED = ("restart_every", "adaptive_count_stddev")
# What of the grid is in `run.json`, and only if there is one.
_OF_GRID = ("grid_bits", "grid_max_clients", "dimension")


def plan_of(record: RunRecord, mechanism: tff_mf.Mechanism) -> tff_mf.Plan:
    """Returns the privacy plan that a `run.json` was written from.

    Args:
        record: The content of `run.json`.
        mechanism: The mechanism of the artifact in the same folder.

    Raises:
        InputError: If no plan has such fields.
    """
    return tff_mf.plan(
        mechanism=mechanism,
        sampling=record.schema,
        grid=record.grid,
        dimension=record.dimension,
        **{name: getattr(record, name) for name in (*_OF_PLAN, *_IF_PLANNED)},
    )


def write_configuration(
    folder: pathlib.Path,
    plan: tff_mf.Plan,
    *,
    clip_norm: float,
    cohorts: Sequence[Sequence[str]] = (),
    **more: Any,
) -> RunRecord:
    """Writes `run.json` and the mechanism's artifact to a run's folder, and returns the content of `run.json`.

    If the run is resumed, both files exist and stay as they are, so that the run keeps the cohorts, noise and command
    that it began with.

    Args:
        folder: The run's folder.
        plan: Mechanism, noise and participation.
        clip_norm: Clip norm ζ.
        cohorts: The planned clients of each round.
        more: Fields of `RunRecord` that the plan does not determine: `adjacency`, `sampler`, `simulation`,
            `population`, `released_without_noise`, `evaluation_columns`, `settings`, `command` and `versions`;
            `restart_every`, `adaptive_count_stddev`, and the fields of the grid, if the plan has none.

    Raises:
        InputValueError: If another field is given, or the folder holds a run with other settings.
    """
    run_record.check_fields(more)
    for name in (*_IF_PLANNED, *_OF_GRID):
        planned = getattr(plan, name)
        if planned is not None and more.get(name, planned) != planned:
            raise InputValueError(f"{name}={more[name]!r} differs from the plan, which has {planned!r}: leave it out.")
    schema = plan.participation
    fields = {
        **{name: getattr(plan, name) for name in (*_OF_PLAN, *_IF_PLANNED, *_OF_GRID)},
        "participation": type(schema).__name__,
        "min_sep": schema.min_sep,
        "max_participations": schema.max_participations,
        "clip_norm": clip_norm,
        "divisor": plan.clients_per_round,
        "cohorts": [cohort_digest(clients) for clients in cohorts],
        "command": [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]],
    }
    return run_record.begin(folder, plan.mechanism, {**fields, **more})
