"""What a report says about the numbers that are released: integers of a grid, or floats that stand for real numbers."""

from collections.abc import Mapping
from typing import Any

from tff_mf import grids

from ..run_folder.run_record import RunRecord
from . import _texts
from ._case import Case
from ._figures import Figures, finite
from ._findings import ASSUMED, HOLDS, VIOLATED, Judged

# The name of the assumption, and the name of the section that reports have on a grid.
ARITHMETIC, GRID = "arithmetic", "grid"


def judged(case: Case) -> Judged:
    """Returns whether the guarantee is about the numbers that are released, or about the real numbers behind floats."""
    grid, dimension, found = case.record.grid, case.record.dimension, case.evidence.parameters
    if grid is None or dimension is None:
        return ASSUMED, _texts.AS_REAL_NUMBERS
    if found is not None and found > dimension:
        return VIOLATED, (
            f"the model has {found} parameters, and what the grid costs was accounted for as if there were {dimension}"
        )
    if case.realised and found is None:
        return ASSUMED, (
            "updates, their sums and the noise are integers of a grid, and what their arithmetic costs is part of μ "
            f"and δ for a model of at most {dimension} parameters; the folder has no model whose parameters could be "
            "counted"
        )
    return HOLDS, (
        "updates, their sums and the noise are integers of a grid, and what their arithmetic costs is part of μ and δ: "
        "the guarantee is about the numbers that are released"
    )


def arithmetic_section(record: RunRecord, figures: Figures | None) -> dict[str, Any] | None:
    """Returns the grid of a run and what it costs, as JSON; `None` in floating point."""
    grid = record.grid
    if grid is None:
        return None
    charge = None if figures is None else figures.charge
    return {
        "bits": grid.bits,
        "max_clients": grid.max_clients,
        "integers": grid.integers,
        "bits_per_coordinate": grid.bits_per_coordinate,
        "dimension": record.dimension,
        "sampler": grids.sampler(),
        "limit": None if charge is None else charge.limit,
        "error": None if charge is None else finite(charge.error),
        "log_ratio": None if charge is None else finite(charge.log_ratio),
        "mu": None if charge is None else finite(charge.mu),
        "added_sensitivity": None if charge is None else finite(charge.sensitivity),
        "tail": None if charge is None else finite(charge.tail),
    }


def arithmetic(record: RunRecord) -> Mapping[str, str]:
    """Returns how a run computes, and what can be wrong with that."""
    return _texts.ARITHMETIC_IN_FLOATS if record.grid is None else _texts.ARITHMETIC_ON_GRID
