"""The random numbers of the noise, and the arithmetic of what is released, as a report states them."""

from collections.abc import Mapping
from typing import Any

from tff_mf import grids
from tff_mf.base.strict_json import finite

from ..output.text import words
from ..run_folder.run_record import RunRecord
from . import _layout
from ._evidence import ASSUMED, HOLDS, VIOLATED, Case, Judged
from ._figures import Figures
from ._layout import tiny

# The engine of `tff_mf.experiments.flower`, in the settings of its runs.
_FLOWER = "flwr"
_TABLES = "tables and inverse transform, float64, with a proved error"
_BOX_MULLER = "Box-Muller, float32"

_IN_TENSORFLOW = {
    "algorithm": f"Philox 4x32-10 (TensorFlow stateless random), {_BOX_MULLER}",
    "entropy": "128 bits of /dev/urandom for every round, drawn in the graph when the round runs",
    "secure_mode": False,
}
_ON_GRID = f"Philox 4x32-10, {_TABLES}"

# Of the streams in NumPy, by generator.
_ALGORITHMS = {
    "aes": f"AES-128 in counter mode, {_TABLES}",
    "philox": f"Philox 4x64-10 (NumPy), {_TABLES}",
    "tensorflow": f"Philox 4x32-10 (TensorFlow's, in NumPy), {_BOX_MULLER}",
}
_STATISTICAL = ("philox", "tensorflow")
_ENTROPY = "128 bits of the operating system's generator for every round, drawn when the round runs"

_SECRETS = {
    "severity": "critical",
    "what": "a fixed seed; a state stepped twice with both results released; a state published",
}
_PHILOX = {
    "severity": "theoretical",
    "what": "Philox is not a cryptographic generator: no proof rules out that its output can be predicted",
}
_KEY_BYTES = {"severity": "negligible", "what": "127.8 rather than 128 bits: two byte values cannot occur in a key"}


def randomness_section(record: RunRecord) -> dict[str, Any]:
    """Returns what a run draws its noise from, and what can be wrong with that, as JSON."""
    on_grid = record.grid is not None
    if record.settings.get("engine") != _FLOWER and "generator" not in record.settings:
        return _of_tensorflow(on_grid=on_grid, insecure_seed=record.insecure_seed)
    # Without the setting, the defaults of the streams.
    generator = record.settings.get("generator", "tensorflow" if on_grid else "philox")
    algorithm = _ON_GRID if on_grid and generator == "tensorflow" else _ALGORITHMS.get(str(generator), str(generator))
    return {
        "algorithm": algorithm,
        "entropy": _ENTROPY,
        "secure_mode": generator == "aes" and record.insecure_seed is None,
        "insecure_seed": record.insecure_seed,
        "severities": [_SECRETS, _PHILOX] if generator in _STATISTICAL else [_SECRETS],
    }


def _of_tensorflow(*, on_grid: bool, insecure_seed: int | None) -> dict[str, Any]:
    return {
        **_IN_TENSORFLOW,
        **({"algorithm": _ON_GRID} if on_grid else {}),
        "insecure_seed": insecure_seed,
        "severities": [_SECRETS, _PHILOX, _KEY_BYTES],
    }


# The name of the assumption, and the name of the section that reports have on a grid.
ARITHMETIC, GRID = "arithmetic", "grid"


def judged(case: Case) -> Judged:
    """Returns whether the guarantee is about the numbers that are released, or about the real numbers behind floats."""
    grid, dimension, found = case.record.grid, case.record.dimension, case.evidence.parameters
    if grid is None or dimension is None:
        return ASSUMED, _layout.AS_REAL_NUMBERS
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
    return _layout.ARITHMETIC_IN_FLOATS if record.grid is None else _layout.ARITHMETIC_ON_GRID


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
