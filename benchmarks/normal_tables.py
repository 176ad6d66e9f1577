"""Makes tff_mf/numerics/normals/tables.npz: tables of normals with a proved error (docs/proofs.md).

python benchmarks/normal_tables.py [--out FILE]

Nothing is assumed of this script: tests/tff_mf/test_normals.py computes the law of the tables from the file alone.
"""

import argparse
import itertools
import pathlib

import mpmath
import numpy as np
from mpmath import mpf

OUT = pathlib.Path(__file__).resolve().parent.parent / "tff_mf" / "numerics" / "normals" / "tables.npz"

LAYERS = 2**9
GRID = 2**20
DEGREE = 5
# Each level ends where 64 bits would no longer resolve the probabilities of its pieces.
LEVEL_ENDS = (5.5, 7.75, 9.5, 11, 12.375, 13.5)
WIDEST = 2**15 - 1
NODES = 14


def density(x: mpf) -> mpf:
    """Returns the density of |Z|."""
    return mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-x * x / 2)


def layers() -> list[int]:
    """Returns the widths of rectangles of area 1/LAYERS, one on the other under the density, in units of 1/GRID."""
    found: list[int] = []
    height, right = mpf(0), mpf(12)
    while True:
        room = lambda x, height=height: x * (density(x) - height) - mpf(1) / LAYERS  # noqa: E731
        # The room of a wider rectangle grows, then falls.
        low, high = mpf(0), right
        for _ in range(80):
            third = (high - low) / 3
            low, high = (low + third, high) if room(low + third) < room(high - third) else (low, high - third)
        if room(low) <= 0:
            return found
        high = right
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if room(middle) > 0 else (low, middle)
        # One step of the grid below the density, so that no probability of what is left comes out negative.
        found.append(int(mpmath.floor(low * GRID)) - 1)
        right = mpf(found[-1]) / GRID
        height += 1 / (LAYERS * right)


def split(begin: int, end: int) -> list[int]:
    """Returns the edges of pieces of [begin, end] after `begin`, short enough for polynomials of degree 5."""
    longest = min(WIDEST, int(0.1 * GRID * GRID / end))
    pieces = -(-(end - begin) // longest)
    return [begin + (end - begin) * piece // pieces for piece in range(1, pieces + 1)]


def edges(corners: list[int]) -> list[int]:
    found = [corners[0]]
    for end in corners[1:]:
        # In steps, as the longest piece shrinks to the right.
        while found[-1] < end:
            step = min(end, found[-1] + GRID // 8)
            found.extend(split(found[-1], step))
    return found


def projection() -> tuple[list[mpf], mpmath.matrix]:
    """Returns nodes in [0, 1], and the matrix from values there to Bernstein coefficients of the L2 projection.

    A projection, unlike an interpolation, keeps the probability of a piece.
    """
    roots = [_root(NODES, k) for k in range(1, NODES + 1)]
    # Gauss and Legendre's quadrature.
    weights = [2 * (1 - t * t) / (NODES * mpmath.legendre(NODES - 1, t)) ** 2 for t in roots]
    points = [mpf(k) / DEGREE for k in range(DEGREE + 1)]
    bernstein = mpmath.matrix(
        [[mpmath.binomial(DEGREE, k) * t**k * (1 - t) ** (DEGREE - k) for k in range(DEGREE + 1)] for t in points]
    )
    values = mpmath.matrix(
        [
            [
                weight
                * mpmath.fsum(
                    mpf(2 * k + 1) / 2 * mpmath.legendre(k, root) * mpmath.legendre(k, 2 * t - 1)
                    for k in range(DEGREE + 1)
                )
                for root, weight in zip(roots, weights, strict=True)
            ]
            for t in points
        ]
    )
    return [(root + 1) / 2 for root in roots], mpmath.inverse(bernstein) * values


def _root(degree: int, k: int) -> mpf:
    """Returns the k-th root of a Legendre polynomial, from its asymptotic place."""
    start = mpmath.cos(mpmath.pi * (4 * k - 1) / (4 * degree + 2))
    return mpmath.findroot(lambda t: mpmath.legendre(degree, t), (start, start + mpf("1e-6")))


def probabilities(level: int, cuts: list[int], widths: list[int]) -> list[mpf]:
    """Returns the probabilities of the order statistics of each piece, then that of lying beyond the level."""
    nodes, to_bernstein = projection()
    found: list[mpf] = []
    for left, right in itertools.pairwise(cuts):
        length = mpf(right - left) / GRID
        covered = mpmath.fsum(mpf(GRID) / (LAYERS * width) for width in widths if width >= right and level == 0)
        values = mpmath.matrix([density(mpf(left) / GRID + length * node) for node in nodes])
        found.extend(length * (value - covered) / (DEGREE + 1) for value in to_bernstein * values)
    assert min(found) >= 0, (level, min(found))
    return [*found, mpmath.erfc(mpf(cuts[-1]) / GRID / mpmath.sqrt(2))]


def whole_shares(masses: list[mpf], total: mpf) -> list[int]:
    """Returns the shares of a total in units of 2⁻⁶⁴, which sum to 1, each off by less than one unit."""
    exact = [mass / total * 2**64 for mass in masses]
    whole = [int(mpmath.floor(mass)) for mass in exact]
    missing = 2**64 - sum(whole)
    assert 0 <= missing <= len(whole), missing
    for place in sorted(range(len(whole)), key=lambda place: whole[place] - exact[place])[:missing]:
        whole[place] += 1
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    arguments = parser.parse_args()
    mpmath.mp.dps = 50
    widths = layers()
    arrays = {"layers": np.array(widths, np.uint32)}
    ends = [0, *(int(end * GRID) for end in LEVEL_ENDS)]
    total = 1 - mpf(len(widths)) / LAYERS
    for level, (begin, end) in enumerate(itertools.pairwise(ends)):
        cuts = edges([0, *reversed(widths), end] if level == 0 else [begin, end])
        masses = probabilities(level, cuts, widths)
        sums = list(itertools.accumulate(whole_shares(masses, total)[:-1], initial=-(2**63)))[1:]
        arrays[f"edges_{level}"] = np.array(cuts, np.uint32)
        arrays[f"cumulative_{level}"] = np.array(sums, np.int64)
        total = masses[-1]
        print(f"level {level}: {len(cuts) - 1} pieces to {end / GRID}, P(beyond) = {mpmath.nstr(total, 6)}")
    np.savez_compressed(arguments.out, **arrays)
    print(f"{len(widths)} layers of {LAYERS}; {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
