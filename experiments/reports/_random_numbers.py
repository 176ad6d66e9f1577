"""The random numbers and the arithmetic of a run, in words."""

from collections.abc import Iterable, Mapping
from typing import Any

_TABLES, _BOX_MULLER = "tables and inverse transform, float64, with a proved error", "Box-Muller, float32"
# What draws the noise, by generator, in floating point and on a grid.
_DRAWN = {
    "tensorflow graph": "Philox 4x32-10 (TensorFlow stateless random)",
    "aes": "AES-128 in counter mode",
    "philox": "Philox 4x64-10 (NumPy)",
    "tensorflow": "Philox 4x32-10 (TensorFlow's, in NumPy)",
}
_FLOAT32 = ("tensorflow graph", "tensorflow")


def random_numbers(report: Mapping[str, Any]) -> Iterable[str]:
    """Yields, in words, where random numbers come from, and in which arithmetic noise and figures are computed."""
    drawn, grid = report["randomness"], report["grid"]
    generator, seed = drawn["generator"], drawn["insecure_seed"]
    in_float32 = generator in _FLOAT32 and grid is None
    yield f"Random numbers: {_DRAWN.get(generator, generator)}, {_BOX_MULLER if in_float32 else _TABLES}."
    yield (
        "Keys: 128 bits of the operating system's generator for every round, drawn when the round runs."
        if seed is None
        else f"TEST ONLY: every key follows from the seed {seed}."
    )
    if grid is None:
        yield "Noise: float32, continuous Gaussian; the standard deviation is rounded up."
        yield "Accounting: float64 for the parameters as cast to float32; every figure is rounded up."
        return
    yield "Noise: integers in units of the grid: normals are rounded inside the recursion, and added to exact sums."
    yield (
        "Accounting: float64 for the parameters as cast to float32; every figure is rounded up. What the errors of the "
        "noise cost is part of μ twice, and what lies beyond its tail is part of δ. The proof takes the words of the "
        "generator for random ones."
    )
