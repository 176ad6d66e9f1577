"""The plan of a run on Flower, on a grid unless another is asked for."""

import pathlib
from typing import Any

from flwr.app import ArrayRecord

from .. import guard
from ..configuration.grid import AUTO, grid_of
from ..privacy.plan import PrivacyPlan, checked_cohort, plan_privacy
from ..run_folder.names import RUN_JSON
from ..run_folder.run_record import read_record
from .updates import model_arrays


def plan_run(
    folder: pathlib.Path | str,
    *,
    initial_arrays: ArrayRecord,
    clients_per_round: int,
    cohort: int | None = None,
    grid: int | str = AUTO,
    **more: Any,
) -> PrivacyPlan:
    """Returns the plan of a run: `plan_privacy(...)` with the grid that fits its model, as `tff-mf train` takes it.

    A run that was begun in floating point stays in floating point, whatever `grid` is, and σ comes from `run.json` if
    calibrating it again gives the same but for last bits.

    Formal guarantee: as for `plan_privacy` with the plan's grid.

    Args:
        folder: The run's folder, which may not exist.
        initial_arrays: The model that training starts from: a grid's cost depends on its number of parameters.
        clients_per_round: Nodes that train in a round.
        cohort: Nodes that a round stands for; `clients_per_round` if not given.
        grid: Bits of the grid on which updates, their sums and the noise are integers: a number, "auto", or "none" for
            floating point, where the guarantee holds for real numbers only.
        more: The other arguments of `plan_privacy`.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or `run.json` of the folder is damaged.

    Example:
        >>> import numpy as np
        >>> import tff_mf
        >>> from flwr.app import Array
        >>> plan = plan_run("runs/new", initial_arrays=ArrayRecord({"w": Array(np.zeros(3, np.float32))}),
        ...                 mechanism=tff_mf.Identity(), rounds=4, participation=tff_mf.SingleParticipation(),
        ...                 delta=1e-6, clients_per_round=2, noise_multiplier=8.0)
        >>> plan.grid, plan.dimension
        (Grid(bits=14, max_clients=1000), 3)
    """
    dimension = sum(value.size for value in model_arrays(initial_arrays).values())
    chosen = grid_of(grid, dimension=dimension, cohort=checked_cohort(clients_per_round, cohort))
    begun = pathlib.Path(folder) / RUN_JSON
    if begun.is_file() and read_record(begun.parent).grid is None:
        chosen = None
    plan = plan_privacy(
        clients_per_round=clients_per_round,
        cohort=cohort,
        grid=chosen,
        dimension=None if chosen is None else dimension,
        **more,
    )
    return guard.begun_plan(folder, plan)
