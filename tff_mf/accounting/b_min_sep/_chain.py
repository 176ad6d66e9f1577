"""Rounds of a client with b-min-sep sampling: a Markov chain, and sums over all its histories.

A client that was in none of the last b − 1 cohorts is free, and joins the next one with probability p. Before the first
round it is as after many: free with probability 1/(1 + (b − 1)p), and otherwise after j = 1, …, b − 1 rounds, each with
p times that probability.
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """The sampling of one client.

    Attributes:
        rounds: Number of rounds n.
        min_sep: b, at least 2.
        probability: p, above 0 and at most 1.
    """

    rounds: int
    min_sep: int
    probability: float

    @property
    def share(self) -> float:
        """The probability of each round to have the client in its cohort."""
        return self.probability / (1 + (self.min_sep - 1) * self.probability)

    @property
    def start(self) -> np.ndarray:
        """The probability that the client is free after j = 0, …, b − 1 rounds, float64 `[b]`."""
        weights = np.full(self.min_sep, self.probability)
        weights[0] = 1.0
        return weights / (1 + (self.min_sep - 1) * self.probability)

    def log_rest(self, logs: np.ndarray) -> np.ndarray:
        """Returns log B_t, where B_t sums over the histories from round t on of a client that is free then.

        B_t = (1 − p)·B_(t+1) + p·w_t·B_(t+b), and B_t = 1 for t ≥ n.

        Args:
            logs: log w_t, the weight of being in cohort t, float64 `[rounds, …]`.

        Returns:
            log B_t for t = 0, …, n + b − 1, float64 `[rounds + min_sep, …]`.

        Source: Dong and Ganesh (2026), "Privacy amplification for BandMF via b-min-sep subsampling", equation 2.
        """
        joins = math.log(self.probability)
        stays = math.log1p(-self.probability) if self.probability < 1 else -math.inf
        found = np.zeros((self.rounds + self.min_sep, *logs.shape[1:]))
        for t in range(self.rounds - 1, -1, -1):
            found[t] = np.logaddexp(stays + found[t + 1], joins + logs[t] + found[t + self.min_sep])
        return found

    def log_sum(self, logs: np.ndarray) -> np.ndarray:
        """Returns log Σ_x π(x) Π_{t in x} w_t over all histories x with their probabilities π, float64 `[…]`."""
        rest = self.log_rest(logs)[: self.min_sep]
        most = rest.max(axis=0)
        return most + np.log(np.tensordot(self.start, np.exp(rest - most), axes=1))

    @property
    def log_never(self) -> float:
        """The logarithm of the probability that the client takes part in no round."""
        if self.probability == 1:
            waits = self.start[self.rounds :]
            return math.log(waits.sum()) if len(waits) else -math.inf
        left = np.maximum(self.rounds - np.arange(self.min_sep), 0)
        return math.log(float(self.start @ np.exp(left * math.log1p(-self.probability))) + 1e-300)

    def draws(self, logs: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
        """Returns histories with probabilities proportional to π(x) Π_{t in x} w_t, bool `[count, rounds]`.

        Args:
            logs: log w_t, float64 `[rounds]`.
            count: Number of histories.
            generator: Source of random numbers.
        """
        rest, apart = self.log_rest(logs), self.min_sep
        weights = self.start * np.exp(rest[:apart] - rest[:apart].max())
        free_from = generator.choice(apart, p=weights / weights.sum(), size=count)
        chances = np.exp(math.log(self.probability) + logs + rest[apart:] - rest[: self.rounds])
        found = np.zeros((count, self.rounds), dtype=bool)
        for t in range(self.rounds):
            found[:, t] = (free_from <= t) & (generator.random(count) < chances[t])
            free_from = np.where(found[:, t], t + apart, free_from)
        return found
