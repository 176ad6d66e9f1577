"""Time of each rule for sensitivity at n = 2052.

    python benchmarks/sensitivity.py

Matrices are random, with entries of both signs, so that no rule can end early. Times are the minimum of three, of the
wall clock and of the processor; the two differ if the machine is busy.
"""

import dataclasses
import itertools
import time

import numpy as np

import tff_mf
from tff_mf.mechanisms import BandedMechanism, ToeplitzMechanism

ROUNDS = 2052
REPEATS = 3
SCHEMAS = [(342, 6), (100, 20), (20, 60), (2, 1026), (1, 1000)]


class AsStored:
    """A mechanism that ignores the rounding of its values to float32."""

    def cast_to_float32(self):
        return self


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Whole(AsStored, tff_mf.Mechanism):
    """A mechanism of any matrix."""

    kind = "any matrix"
    matrix: np.ndarray

    def encoder(self, rounds):
        return self.matrix[:rounds, :rounds]

    def inverse(self, rounds):
        return np.linalg.inv(self.encoder(rounds))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Bands(AsStored, BandedMechanism):
    """A banded mechanism of any diagonals."""

    kind = "banded"
    values: np.ndarray

    @property
    def bands(self):
        return len(self.values)

    def diagonals(self, rounds):
        return self.values[:, :rounds]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Column(AsStored, ToeplitzMechanism):
    """A Toeplitz mechanism of any coefficients."""

    kind = "Toeplitz"
    column: np.ndarray

    def coefficients(self, rounds):
        return self.column[:rounds]

    def inverse_coefficients(self, rounds):
        return np.linalg.inv(self.encoder(rounds))[:, 0]


def timed(mechanism, participation):
    walls, processors = [], []
    for _ in range(REPEATS):
        wall, processor = time.perf_counter(), time.process_time()
        result = tff_mf.explain_sensitivity(mechanism, ROUNDS, participation)
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return min(walls), min(processors), result


def main():
    generator = np.random.default_rng(0)
    mechanisms = [
        Whole(matrix=np.tril(generator.standard_normal((ROUNDS, ROUNDS)))),
        Bands(values=generator.standard_normal((342, ROUNDS))),
        Column(column=generator.standard_normal(ROUNDS)),
        Column(column=np.sort(generator.random(ROUNDS))[::-1]),
    ]
    print(f"{'matrix':10} {'schema':10} {'b':>4} {'k':>5} {'wall s':>7} {'cpu s':>7}  rule")
    for mechanism, schema in itertools.product(mechanisms, (tff_mf.MinSep, tff_mf.FixedEpoch)):
        for min_sep, most in SCHEMAS:
            participation = schema(min_sep=min_sep, max_participations=most)
            wall, processor, result = timed(mechanism, participation)
            row = f"{mechanism.kind:10} {schema.__name__:10} {min_sep:4} {most:5} {wall:7.3f} {processor:7.3f}"
            print(f"{row}  {result.rule}", flush=True)


if __name__ == "__main__":
    main()
