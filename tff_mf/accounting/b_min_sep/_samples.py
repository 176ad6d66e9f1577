"""b-min-sep sampling by samples: histories of a client, pairs of them, and the proposals of both directions.

**Histories.** A client that was in none of the last b − 1 cohorts is free, and joins the next one with probability p.
Before the first round it is as after many: free with probability 1/(1 + (b − 1)p), and otherwise after j = 1, …, b − 1
rounds, each with p times that probability.

**Pairs** (x, x′) have the weight π(x)·π(x′)·exp(θ⟨Cx, Cx′⟩/σ² + θ(θ − 1)‖Cx′‖²/2σ²). Rounds of one history are at least
b apart, and C has at most b bands: a round has inner products with at most one earlier round of the other history that
is still within b rounds, its last one. The age of a history is the number of rounds since its last one, or 0 from b on.

**Proposals.** In units of σ, the outputs y are standard normal without the client, and have the mean Cx/σ with it. The
likelihood ratio is Z = Σ_x π(x) exp(Σ_{t in x} u_t) with u_t = ⟨c_t, y⟩/σ − ‖c_t‖²/2σ²; T_θ is the same sum with θ·u_t.
Densities of proposals divided by that of y without the client:

    tilt θ:  T_θ/E[T_θ]         ≥ Z^θ/E[T_θ], by the inequality of power means;
    pair θ:  Z·T_θ/E[Z·T_θ]     ≥ Z^(1 + θ)/E[Z·T_θ].

Z follows from the recursion of Dong and Ganesh (2026), B_t = (1 − p)·B_(t+1) + p·e^(u_t)·B_(t+b) with B_t = 1 for t ≥
n: Z = (B_0 + p·(B_1 + … + B_(b−1)))/(1 + (b − 1)p). E[T_θ] is the same recursion with θ(θ − 1)‖c_t‖²/2σ². From a tilt,
histories are drawn backwards, and y has the mean θ·Cx. For the other direction the mean is shifted by −τ·E_x[Cx];
besides, Z is at least the probability of no round at all, which bounds ε by its logarithm (*no round*). Losses are
rounded by less than 1e-8, which is taken from ε.

Samples are drawn only for the direction that decides, and if they can lower ε by a tenth: if zeros alone would be a
certificate at 0.9 of it. Beyond 1,024 rounds none are drawn where theorem 3 or 5 of `_moments` decides, and few where
theorem 4 does.
"""

import dataclasses
import functools
import math

import numpy as np

from tff_mf.accounting.betting import CHUNK, LOSS_SLACK, AddDirection, RemoveDirection, Sample

# Tables of ages whose product with the square root of the rounds is larger take gigabytes.
_MOST_MIN_SEP = 512
# exp of more is not computed with.
_LARGEST_LOG = 300.0
_STEPS = 6000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """The sampling of one client: n rounds, b ≥ 2, and p above 0 and at most 1."""

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
        """Returns histories with probabilities proportional to π(x) Π_{t in x} w_t, bool `[count, rounds]`."""
        rest, apart = self.log_rest(logs), self.min_sep
        weights = self.start * np.exp(rest[:apart] - rest[:apart].max())
        free_from = generator.choice(apart, p=weights / weights.sum(), size=count)
        chances = np.exp(math.log(self.probability) + logs + rest[apart:] - rest[: self.rounds])
        found = np.zeros((count, self.rounds), dtype=bool)
        for t in range(self.rounds):
            found[:, t] = (free_from <= t) & (generator.random(count) < chances[t])
            free_from = np.where(found[:, t], t + apart, free_from)
        return found


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


class Signals:
    """What a client adds to the outputs, and the weights of its histories.

    Args:
        chain: The sampling of a client.
        columns: The columns c_t of C divided by σ, from the diagonal down: columns[t, i] = C[t + i, t]/σ, at least 0,
            float64 `[rounds, bands]`.
    """

    def __init__(self, chain: Chain, columns: np.ndarray):
        self.chain, self.columns = chain, columns
        self.squares = np.sum(columns**2, axis=1)
        self._log_tilted: dict[float, float] = {}
        self._pairs: dict[float, Pairs] = {}

    @functools.cached_property
    def inner(self) -> np.ndarray:
        """⟨c_t, c_(t−j)⟩/σ², float64 `[rounds, min_sep]`."""
        rounds, bands = self.columns.shape
        found = np.zeros((rounds, self.chain.min_sep))
        for j in range(min(bands, self.chain.min_sep, rounds)):
            found[j:, j] = np.sum(self.columns[j:, : bands - j] * self.columns[: rounds - j, j:], axis=1)
        return found

    def sums(self, rounds_of: np.ndarray) -> np.ndarray:
        """Returns Cx/σ of histories, float64 `[count, rounds]`."""
        found = np.zeros(rounds_of.shape)
        rounds = rounds_of.shape[1]
        for offset in range(self.columns.shape[1]):
            found[:, offset:] += rounds_of[:, : rounds - offset] * self.columns[: rounds - offset, offset]
        return found

    def exponents(self, outputs: np.ndarray) -> np.ndarray:
        """Returns u_t of outputs `[count, rounds]`, float64 `[rounds, count]`."""
        rounds, bands = self.columns.shape
        found = np.empty((rounds, len(outputs)))
        height = max(64, bands)
        for begin in range(0, rounds, height):
            end, last = min(begin + height, rounds), min(begin + height + bands - 1, rounds)
            block = np.zeros((end - begin, last - begin))
            for t in range(begin, end):
                used = min(bands, rounds - t)
                block[t - begin, t - begin : t - begin + used] = self.columns[t, :used]
            found[begin:end] = block @ outputs[:, begin:last].T
        return found - self.squares[:, np.newaxis] / 2

    def log_tilted(self, tilt: float) -> float:
        """Returns log E[T_θ]."""
        if tilt not in self._log_tilted:
            weights = (tilt * (tilt - 1) / 2 * self.squares)[:, np.newaxis]
            self._log_tilted[tilt] = float(self.chain.log_sum(weights)[0])
        return self._log_tilted[tilt]

    def pairs(self, tilt: float) -> Pairs:
        """Returns the weights of pairs of histories."""
        if tilt not in self._pairs:
            self._pairs[tilt] = Pairs(self.chain, self.inner, tilt)
        return self._pairs[tilt]

    def can_tilt(self, tilt: float) -> bool:
        """Whether weights at θ are numbers that are computed with."""
        return tilt * max(tilt - 1, 2) / 2 * float(self.squares.max()) < _LARGEST_LOG

    @property
    def has_pairs(self) -> bool:
        """Whether pairs fit into memory."""
        return self.chain.min_sep <= _MOST_MIN_SEP


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remove(RemoveDirection):
    """The run with the client against the run without it.

    Attributes:
        signals: What a client adds.
        parts: The proposals: whether it is of pairs, θ, and its share; one of them is the tilt 1, Z itself.
    """

    signals: Signals
    parts: tuple[tuple[bool, float, float], ...]

    @property
    def plain_share(self) -> float:
        return sum(share for paired, tilt, share in self.parts if not paired and tilt == 1)

    def ends(self, epsilon: float) -> np.ndarray:
        return epsilon + np.concatenate([np.linspace(0, 8, _STEPS), np.linspace(8, 60, _STEPS // 4)[1:]])

    def least_log_density(self, losses: np.ndarray) -> np.ndarray:
        return self._log_density(losses, {tilt: tilt * losses for _, tilt, _ in self.parts})

    def _log_density(self, losses: np.ndarray, log_tilted: dict[float, np.ndarray]) -> np.ndarray:
        parts = [
            math.log(share) + log_tilted[tilt] + paired * losses - self._log_scale(paired, tilt)
            for paired, tilt, share in self.parts
        ]
        return np.logaddexp.reduce(parts)

    def _log_scale(self, paired: bool, tilt: float) -> float:
        return self.signals.pairs(tilt).log_sum if paired else self.signals.log_tilted(tilt)

    def sample(self, count: int, generator: np.random.Generator) -> Sample:
        counts = generator.multinomial(count, [share for _, _, share in self.parts])
        measured = []
        for (paired, tilt, _), size in zip(self.parts, counts, strict=True):
            for begin in range(0, int(size), CHUNK):
                outputs = self._means(paired, tilt, min(CHUNK, int(size) - begin), generator)
                measured.append(self._measured(outputs + generator.standard_normal(outputs.shape)))
        loss, log_density = (np.concatenate(each) for each in zip(*measured, strict=True))
        return Sample(mu=self.mu, loss=loss, log_density=log_density, remove=True)

    def _means(self, paired: bool, tilt: float, count: int, generator: np.random.Generator) -> np.ndarray:
        signals = self.signals
        if paired:
            first, second = signals.pairs(tilt).draws(count, generator)
            return signals.sums(first + tilt * second)
        return signals.sums(tilt * signals.chain.draws(tilt * (tilt - 1) / 2 * signals.squares, count, generator))

    def _measured(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns L and the logarithm of the density of the proposals."""
        exponents = self.signals.exponents(outputs)
        tilts = {1.0, *(tilt for _, tilt, _ in self.parts)}
        tilted = {tilt: self.signals.chain.log_sum(tilt * exponents) for tilt in tilts}
        return tilted[1.0], self._log_density(tilted[1.0], tilted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Add(AddDirection):
    """The run without the client against the run with it, with g = E_x[Cx]/σ."""

    signals: Signals

    @functools.cached_property
    def _mean(self) -> np.ndarray:
        everyone = np.full((1, self.signals.chain.rounds), self.signals.chain.share)
        return self.signals.sums(everyone)[0]

    @property
    def square(self) -> float:
        return float(self._mean @ self._mean)

    @property
    def half(self) -> float:
        return self.signals.chain.share * float(self.signals.squares.sum()) / 2

    @property
    def least(self) -> float:
        """Z is at least the probability of no round at all."""
        return self.signals.chain.log_never - LOSS_SLACK

    def ends(self, epsilon: float) -> np.ndarray:
        return -epsilon - np.concatenate([np.linspace(60, 8, _STEPS // 4)[:-1], np.linspace(8, 0, _STEPS)])

    def drawn(self, shifts: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        outputs = generator.standard_normal((len(shifts), self.signals.chain.rounds)) - shifts * self._mean
        return self.signals.chain.log_sum(self.signals.exponents(outputs)), outputs @ self._mean
