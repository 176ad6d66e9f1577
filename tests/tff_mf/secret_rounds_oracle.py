"""Slow and direct computations of δ(ε) where a client's rounds are drawn at random, by lists of all of them."""

import itertools
import math

import numpy as np


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


def quadrature(encoder, histories, chances, sigma, epsilon, *, remove, points, reach=9.0):
    """Returns δ(ε), by trapezoids over all outputs."""
    signals = histories @ encoder.T / sigma
    shift = float(signals.max())
    axis = np.linspace(-reach, reach + shift, points)
    weight = np.exp(-axis * axis / 2) / math.sqrt(2 * math.pi) * (axis[1] - axis[0])
    grids = np.meshgrid(*[axis] * len(encoder), indexing="ij")
    weights = np.prod(np.meshgrid(*[weight] * len(encoder), indexing="ij"), axis=0)
    ratio = sum(
        chance * np.exp(sum(mean * grid for mean, grid in zip(signal, grids, strict=True)) - signal @ signal / 2)
        for chance, signal in zip(chances, signals, strict=True)
    )
    level = math.exp(epsilon)
    return float(np.sum(weights * np.maximum(ratio - level if remove else 1 - level * ratio, 0)))
