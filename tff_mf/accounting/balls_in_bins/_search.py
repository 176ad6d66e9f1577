"""Proposals of importance sampling near the best for one ε."""

import numpy as np

from tff_mf.accounting.balls_in_bins._directions import Add, Remove
from tff_mf.accounting.balls_in_bins._pair import Pair
from tff_mf.accounting.balls_in_bins._tilts import Sampler, Tilts
from tff_mf.accounting.betting import best_bets

_PILOT = 8000
# Shares of the powers to try, and θ of the remaining share.
_POWERS = ((0.1, 0.0, 0.0, 0.0), (0.1, 0.2, 0.4, 0.0), (0.1, 0.1, 0.2, 0.4), (0.05, 0.05, 0.1, 0.75))
_TILTS = (1.3, 1.7, 2.3, 3.0, 4.5, 7.0, 11.0, 16.0)
_SHIFTS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0)


def remove_direction(pair: Pair, epsilon: float, generator: np.random.Generator) -> Remove:
    """Returns proposals near the best for δ(ε), found by a pilot."""
    sampler = Sampler(pair)
    found = []
    for powers in _POWERS:
        if powers[3] and not sampler.has_fourth:
            continue
        tried = [Remove(sampler=sampler, tilts=Tilts(powers=powers, tilt=tilt)) for tilt in _TILTS]
        tried = sorted(tried, key=lambda each: each.most(epsilon))[: 3 if powers is _POWERS[0] else 1]
        found += [(_growth(each, epsilon, generator), index, each) for index, each in enumerate(tried, len(found))]
    return max(found)[-1]


def add_direction(pair: Pair, epsilon: float) -> Add:
    """Returns the proposal with the smallest range."""
    return min((Add(pair=pair, shift=shift) for shift in _SHIFTS), key=lambda each: each.most(epsilon))


def _growth(direction: Remove, epsilon: float, generator: np.random.Generator) -> float:
    """Returns by how much a bet on a tenth more than the mean grows per sample."""
    values = direction.sample(_PILOT // 2, generator).values(epsilon)
    mean = 1.1 * float(np.mean(values)) + 1e-300
    return max(
        float(np.mean(np.log1p(stake * (mean - values)))) for stake in best_bets(values, mean, direction.most(epsilon))
    )
