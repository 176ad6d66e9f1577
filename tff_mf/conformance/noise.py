"""Laws of the noise of zero updates: its scale, its correlations, and whether it is fresh.

Row t of C·noise / σ, "whitened", is standard normal and independent of all other rows: one array is judged.
"""

import importlib
import itertools
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
from scipy import fft, stats

from tff_mf.base.errors import InputValueError
from tff_mf.conformance.claim import CHANCE, POWER, BrokenError, NotJudgedError
from tff_mf.conformance.rounds import Probe, Updates

# Numbers of noise that are measured, so that a scale that is off by 2 % is found; rounds that are run for it, at most;
# rounds of a start, and numbers of all of its rounds, which are run if they are no more.
_NUMBERS, _MOST_RUN, _ROUNDS, _MOST_WHOLE = 500_000, 32_000, 8, 2e7
# Numbers that starts may draw to find a short seed, and how many starts there are at most.
_DRAWN, _MOST_SEEDS = 2e8, 1500
# Rows that are compared at all shifts, and coordinates that are compared pair by pair.
_SHIFTED, _PAIRED = 20, 256
_SAME = 1e-3
# Numbers in the tail that is judged; and the share of different ones among many.
_BEYOND, _DISTINCT = 40, 0.5


class Noise:
    """Rounds whose updates are zero.

    Attributes:
        rounds: Rounds of a start: all that are claimed if they do not take long.
        whitened: Whitened noise, float32 `[starts, rounds, dimension]`.
        states: A state before the first round, and one before the last of `rounds`; `last` is the one after it.
        stddevs: Standard deviations of a number of each round's release, in clip norms.
    """

    def __init__(self, probe: Probe, effort: float) -> None:
        claim, self.probe, dimension = probe.claim, probe, probe.updates.dimension
        mechanism = claim.mechanism.cast_to_float32()
        rounds = claim.rounds or min(_ROUNDS, mechanism.max_rounds or _ROUNDS)
        self.rounds = rounds if rounds * max(dimension, rounds) <= _MOST_WHOLE else min(_ROUNDS, rounds)
        encoder = mechanism.encoder(self.rounds)
        self.stddevs = claim.noise_multiplier * np.linalg.norm(np.linalg.inv(encoder), axis=1)
        wanted = min(math.ceil(_NUMBERS * effort / (self.rounds * dimension)), _MOST_RUN // self.rounds)
        self.whitened = np.empty((max(wanted, 2), self.rounds, dimension), np.float32)
        for whitened in self.whitened:
            try:
                seen = probe.run(*[probe.quiet] * self.rounds)
            except Exception as error:
                text = f"subject refuses a round of zero updates: {error!r}. Pass a tree like that has their shapes."
                raise InputValueError(text) from error
            whitened[:] = encoder @ np.stack([one.sums for one in seen]) / claim.noise_multiplier
        states = [probe.subject.start(), *(one.state for one in seen)]
        self.states, self.last = (states[0], states[-2]), states[-1]

    def scale(self) -> str:
        """Judges sums of squares: of tensors, of rounds, of places, and of the sums of tensors."""
        if not np.all(np.isfinite(self.whitened)):
            raise BrokenError("Rounds of zero updates release what is not finite.")
        sizes = np.array([size for size in self.probe.updates.sizes if size])
        numbers, begins, draws = len(self.whitened) * sizes, np.cumsum(sizes) - sizes, self.whitened[..., 0].size
        squares = np.square(self.whitened)
        by_tensor = np.add.reduceat(squares, begins, axis=2, dtype=np.float64).sum(0)
        sums = np.add.reduceat(self.whitened, begins, axis=2, dtype=np.float64)
        # Sums of squares, and of how many numbers each is.
        pieces = {
            **{f"round {done + 1} in tensor": (row, numbers) for done, row in enumerate(by_tensor)},
            "tensor": (by_tensor.sum(0), self.rounds * numbers),
            "round": (by_tensor.sum(1), numbers.sum()),
            "the sum of tensor": (np.square(sums).sum((0, 1)) / sizes, draws),
            "place": (squares.sum((0, 1), dtype=np.float64), draws),
            "piece": (by_tensor.sum(keepdims=True)[0], draws * sizes.sum()),
        }
        tests = sum(len(totals) for totals, _ in pieces.values())
        for name, (totals, counts) in pieces.items():
            tails = np.minimum(stats.chi2.cdf(totals, counts), stats.chi2.sf(totals, counts))
            if np.any(wrong := tails < CHANCE / 2 / tests):
                ratios = np.sqrt(totals / counts)
                furthest = np.argmax(np.where(wrong, np.abs(np.log(np.maximum(ratios, 1e-9))), 0.0))
                text = f"The noise of {name} {furthest + 1}, whitened, has {ratios[furthest]:.3g} times the claimed"
                raise BrokenError(f"{text} standard deviation.")
        deviations = deviations_of(tests - self.probe.updates.dimension) + POWER
        least = [deviations / math.sqrt(2 * self.rounds * count) for count in (numbers.sum(), numbers.min())]
        return f"Finds a scale that is off by {least[0]:.1%}, or by {least[1]:.1%} in the smallest tensor."

    def correlation(self) -> str:
        """Judges correlations of rounds, by lags too, of coordinates, and at every shift; and the law of a number."""
        rounds = self.whitened.transpose(1, 0, 2).reshape(self.rounds, -1)
        # The first coordinates of all tensors, then their second ones, and so on.
        paired = np.argsort(np.concatenate([np.arange(size) for size in self.probe.updates.sizes]), kind="stable")
        numbers = self.whitened[..., paired[:_PAIRED]].reshape(rounds.size // len(paired), -1).T
        largest = np.abs(_correlations(numbers)).max()
        if not largest <= _by_chance(numbers.shape[1], len(numbers) ** 2):
            raise BrokenError(f"Numbers are correlated by {largest:.3g}: C, or the noise, is another one.")
        correlations, deviations = _correlations(rounds), deviations_of(self.rounds)
        for lag in range(1, self.rounds):
            count = (self.rounds - lag) * rounds.shape[1]
            # The second term is for products of normal numbers, whose tails are longer.
            bound = deviations / math.sqrt(count) + 2 * deviations**2 / count
            if abs(mean := np.mean(np.diagonal(correlations, -lag))) > bound:
                raise BrokenError(f"Rounds with a distance of {lag} are correlated by {mean:.3g}: C is another one.")
        self._check_normal()
        _check_shifts(rounds[:_SHIFTED], "Rounds, or coordinates, at some shift, have correlated noise, or the same.")
        least = (deviations + POWER) / math.sqrt(max(1, self.rounds - 1) * rounds.shape[1])
        return f"Finds neighbouring rounds that are correlated by {least:.2g}."

    def _check_normal(self) -> None:
        """Checks that numbers are normal: by their characteristic function, their tail, and how many differ."""
        size = self.whitened.size
        for order in (1.0, 2.0):
            mean, variance = math.exp(-(order**2) / 2), (1 + math.exp(-2 * order**2)) / 2 - math.exp(-(order**2))
            measured = float(np.mean(np.cos(np.float32(order) * self.whitened), dtype=np.float64))
            if (off := abs(measured - mean) / math.sqrt(variance / size)) > deviations_of(2):
                raise BrokenError(f"The noise is not normal: its characteristic function is off by {off:.0f} σ.")
        # A limit that 40 numbers exceed on average, so that a tail which is cut there is seen.
        chance = min(0.5, _BEYOND / size)
        limit = float(stats.norm.isf(chance / 2))
        beyond = int(np.sum(np.abs(self.whitened) > limit))
        if stats.binomtest(beyond, size, chance).pvalue < CHANCE / 2:
            raise BrokenError(f"{beyond} numbers exceed {limit:.2f} deviations, and {size * chance:.0f} should.")
        # Of first rounds, whose numbers are those that were drawn.
        first = self.whitened[:, 0].ravel()[:100_000]
        different = len(np.unique(first))
        if self.probe.claim.grid is None and len(first) > 500 and different < _DISTINCT * len(first):
            raise BrokenError(f"Of {len(first)} numbers, {different} are different: the noise is on a lattice.")

    def fresh(self, effort: float) -> str:
        """Judges whether draws repeat: from one state, or of many starts."""
        probe, dimension = self.probe, self.probe.updates.dimension
        many, rows = math.ceil(8 / dimension), []
        for state in self.states:
            draws = np.stack([probe.step(state, probe.quiet).sums for _ in range(many + 1)])
            if _is_same(draws[1:], draws[:-1]):
                raise BrokenError("A state stepped twice repeats its noise.")
            # Their difference is of fresh noise alone.
            rows += [draws[0], draws[1]] if state is self.states[0] else [draws[1] - draws[0]]
        starts = int(np.clip(_DRAWN / dimension, 20, max(20, _MOST_SEEDS * effort)))
        rounds = min(many, self.rounds)
        drawn = {
            b"".join(seen.sums[:500].tobytes() for seen in probe.run(*[probe.quiet] * rounds)) for _ in range(starts)
        }
        # Floats of 24 bits, or numbers on a coarse grid, of two starts are the same by chance if they are fewer.
        if rounds * dimension < (3 if probe.claim.grid is None else 8):
            raise NotJudgedError("A start draws so few numbers that two are the same by chance: check more.")
        if len(drawn) < starts:
            raise BrokenError(f"{starts} starts drew {len(drawn)} different noises: seeds are short, or repeat.")
        text = "Two draws share numbers, in the same or other places: keys repeat, are neighbours, or C is another."
        _check_shifts(np.stack([*rows, self.whitened[1, 0], *self.whitened[0]][:_SHIFTED]), text)
        # The probability that none of s starts shares one of 2^b seeds is about exp(−s² / 2^(b + 1)).
        return f"Finds seeds of at most {math.log2(starts**2 / 2 / math.log(1e6)):.0f} bits."


def deviations_of(tests: int) -> float:
    """Returns the standard deviations that none of so many normal numbers exceeds, but with a chance of `CHANCE`."""
    return float(stats.norm.isf(CHANCE / 4 / tests))


def _by_chance(numbers: int, tests: int) -> float:
    """Returns what no correlation of so many pairs of independent normal vectors exceeds, but with `CHANCE`.

    The square of one is beta distributed, exactly, whatever the number of coordinates. Few numbers need float64.
    """
    return math.sqrt(float(stats.beta.isf(CHANCE / 4 / tests, 0.5, max(numbers - 1, 1) / 2))) + 1e-12


def _directions(rows: np.ndarray) -> np.ndarray:
    """Returns rows of length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def _correlations(rows: np.ndarray) -> np.ndarray:
    """Returns the correlations of two rows, below the diagonal of a matrix."""
    directions = _directions(rows.astype(np.float64 if rows.shape[1] < 10_000 else np.float32))
    return np.tril(directions @ directions.T, -1)


def _check_shifts(rows: np.ndarray, text: str) -> None:
    """Checks that no two rows, nor one and itself, are correlated at any circular shift, or with one backwards."""
    count, dimension = rows.shape
    transforms = list(np.asarray(fft.rfft(_directions(rows.astype(np.float32)), axis=1)))
    # A row and its own shifts have half as many independent terms, and two places are their own images backwards.
    bound = _by_chance(dimension // 2, count * (count + 1) * dimension) + 2 * deviations_of(1) ** 2 / dimension
    for one, other in itertools.combinations_with_replacement(transforms, 2):
        forwards, backwards = (np.abs(np.asarray(fft.irfft(one * kind, dimension))) for kind in (other.conj(), other))
        forwards[0] *= one is not other
        if max(forwards.max(), backwards.max()) > bound:
            raise BrokenError(text)


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.linalg.norm(one - other) < _SAME * np.linalg.norm(one))


def processes(elsewhere: str | None) -> str:
    """Judges the first noise of two processes that start at the same time."""
    if elsewhere is None:
        raise NotJudgedError('Two processes need elsewhere="module:function", which returns subject, claim and like.')
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{index}.npy" for index in range(2)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        program = "import sys; from tff_mf.conformance import noise; noise.save_first(*sys.argv[1:])"
        command = [sys.executable, "-c", program, elsewhere]
        running = [subprocess.Popen([*command, file], env=environment) for file in files]
        if {process.wait() for process in running} != {0}:
            raise InputValueError(f"elsewhere={elsewhere!r} failed in a process of its own: see the message above.")
        if _is_same(*map(np.load, files)):
            raise BrokenError("They draw the same noise.")
    return ""


def save_first(elsewhere: str, file: str) -> None:
    """Writes the first noise of the subject of MODULE:FUNCTION to a file."""
    module, _, function = elsewhere.partition(":")
    subject, claim, like = getattr(importlib.import_module(module), function)()
    probe = Probe(subject, claim, Updates(like, claim.clip_norm, 1), 1)
    np.save(file, probe.run(probe.quiet)[0].sums)
