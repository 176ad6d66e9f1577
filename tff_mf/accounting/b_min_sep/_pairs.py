"""Pairs of histories, weighted by what their rounds have in common: a Markov chain on pairs of ages.

The weight of (x, x′) is π(x)·π(x′)·exp(θ⟨Cx, Cx′⟩/σ² + θ(θ − 1)‖Cx′‖²/2σ²). Rounds of one history are at least b apart,
and C has at most b bands: a round has inner products with at most one earlier round of the other history that is still
within b rounds, its last one. The age of a history is the number of rounds since its last one, or 0 from b on.
"""

import math

import numpy as np

from tff_mf.accounting.b_min_sep._chain import Chain

# Tables of ages whose product with the square root of the rounds is larger take gigabytes.
MOST_MIN_SEP = 512


class Pairs:
    """Weights of pairs of histories for one θ.

    Args:
        chain: The sampling of a client.
        inner: inner[t, j] = ⟨c_t, c_(t−j)⟩/σ² for the columns c of C, 0 if t < j; float64 `[rounds, min_sep]`.
        tilt: θ, at least 1.
    """

    def __init__(self, chain: Chain, inner: np.ndarray, tilt: float):
        self._chain, self._tilt = chain, tilt
        self._together = np.exp(tilt * inner)
        self._alone = np.exp(tilt * (tilt - 1) / 2 * inner[:, 0])
        self._every = max(1, math.isqrt(chain.rounds))
        self._kept: list[np.ndarray] = []
        start = np.concatenate([chain.start[:1], chain.start[:0:-1]])
        table, self.log_sum = np.outer(start, start), 0.0
        for t in range(chain.rounds):
            if t % self._every == 0:
                self._kept.append(table)
            table, scale = self._after(table, t)
            self.log_sum += math.log(scale)
        self._last = table

    def _after(self, table: np.ndarray, t: int) -> tuple[np.ndarray, float]:
        """Returns the weights of ages after round t, divided by their sum, and the sum; both are above 0."""
        p = self._chain.probability
        stays = np.ones(len(table))
        stays[0] = 1 - p
        meets = np.concatenate([[1.0], self._together[t, 1:]]) * stays
        found = np.zeros_like(table)
        both = table * stays[:, np.newaxis] * stays
        found[2:, 2:] = both[1:-1, 1:-1]
        found[0, 2:] = both[0, 1:-1] + both[-1, 1:-1]
        found[2:, 0] = both[1:-1, 0] + both[1:-1, -1]
        found[0, 0] = both[0, 0] + both[0, -1] + both[-1, 0] + both[-1, -1]
        found[1] += self._aged(p * table[0] * meets)
        found[:, 1] += self._aged(p * self._alone[t] * table[:, 0] * meets)
        found[1, 1] += p * p * table[0, 0] * self._together[t, 0] * self._alone[t]
        scale = float(found.sum())
        return found / scale, scale

    @staticmethod
    def _aged(row: np.ndarray) -> np.ndarray:
        found = np.zeros_like(row)
        found[2:] = row[1:-1]
        found[0] = row[0] + row[-1]
        return found

    def draws(self, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns pairs with probabilities proportional to their weights, each bool `[count, rounds]`.

        Ages after the last round are drawn first, and then those before each round, given those after it.
        """
        rounds, bins = self._chain.rounds, self._chain.min_sep
        first, second = (np.zeros((count, rounds), dtype=bool) for _ in range(2))
        place = generator.choice(bins * bins, p=(self._last / self._last.sum()).ravel(), size=count)
        ages = np.divmod(place, bins)
        for begin in range((len(self._kept) - 1) * self._every, -1, -self._every):
            tables = [self._kept[begin // self._every]]
            for t in range(begin, min(begin + self._every, rounds) - 1):
                tables.append(self._after(tables[-1], t)[0])
            for t in range(begin + len(tables) - 1, begin - 1, -1):
                ages, first[:, t], second[:, t] = self._before(tables[t - begin], t, ages, generator)
        return first, second

    def _before(self, table: np.ndarray, t: int, ages, generator: np.random.Generator):
        """Returns ages before round t given those after it, and which histories have round t."""
        joined = [age == 1 for age in ages]
        # An age of 1 was 0 before; 0 was 0 or b − 1; any other was less by 1.
        younger = [np.maximum(age - 1, 0) for age in ages]
        oldest = [np.where(age == 0, len(table) - 1, before) for age, before in zip(ages, younger, strict=True)]
        choices = [(younger[0], younger[1]), (younger[0], oldest[1]), (oldest[0], younger[1]), (oldest[0], oldest[1])]
        weights = np.array([self._step(table, t, joined, before) for before in choices])
        # Where there is no choice, the same ages are not counted twice.
        weights[1] *= ages[1] == 0
        weights[2] *= ages[0] == 0
        weights[3] *= (ages[0] == 0) & (ages[1] == 0)
        sums = np.cumsum(weights, axis=0)
        chosen = np.sum(sums[:3] <= generator.random(sums.shape[1]) * sums[3], axis=0)
        before = tuple(np.choose(chosen, [pair[history] for pair in choices]) for history in range(2))
        return before, joined[0], joined[1]

    def _step(self, table: np.ndarray, t: int, joined, before) -> np.ndarray:
        """Returns the weight of ages before round t times that of what the histories do in it."""
        p = self._chain.probability
        moves = [np.where(now, p, np.where(age == 0, 1 - p, 1.0)) for now, age in zip(joined, before, strict=True)]
        weight = table[before] * moves[0] * moves[1] * np.where(joined[1], self._alone[t], 1.0)
        both = joined[0] & joined[1]
        near = np.where(joined[0], before[1], np.where(joined[1], before[0], 0))
        return weight * np.where(both | (near > 0), self._together[t, near], 1.0)
