"""Slow and direct computations of δ(ε) where a client's rounds are drawn at random, by lists of all of them."""

import functools
import itertools
import math

import numpy as np

import tff_mf

# Steps of an axis, by the number of axes.
POINTS = {1: 20_001, 2: 401, 3: 121}


def coins(rounds, probability, of):
    """Returns all sets of rounds of a client that tosses a coin in some of them, as rows, with their probabilities."""
    found = [
        (joins, math.prod(probability if join else 1 - probability for t, join in enumerate(joins) if t in of))
        for joins in itertools.product((0, 1), repeat=rounds)
        if not any(join for t, join in enumerate(joins) if t not in of)
    ]
    return np.array([joins for joins, _ in found], float), np.array([chance for _, chance in found])


def min_sep_histories(rounds, min_sep, probability):
    """Returns every set of rounds of a client with b-min-sep sampling as a row, with its probability."""
    found = {}
    free = 1 / (1 + (min_sep - 1) * probability)
    for wait in range(min_sep):
        for joins in itertools.product((0, 1), repeat=rounds):
            chance, free_from = free if wait == 0 else free * probability, wait
            for t, join in enumerate(joins):
                if t < free_from:
                    chance *= not join
                else:
                    chance *= probability if join else 1 - probability
                    free_from = t + min_sep if join else free_from
            if chance:
                found[joins] = found.get(joins, 0.0) + chance
    return np.array(list(found), float), np.array(list(found.values()))


def laws(sampling, rounds):
    """Returns the laws of a client's rounds, one of which is its own and known: histories with their probabilities."""
    match sampling:
        case tff_mf.Poisson(population=population, clients_per_round=size):
            return [coins(rounds, size / population, range(rounds))]
        case tff_mf.CyclicPoisson(groups=groups, population=population, clients_per_round=size):
            probability = size / (population // groups)
            return [coins(rounds, probability, range(group, rounds, groups)) for group in range(groups)]
        case tff_mf.BallsInBins(groups=groups):
            return [(np.resize(np.eye(groups), (rounds, groups)).T, np.full(groups, 1 / groups))]
        case tff_mf.BMinSep(min_sep=min_sep, probability=probability):
            return [min_sep_histories(rounds, min_sep, probability)]


def quadrature(encoder, histories, chances, sigma, epsilon, *, remove, points=None, reach=9.0):
    """Returns δ(ε), by trapezoids over all outputs, along the axes in which what the client adds differs from 0."""
    signals = histories @ encoder.T / sigma
    _, sizes, axes = np.linalg.svd(signals, full_matrices=False)
    means = signals @ axes[sizes > 1e-9 * sizes[0]].T
    steps = [np.linspace(min(0, low) - reach, max(0, high) + reach, points or POINTS[means.shape[1]])
             for low, high in zip(means.min(axis=0), means.max(axis=0), strict=True)]  # fmt: skip
    weights = [np.exp(-axis * axis / 2) / math.sqrt(2 * math.pi) * (axis[1] - axis[0]) for axis in steps]
    ratio = sum(
        chance
        * functools.reduce(
            np.multiply.outer, [np.exp(m * axis - m * m / 2) for m, axis in zip(mean, steps, strict=True)]
        )
        for chance, mean in zip(chances, means, strict=True)
    )
    level = math.exp(epsilon)
    return float(
        np.sum(
            functools.reduce(np.multiply.outer, weights) * np.maximum(ratio - level if remove else 1 - level * ratio, 0)
        )
    )


def worst_quadrature(encoder, sampling, sigma, epsilon):
    """Returns the largest δ(ε) over both directions, all groups, and, of a few rounds, all signs of what is sent."""
    rounds = len(encoder)
    return max(
        quadrature(encoder * np.resize((1, *signs), rounds), *law, sigma, epsilon, remove=remove)
        for law in laws(sampling, rounds)
        for signs in itertools.product((1, -1), repeat=rounds - 1 if rounds < 4 and np.any(encoder < 0) else 0)
        for remove in (True, False)
    )
