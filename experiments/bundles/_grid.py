"""The grid of a bundle: what its manifest says of it, against `run.json` and against the types of its graphs."""

import math
from collections.abc import Mapping
from typing import Any

from tff_mf import grids
from tff_mf.errors import InputError

from ..run_folder.run_record import RunRecord
from ._manifest import Manifest

_TOTAL = "__total__"


def totals(manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
    """Returns the types of the parts of a sum: the records, and on a grid, last, the number of clients."""
    return {name: spec for name, spec in manifest.stages["zero"]["outputs"].items() if _TOTAL in name}


def grid_problem(manifest: Manifest, run: RunRecord) -> str:
    """Returns how the grid in a manifest differs from the grid of `run.json` or of the graphs, or an empty text.

    Formal guarantee: if the text is empty, the manifest has a grid exactly if `run.json` has one, with the same bits
    and room; its sampler is the one that this release computes the charge of; devices send, and sums are, integers of
    its width and nothing else, or floats without a grid; a sum has room for the whole cohort; and a record has no more
    coordinates than the charge in the report is computed for. That the graphs have the types of the manifest, and round
    to this grid, is for `verify` to find.
    """
    try:
        expected = None if run.grid is None else grids.description(run.grid)
    except InputError as error:
        return str(error)
    if (manifest.grid is None) != (expected is None):
        return f"grid={manifest.grid!r:.80} is not the {'floating point' if expected is None else 'grid'} of run.json"
    if manifest.grid is None or expected is None or run.grid is None:
        return _kinds(manifest, "float")
    for name, value in expected.items():
        if manifest.grid[name] != value:
            return f"grid.{name}={manifest.grid[name]!r} is not the {value!r} of run.json and this release"
    if run.clients_per_round > run.grid.max_clients:
        return f"grid.max_clients={run.grid.max_clients} is less than the {run.clients_per_round} clients of a round"
    return _kinds(manifest, run.grid.integers) or _sizes(manifest, run)


def _kinds(manifest: Manifest, kind: str) -> str:
    """Returns which part of an update or a sum is of another type, or an empty text."""
    for name, spec in {**manifest.stages["work"]["outputs"], **totals(manifest)}.items():
        if not spec["dtype"].startswith(kind):
            return f"{name} is {spec['dtype']}, unlike the {kind} of run.json"
    return ""


def _sizes(manifest: Manifest, run: RunRecord) -> str:
    """Returns how the shapes of a record or a sum of integers are wrong, or an empty text."""
    summed = [spec["shape"] for spec in totals(manifest).values()]
    sent = [spec["shape"] for spec in manifest.stages["work"]["outputs"].values()]
    if not summed or summed != sent or summed[-1] != [] or None in [size for shape in summed for size in shape]:
        return "work does not return a record and the number of its clients, as its sum needs"
    found = sum(math.prod(shape) for shape in summed[:-1])
    if run.dimension is None or found > run.dimension:
        return f"a record has {found} coordinates, more than the dimension={run.dimension} of run.json"
    return ""
