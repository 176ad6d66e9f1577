"""Privacy amplification by shuffling: banded mechanisms whose clients are shuffled, once or anew in every epoch.

Clients are shuffled, and each round takes the next cohort. With b̂ bands, the T = ⌊n/b̂⌋ or more rounds with
i mod b̂ = j do not share a row of C (Choquette-Choo et al. (2023), corollary E.2), and a client is equally likely to
take part in any of them.

From each cohort of such a group of rounds take one client, among them the client in question, and hold all others
fixed. These T clients are distributed uniformly over the T rounds, so that, given all others, the run is T adaptive
randomizers applied to T shuffled clients, for cohorts of any size. Feldman, McMillan and Talwar (2021) bound its
privacy loss. If (ε, δ) holds for every choice of the others, it holds for a random choice, because the hockey-stick
divergence is jointly convex.

**Several epochs.** Let each client belong to one of b ≥ b̂ groups, and each epoch shuffle the clients of a group anew
over its rounds, those with i mod b = j, of which an epoch has T = E/b. Row t of C reaches back less than b rounds, so
that it contains one round of the group: rows t, …, t + b − 1 are one Gaussian query of the client of round t, the next
such query begins with row t + b, and an epoch is T of them, after all of those of the epoch before. Given any past, an
epoch is what is bounded above: post-processing of one pair of distributions, (A + Δ, C − A + 1 − Δ) and
(A + 1 − Δ, C − A + Δ) of `clones_delta`, up to a total variation of η = (1 + e^(−ε₀)/2)·T·δ₀. The shuffles are
independent, so that k epochs are dominated by the k-fold product of that pair (adaptive composition of dominating
pairs: Zhu, Dong and Wang (2022), theorem 10), up to k·η, which adds (e^ε + 1)·k·η to δ. Without groups, a client that
is last in one epoch and first in the next is in two queries that overlap, and none of this holds for several bands.

Cohorts of varying size, and clients that choose their rounds themselves, are not covered. Nor is the same order in
every epoch (Choquette-Choo et al. (2023), appendix E): there the k rounds of a client are one randomizer of k queries
that are interleaved with those of all others, which the theorems for a sequence of randomizers do not describe.
"""

import dataclasses
import math

import numpy as np

from tff_mf.accounting._result import Guarantee, Level
from tff_mf.accounting._sampling import Question
from tff_mf.accounting._secret_run import SecretRun, SecretSampling, worst
from tff_mf.accounting.entries import bands_and_norm
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import composed_losses
from tff_mf.numerics.composed_losses import Losses
from tff_mf.problem.draws import Cohorts, Draws
from tff_mf.problem.participation import MinSep, Participation, SingleParticipation, cohort_size

_THEOREM, _KNOWN = "shuffled epochs", "a round known in each epoch"
# Shares of δ to try for the difference between (ε₀, δ₀)-DP, which Gaussian noise has, and pure ε₀-DP.
_SHARES = (0.5, 0.1, 0.02)

# Relative error of SciPy's binomial probabilities and tails, at most, and what it grows by with each trial: 20 times
# what was found against 40 digits with SciPy 1.9.3 (5e-10 of 10⁷ trials) and 1.17.1 (2e-12).
_ERROR, _ERROR_PER_TRIAL = 1e-9, 1e-15

# Exceeds the relative rounding error of a few operations and of the exponential function.
_ROUNDING = 2.0**-48

# Steps from 0 to ε₀ in which privacy losses of several epochs are rounded up.
_STEPS = 5000

# Above it, e^ε₀ is near the end of float64, and nothing is amplified.
_MOST_PURE = 700.0

# A binomial variable of variance v is within 9√v + 81 of its mean, by Bernstein's inequality, and one with even odds
# within 9√v + 9, by Hoeffding's, up to a probability of 2·e^(−40.5) for each.
_DEVIATIONS = 9.0
_BEYOND = 4 * math.exp(-(_DEVIATIONS**2) / 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledEpochs(SecretSampling):
    """Clients are shuffled in secret, each group anew in every epoch, and each takes part once an epoch.

    With fewer than thousands of rounds per group and epoch, or little noise, nothing useful is known beyond the schema.

    Formal guarantee:
        Adjacency: zero-out of the contribution of one client, of L2 norm at most the clip norm.
        Participation: the population is shuffled uniformly and in secret; cohorts of a fixed size are taken from it one
        after another, and no client takes part twice. With groups, each client has one of the b, and takes part at most
        once an epoch, in a round i of its group, those with i mod b the same; for every epoch, each group is shuffled
        anew, uniformly, in secret and independently.
        Sensitivity: C has at most b bands, if there are groups or several epochs. The largest column norm of
        `mechanism.cast_to_float32()`, rounded up, and twice this when one client's contribution is replaced by
        another's.
        Released: all `rounds` noised sums, of real numbers: nothing is amplified here on a grid.

    Attributes:
        epochs: Number of epochs, each of n / epochs rounds.
        groups: Number of groups b that clients keep from epoch to epoch; with 1, there are none.

    Source: Choquette-Choo et al. (2023), corollary E.2; Feldman, McMillan and Talwar (2021), theorem 3.2 for the worst
    pair of distributions, and theorem 3.8 for noise that is not pure.

    Example:
        >>> from tff_mf import Identity, epsilon
        >>> round(epsilon(Identity(), 100, ShuffledEpochs(), noise_multiplier=1.0, delta=1e-6), 2)
        4.89

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range.
    """

    epochs: int = 1
    groups: int = 1

    def schema(self, rounds: int) -> Participation:
        """Returns that a client comes once an epoch; the last round of one and the first of the next are b apart."""
        if self.epochs == 1:
            return SingleParticipation()
        self._turns(rounds)
        return MinSep(min_sep=self.groups, max_participations=self.epochs)

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        """Returns cohorts of b·T·m clients, for T rounds of a group in an epoch, which have a group from the start."""
        each, turns = cohort_size(size), self._turns(rounds)
        needed = self.groups * turns * each
        if clients < needed:
            raise InputValueError(f"clients={clients} are too few: cohorts of {each} in {self} need {needed} clients.")
        groups = draws.order(clients)[:needed].reshape(self.groups, turns * each)
        epochs = [[group[draws.order(len(group))].reshape(turns, each) for group in groups] for _ in range(self.epochs)]
        return [cohort for epoch in epochs for turn in zip(*epoch, strict=True) for cohort in turn]

    def _turns(self, rounds: int) -> int:
        """Returns the rounds of a group in an epoch."""
        if rounds % (self.epochs * self.groups):
            raise InputValueError(
                f"rounds={rounds} with epochs={self.epochs} and groups={self.groups} must be a multiple of "
                f"{self.epochs * self.groups}: every epoch needs equally many rounds of each group."
            )
        return rounds // (self.epochs * self.groups)

    def run(self, question: Question) -> SecretRun:
        """Returns a run of a mechanism with at most b bands, or of any bands in a single epoch without groups."""
        mechanism, rounds = question.mechanism, question.rounds
        bands, norm = bands_and_norm(mechanism, rounds)
        # Clients without groups are shuffled over all rounds, and so over those of a residue modulo the bands.
        whole = self.epochs == self.groups == 1
        if bands > self.groups and not whole:
            raise InputValueError(
                f"mechanism has {bands} bands, and clients of groups={self.groups} are in queries that overlap: take "
                f"ShuffledEpochs(epochs={self.epochs}, groups={bands})."
            )
        count = rounds // bands if whole else self._turns(rounds)
        if question.grid is not None:
            raise InputValueError(
                f"grid={question.grid!r}: shuffled epochs are not amplified on a grid; account for the schema that "
                "also holds, tff_mf.MinSep."
            )
        return _ShuffledRun(count=count, epochs=self.epochs, norm=norm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ShuffledRun(SecretRun):
    """Epochs of shuffled Gaussian randomizers, or of known ones, whichever is smaller."""

    count: int
    epochs: int
    norm: float

    def ideal(self, sigma: float, delta: float, *, change: float, share: float) -> Level:
        del change, share
        one = Guarantee.of_gaussian(self.norm, sigma)
        # The columns of a client's rounds are orthogonal; the factor exceeds the rounding error of the root.
        known = self.norm if self.epochs == 1 else self.norm * math.sqrt(self.epochs) * (1 + 2.0**-48)
        plain = Guarantee.of_gaussian(known, sigma).epsilon(delta)
        if plain in (0.0, math.inf):
            return worst(delta, _KNOWN, plain, plain)
        found = min(_amplified(self.count, self.epochs, one, delta, each, plain) for each in _SHARES)
        return worst(delta, _THEOREM if found < plain else _KNOWN, *[min(found, plain)] * 2)


def _amplified(count: int, epochs: int, one: Guarantee, delta: float, share: float, most: float) -> float:
    """Returns ε ≤ `most` of epochs of `count` shuffled Gaussian randomizers, or `most`."""
    # Theorem 3.8 adds (e^ε + 1)(1 + e^(−ε₀)/2)·T·δ₀ to δ in each epoch.
    impure = delta * share / ((math.exp(min(most, 700.0)) + 1) * 1.5 * count * epochs)
    if impure < 1e-300:
        return most
    pure = one.replace_one().epsilon(impure)
    if epochs > 1:
        return min(most, clones_epsilon(count, pure, delta * (1 - share), epochs=epochs))

    target = delta * (1 - share)
    if clones_delta(count, pure, most) > target:
        return most
    if clones_delta(count, pure, 0.0) <= target:
        return 0.0
    # Imported here: it would double the time of `import tff_mf`.
    from scipy.optimize import brentq

    def excess(epsilon: float) -> float:
        return math.log(max(clones_delta(count, pure, epsilon), 1e-300) / target)

    # pyrefly: ignore[bad-argument-type]: it does not see that a root alone is returned.
    found = float(brentq(excess, 0.0, most, xtol=1e-300, rtol=1e-11)) * (1 + 1e-10)
    return min(most, found) if excess(found) <= 0 else most


def clones_delta(count: int, pure: float, epsilon: float) -> float:
    """Returns δ(ε) of `count` shuffled ε₀-DP randomizers, rounded up by the errors of binomial tails.

    With C ~ Bin(T − 1, e^(−ε₀)), A ~ Bin(C, ½) and Δ ~ Bernoulli(e^ε₀ / (e^ε₀ + 1)), no two neighboring data sets are
    easier to tell apart than (A + Δ, C − A + 1 − Δ) and (A + 1 − Δ, C − A + Δ). Given C, the likelihood ratio rises in
    the first entry, so that each hockey-stick divergence is a difference of binomial tails.

    Args:
        count: Number T of randomizers.
        pure: ε₀ of each, for any two inputs.
        epsilon: ε.

    Source: Feldman, McMillan and Talwar (2021), theorem 3.2.

    Example:
        >>> clones_delta(1, 1.0, 0.5) == clones_delta(1, 1.0, 0.0)
        False
    """
    # Imported here: it would double the time of `import tff_mf`.
    from scipy import stats

    clones = np.arange(count)
    weights = stats.binom.pmf(clones, count - 1, math.exp(-pure))
    heads = 1 / (1 + math.exp(-pure))
    ratio = math.exp(epsilon)
    gain, cost = heads - ratio * (1 - heads), ratio * heads - (1 - heads)
    error = _ERROR + _ERROR_PER_TRIAL * count
    # P(x) > e^ε·Q(x) for x ≥ r/(1 + r)·(c + 1) with r = cost/gain. The adjacent integers guard against rounding of it.
    start = np.ceil((clones + 1) * (cost / (cost + max(gain, 0.0))))
    best = np.zeros(count)
    for first in (start - 1, start, start + 1):
        more, less = stats.binom.sf(first - 2, clones, 0.5), stats.binom.sf(first - 1, clones, 0.5)
        # `gain` and `cost` have the errors of `heads` and `ratio`.
        rounding = (error * gain + _ROUNDING) * more + (error * cost + _ROUNDING * ratio) * less
        best = np.maximum(best, gain * more - cost * less + rounding)
    return float(np.sum(weights * best)) * (1 + error + count * 2.0**-53)


def clones_epsilon(count: int, pure: float, delta: float, *, epochs: int) -> float:
    """Returns ε at δ of the `epochs`-fold product of the pair of `clones_delta`; infinite if ε₀ > 700.

    An outcome (a, c + 1 − a) of the pair has the likelihood ratio (ha + l(c + 1 − a)) / (la + h(c + 1 − a)), with h the
    probability of Δ = 1 and l = 1 − h, because the two binomial probabilities that it is made of are as a to c + 1 − a.
    Its logarithm is rounded up to a multiple of ε₀/5000, and outcomes beyond the binomial tails count as a loss of ∞.

    Args:
        count: Number T of randomizers in an epoch.
        pure: ε₀ of each, for any two inputs; greater than 0.
        delta: δ.
        epochs: Number of independent shuffles.

    Example:
        >>> clones_epsilon(1000, 1.0, 1e-6, epochs=1) < clones_epsilon(1000, 1.0, 1e-6, epochs=4)
        True
    """
    if pure > _MOST_PURE:
        return math.inf
    return composed_losses.epsilon([_losses(count, pure)], epochs, delta, most=math.inf)


def _losses(count: int, pure: float) -> Losses:
    """Returns the rounded losses of one epoch, which are the same in both directions."""
    from scipy import stats

    interval = pure / _STEPS
    share, heads, tails = math.exp(-pure), 1 / (1 + math.exp(-pure)), 1 / (1 + math.exp(pure))
    reach = _DEVIATIONS * math.sqrt(count * share * (1 - share)) + _DEVIATIONS**2
    first, last = max(0, math.floor(count * share - reach)), min(count - 1, math.ceil(count * share + reach))
    lowest = -_STEPS - 1
    masses = np.zeros(2 * _STEPS + 4)
    weights = stats.binom.pmf(np.arange(first, last + 1), count - 1, share)
    for clones, weight in zip(range(first, last + 1), weights, strict=True):
        width = _DEVIATIONS * math.sqrt(clones) / 2 + _DEVIATIONS
        begin, end = max(0, math.floor(clones / 2 - width)), min(clones, math.ceil(clones / 2 + width))
        ones = np.arange(begin, end + 2)
        # P(A = ones − 1) and P(A = ones), of which the first and the last lie outside the window.
        chances = stats.binom.pmf(np.arange(begin, end + 1), clones, 0.5)
        mass = heads * np.concatenate([[0.0], chances]) + tails * np.concatenate([chances, [0.0]])
        others = clones + 1 - ones
        ratio = (heads * ones + tails * others) / (tails * ones + heads * others)
        # What is added exceeds the rounding error of the logarithm.
        places = np.ceil(np.log(ratio) / interval + 1e-9).astype(np.int64) - lowest
        np.add.at(masses, places, weight * mass)
    # Of a weight and of a chance, and of the sums.
    error = 2 * (_ERROR + _ERROR_PER_TRIAL * count) + (last - first + 64) * 2.0**-53
    return Losses.of(interval * (np.arange(len(masses)) + lowest), masses * (1 + error), infinite=_BEYOND)
