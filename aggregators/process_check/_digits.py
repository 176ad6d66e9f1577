"""Checks the digits of a round without clients: whole numbers of a grid, or floats that give clients away."""

import numpy as np

import tff_mf
from tff_mf import normals

from ._result import Findings

# Of one rounding in float32. A sum is rounded to the model's type, divided, multiplied by the rate, and subtracted from
# weights of 0; the divisor and the rate are rounded too.
_UNIT = 2.0**-24
_ROUNDINGS = 6
_LARGEST_KNOWN = 2**20
# In standard deviations: beyond it, a box of the width below rarely has a pair by chance.
_FAR = 3.25
_BOX = 0.98e-6
_FEWEST_PAIRS = 20
_PRODUCED = 0.5

_ON_A_GRID = "Pass the same grid= to build_mf_aggregator and check_process; None if it has none."


def check(change: np.ndarray, *, unit: float, stddev: float, grid: tff_mf.Grid | None, findings: Findings) -> None:
    """Checks the digits of what a round without clients adds to the model.

    An adversary who knows all other updates subtracts them from a release, and looks at pairs of coordinates. If all
    pairs can be produced by float32 normals, a pair that cannot be produced proves that a client took part: the
    fraction is measured where there are enough pairs far out, and without a grid it is 1. On a grid hardly any pair can
    be produced, with a client or without; there, all digits are checked too, as far as float32 resolves them.

    Args:
        change: What the round adds to the model, in the order of the noise.
        unit: What one clip norm adds to it.
        stddev: Claimed standard deviation of the round's noise, in clip norms.
        grid: The claimed grid, or `None`.
        findings: Receives the fraction, and a finding of `noise` if the noise is not on the claimed grid.
    """
    produced = _produced(change / (unit * stddev))
    if produced is not None:
        findings.measured["pairs_of_float32_normals"] = produced
    if grid is None:
        return
    numbers = change / (unit / grid.largest_norm)
    numbers = numbers[np.abs(numbers) <= _LARGEST_KNOWN]
    away = np.abs(numbers - np.rint(numbers)) > _ROUNDINGS * _UNIT * np.abs(numbers)
    if np.any(away) or (produced or 0.0) > _PRODUCED:
        text = "The noise is in floating point, which gives clients away, and not on the claimed grid."
        findings.failed("noise", text, _ON_A_GRID)


def _produced(noise: np.ndarray) -> float | None:
    """Returns the fraction of pairs that float32 normals can give, of those far out; `None` for too few pairs."""
    pairs = noise[: len(noise) // 2 * 2].reshape(-1, 2)
    pairs = pairs[np.linalg.norm(pairs, axis=1) > _FAR]
    if len(pairs) < _FEWEST_PAIRS:
        return None
    return float(np.mean(normals.producible_pairs(pairs - _BOX / 2, pairs + _BOX / 2, stddev=1.0)))
