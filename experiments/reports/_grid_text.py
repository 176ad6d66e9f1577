"""Sentences on the grid of a run."""

from collections.abc import Mapping
from typing import Any

from ..output.text import words
from ._arithmetic import GRID
from ._layout import tiny


def lines(report: Mapping[str, Any]) -> list[str]:
    """Returns on which grid updates are summed and noised, and what it costs; nothing in floating point."""
    grid = report.get(GRID)
    if grid is None:
        return []
    found = [
        f"Updates, sums and noise are integers in units of 2^-{grid['bits']} of the clip norm. A sum has room for "
        f"{grid['max_clients']} clients in {grid['integers']}, and needs {grid['bits_per_coordinate']} bits a "
        "coordinate.",
        f"The normals are those of {words(grid['sampler'])}.",
    ]
    if grid["mu"] is None:
        return found
    figures = {name: tiny(grid[name]) for name in ("error", "log_ratio", "mu", "tail")}
    return [
        *found,
        f"The error e of the recursion is at most {figures['error']} units, and the error η of a normal up to "
        f"{grid['limit']} standard deviations at most {figures['log_ratio']}, as a logarithm of probabilities.",
        f"For at most {grid['dimension']} parameters they cost a μ_c of {figures['mu']}, which μ has in it twice, and "
        f"the tail is a total variation of {figures['tail']}, which δ has in it (each rounded up).",
    ]
