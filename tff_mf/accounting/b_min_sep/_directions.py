"""Both directions of the adjacency: proposals, what is averaged over samples for δ(ε), and the range of its values.

In units of σ, the outputs y are standard normal without the client, and have the mean Cx/σ with it. The likelihood
ratio is Z = Σ_x π(x) exp(Σ_{t in x} u_t) with u_t = ⟨c_t, y⟩/σ − ‖c_t‖²/2σ²; T_θ is the same sum with θ·u_t. Densities
of proposals divided by that of y without the client:

    tilt θ:  T_θ/E[T_θ]         ≥ Z^θ/E[T_θ], by the inequality of power means;
    pair θ:  Z·T_θ/E[Z·T_θ]     ≥ Z^(1 + θ)/E[Z·T_θ].
"""

import dataclasses
import functools
import math

import numpy as np

from tff_mf.accounting.b_min_sep._chain import Chain
from tff_mf.accounting.b_min_sep._pairs import MOST_MIN_SEP, Pairs

# Bounds the rounding error of everything that is computed from a sample, as an amount of ε and as a share of δ.
LOSS_SLACK, DELTA_SLACK = 1e-8, 1e-7
# exp of more is not computed with.
_LARGEST_LOG = 300.0
_CHUNK = 4096
_STEPS = 6000


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
        return self.chain.min_sep <= MOST_MIN_SEP


@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses:
    """Losses L = log Z of a sample of one direction, and the logarithm of the density of its proposals."""

    loss: np.ndarray
    log_density: np.ndarray
    remove: bool

    def values(self, epsilon: float) -> np.ndarray:
        """Returns independent numbers of at least 0, whose expectation is at least δ(ε), rounded up."""
        epsilon -= LOSS_SLACK
        if self.remove:
            heights = -np.expm1(np.minimum(epsilon - self.loss, 0.0)) * np.exp(self.loss - self.log_density)
        else:
            heights = -np.expm1(np.minimum(epsilon + self.loss, 0.0)) * np.exp(-self.log_density)
        return heights * (1 + DELTA_SLACK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remove:
    """The run with the client against the run without it: δ(ε) = E[(Z − e^ε)₊].

    Attributes:
        signals: What a client adds.
        parts: The proposals: whether it is of pairs, θ, and its share; one of them is the tilt 1, Z itself.
    """

    signals: Signals
    parts: tuple[tuple[bool, float, float], ...]

    def sample(self, count: int, generator: np.random.Generator) -> Losses:
        """Returns a sample; which proposal a value comes from is drawn for each independently."""
        counts = generator.multinomial(count, [share for _, _, share in self.parts])
        losses, densities = [], []
        for (paired, tilt, _), size in zip(self.parts, counts, strict=True):
            for begin in range(0, int(size), _CHUNK):
                means = self._means(paired, tilt, min(_CHUNK, int(size) - begin), generator)
                means += generator.standard_normal(means.shape)
                loss, density = self._measured(means)
                losses.append(loss)
                densities.append(density)
        return Losses(loss=np.concatenate(losses), log_density=np.concatenate(densities), remove=True)

    def most(self, epsilon: float) -> float:
        """Returns a bound of all values: the supremum over L = ℓ of (1 − e^(ε − ℓ))₊·e^ℓ / D(ℓ), D the least density.

        The first factor rises, and D(ℓ)·e^(−ℓ) does not fall: an interval is bounded by the first at its right and the
        latter at its left.
        """
        epsilon -= LOSS_SLACK
        ends = epsilon + np.concatenate([np.linspace(0, 8, _STEPS), np.linspace(8, 60, _STEPS // 4)[1:]])
        parts = [
            math.log(share) + (tilt - 1 + paired) * ends - self._log_scale(paired, tilt)
            for paired, tilt, share in self.parts
        ]
        inverse = np.exp(-np.logaddexp.reduce(parts))
        rises = np.append(-np.expm1(epsilon - ends[1:]), 1.0)
        return float(np.max(rises * inverse)) * (1 + 4 * DELTA_SLACK)

    def _log_scale(self, paired: bool, tilt: float) -> float:
        return self.signals.pairs(tilt).log_sum if paired else self.signals.log_tilted(tilt)

    def _means(self, paired: bool, tilt: float, count: int, generator: np.random.Generator) -> np.ndarray:
        signals = self.signals
        if paired:
            first, second = signals.pairs(tilt).draws(count, generator)
            return signals.sums(first + tilt * second)
        return signals.sums(tilt * signals.chain.draws(tilt * (tilt - 1) / 2 * signals.squares, count, generator))

    def _measured(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns L and the logarithm of the density of the proposals."""
        exponents = self.signals.exponents(outputs)
        tilted = {
            tilt: self.signals.chain.log_sum(tilt * exponents) for tilt in {1.0, *(part[1] for part in self.parts)}
        }
        loss = tilted[1.0]
        parts = [
            math.log(share) + tilted[tilt] + (loss if paired else 0.0) - self._log_scale(paired, tilt)
            for paired, tilt, share in self.parts
        ]
        return loss, np.logaddexp.reduce(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Add:
    """The run without the client against the run with it: δ(ε) = E[(1 − e^ε·Z)₊].

    Half of the samples has no mean, the other half has −τ·g with g = E_x[Cx]/σ: its density divided by that of no mean
    is exp(−τ⟨g, y⟩ − τ²‖g‖²/2), and ⟨g, y⟩ ≤ L + E_x‖Cx‖²/2σ² by Jensen's inequality.
    """

    signals: Signals
    shift: float

    @functools.cached_property
    def _direction(self) -> np.ndarray:
        everyone = np.full((1, self.signals.chain.rounds), self.signals.chain.share)
        return self.signals.sums(everyone)[0]

    def sample(self, count: int, generator: np.random.Generator) -> Losses:
        """Returns a sample; whether a value is shifted is drawn for each independently."""
        shifted = generator.random(count) < 0.5
        losses, densities = [], []
        for begin in range(0, count, _CHUNK):
            moved = shifted[begin : begin + _CHUNK, np.newaxis]
            outputs = generator.standard_normal((len(moved), self.signals.chain.rounds))
            outputs -= moved * (self.shift * self._direction)
            losses.append(self.signals.chain.log_sum(self.signals.exponents(outputs)))
            densities.append(self._log_density(outputs @ self._direction))
        return Losses(loss=np.concatenate(losses), log_density=np.concatenate(densities), remove=False)

    def _log_density(self, along: np.ndarray) -> np.ndarray:
        square = float(self._direction @ self._direction)
        return np.logaddexp(0.0, -self.shift * along - self.shift**2 * square / 2) - math.log(2)

    def most(self, epsilon: float) -> float:
        """Returns a bound of all values: the supremum over ℓ < −ε of (1 − e^(ε + ℓ)) / D(ℓ), D the least density.

        Both fall in ℓ, and ℓ is at least the logarithm of the probability of no round at all.
        """
        epsilon -= LOSS_SLACK
        least = self.signals.chain.log_never - LOSS_SLACK
        half = self.signals.chain.share * float(self.signals.squares.sum()) / 2
        ends = -epsilon - np.concatenate([np.linspace(60, 8, _STEPS // 4)[:-1], np.linspace(8, 0, _STEPS)])
        ends = np.append(ends[ends > least], max(-epsilon, least))
        lefts = np.maximum(np.append(-math.inf, ends[:-1]), least)
        heights = np.maximum(-np.expm1(epsilon + lefts), 0.0)
        return float(np.max(heights * np.exp(-self._log_density(ends + half)))) * (1 + 4 * DELTA_SLACK)
