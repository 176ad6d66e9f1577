"""The exact law of the tables of normals, computed from their integers alone; proofs: docs/proofs.md."""

import itertools
import math

import mpmath
import numpy as np
from mpmath import mpf

GRID = 2**20
DIGITS = 45
# Of the Taylor polynomials that pieces are compared with.
ORDER = 14


class BrokenTablesError(Exception):
    """The tables do not have the form that the proof assumes."""


def total(table, level):
    """The probability to reach a level, a sum of exact ones."""
    reached = 1 - mpf(len(table.layers)) / 512
    for earlier in range(level):
        reached *= mpf(table.masses(earlier)[-1]) / 2**64
    return reached


def density(x):
    """The density of |Z|."""
    return mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-x * x / 2)


def control_points(table, level):
    """Yields each piece's ends and the Bernstein coefficients of its density, that of the layers included."""
    edges, masses = table.edges[level].tolist(), table.masses(level)
    widths = sorted(table.layers.tolist(), reverse=True)
    reached = total(table, level) / 2**64
    heights = [mpf(0), *itertools.accumulate(mpf(GRID) / (512 * width) for width in widths)]
    wider = len(widths) if level == 0 else 0
    for piece, (left, right) in enumerate(itertools.pairwise(edges)):
        # Layers as wide as the piece's right end cover all of it; a layer that ends within it breaks the tables.
        while wider and widths[wider - 1] < right:
            wider -= 1
            if widths[wider] > left:
                raise BrokenTablesError("a layer ends within a piece")
        length = mpf(right - left) / GRID
        own = masses[6 * piece : 6 * piece + 6]
        yield mpf(left) / GRID, length, [heights[wider] + mass * reached * 6 / length for mass in own]


def _bernstein(order):
    """Rows k: Bernstein coefficients of degree `order` of (t − ½)^k."""
    rows = []
    for power in range(order + 1):
        # The coefficients of (t − ½)^power of its own degree, by products of those of (−½, ½), then raised.
        row = [mpf(1)]
        for degree in range(power):
            # B_{i,m}·B_{j,1} = C(m, i)·C(1, j)/C(m + 1, i + j)·B_{i+j,m+1}.
            following = [mpf(0)] * (degree + 2)
            for i, value in enumerate(row):
                weight = value * math.comb(degree, i)
                following[i] -= weight / 2 / math.comb(degree + 1, i)
                following[i + 1] += weight / 2 / math.comb(degree + 1, i + 1)
            row = following
        rows.append(raised(row, order))
    return rows


def raised(row, order):
    """The Bernstein coefficients of a higher degree."""
    for degree in range(len(row) - 1, order):
        row = [
            (row[i - 1] * i if i else 0) / mpf(degree + 1)
            + (row[i] * (degree + 1 - i) if i <= degree else 0) / mpf(degree + 1)
            for i in range(degree + 2)
        ]
    return row


def density_errors(table, levels=None, every=1):
    """A proved bound on |log(density of the tables / density of |Z|)| for each level."""
    with mpmath.workdps(DIGITS):
        powers = list(zip(*_bernstein(ORDER), strict=True))
        raising = list(zip(*(raised([mpf(i == j) for j in range(6)], ORDER) for i in range(6)), strict=True))
        found = []
        for level in range(table.levels) if levels is None else levels:
            worst = mpf(0)
            for left, length, points in itertools.islice(control_points(table, level), 0, None, every):
                worst = max(worst, _piece_error(left, length, points, powers, raising))
            found.append(-mpmath.log(1 - worst) if worst < 1 else mpmath.inf)
        return found


def _piece_error(left, length, points, powers, raising):
    """The largest |p − f|/f on a piece is at most that of the control points of p − T, plus Taylor's remainder."""
    middle = left + length / 2
    # y(s) = f(middle + length·s) has y' = −length·(middle + length·s)·y.
    taylor = [density(middle)]
    taylor.append(-length * middle * taylor[0])
    for k in range(1, ORDER):
        taylor.append(-(length * middle * taylor[k] + length**2 * taylor[k - 1]) / (k + 1))
    difference = max(
        abs(mpmath.fdot(raise_, points) - mpmath.fdot(power, taylor))
        for raise_, power in zip(raising, powers, strict=True)
    )
    # Cauchy's bound: |f(middle + R·e^{iφ})| ≤ f(middle)·exp(middle·R + R²/2).
    radius = ORDER / max(middle, mpf(4))
    share = length / 2 / radius
    assert share < 1 / 2
    remainder = density(middle) * mpmath.exp(middle * radius + radius**2 / 2) * share ** (ORDER + 1) / (1 - share)
    return (difference + remainder) / density(left + length)


def first_true(low, high, holds):
    """For each pair of low and high, the first integer between them for which a monotone condition holds, else high."""
    low, high = low.copy(), high.copy()
    while np.any(low < high):
        middle = low + (high - low) // 2
        true = holds(middle)
        high, low = np.where(true, middle, high), np.where(true, low, np.minimum(middle + 1, high))
    return low


def below(table, reaches):
    """The exact probability that reaches(ẑ) is false, for a condition that is monotone in ẑ.

    Args:
        table: The tables.
        reaches: A function of float64 arrays.
    """
    layers = len(table.layers)
    index = np.arange(layers)
    scales = table.scales[:layers]
    bottom = np.full(layers, -(2**54))
    count = first_true(bottom, -bottom, lambda u: reaches((u * 512 + index).astype(np.float64) * scales)) + 2**54
    exact = mpf(sum(int(each) for each in count)) / 2**64
    return exact + _below_of_pieces(table, reaches)


def _below_of_pieces(table, reaches):
    sign_free = mpf(0)
    for sign in (-1, 1):
        for level in range(table.levels):
            edges = table.edges[level]
            begin, length = edges[:-1], np.diff(edges)

            def values(uniform, begin=begin, length=length, sign=sign):
                position = (begin << 39) + ((length * uniform) >> 9)
                return sign * np.ldexp(position.astype(np.float64), -59)

            zeros, ends = np.zeros(len(begin), np.int64), np.full(len(begin), 2**48)
            if sign > 0:
                split = first_true(zeros, ends, lambda u: reaches(values(u)))
            else:
                split = first_true(zeros, ends, lambda u: ~reaches(values(u)))
            share = total(table, level) / 2**65
            masses = np.array(table.masses(level)[:-1], object).reshape(-1, 6)
            whole = split == 2**48
            full = sum(int(mass) for mass in masses[whole].ravel())
            everything = sum(int(mass) for mass in masses.ravel())
            counted = mpf(full)
            for piece in np.flatnonzero(~whole & (split > 0)):
                counted += mpmath.fdot(masses[piece].tolist(), _orders(mpf(int(split[piece])) / 2**48))
            sign_free += share * (counted if sign > 0 else everything - counted)
        # Beyond the last level lies its end.
        end = sign * float(table.edges[-1][-1]) / GRID
        if not reaches(np.array([end]))[0]:
            sign_free += total(table, table.levels) / 2
    return sign_free


def _orders(share):
    """The probabilities that the first, …, sixth of six uniforms is below `share`."""
    of_count = [math.comb(6, count) * share**count * (1 - share) ** (6 - count) for count in range(7)]
    return [mpmath.fsum(of_count[k:]) for k in range(1, 7)]
