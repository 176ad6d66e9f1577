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
from tff_mf.conformance.claim import CHANCE, POWER, BrokenError, NotJudgedError, deviations_of
from tff_mf.conformance.rounds import Trial, Updates, leaves

# Numbers that starts may draw to find a short seed, and how many starts there are at most.
_DRAWN, _MOST_SEEDS = 2e8, 1500
# Rows that are compared at all shifts, and coordinates that are compared pair by pair.
_SHIFTED, _PAIRED = 20, 256
_SAME = 1e-3
# Numbers in the tail that is judged; and the share of different ones among many.
_BEYOND, _DISTINCT = 40, 0.5


def scale(trial: Trial) -> str:
    """Judges sums of squares: of tensors, of rounds, of places, and of the sums of tensors."""
    if not np.all(np.isfinite(trial.whitened)):
        raise BrokenError("Rounds of zero updates release what is not finite.")
    sizes = np.array([size for size in trial.updates.sizes if size])
    numbers, begins, draws = len(trial.whitened) * sizes, np.cumsum(sizes) - sizes, trial.whitened[..., 0].size
    squares = np.square(trial.whitened)
    by_tensor = np.add.reduceat(squares, begins, axis=2, dtype=np.float64).sum(0)
    sums = np.add.reduceat(trial.whitened, begins, axis=2, dtype=np.float64)
    # Sums of squares, and of how many numbers each is.
    pieces = {
        **{f"round {done + 1} in tensor": (row, numbers) for done, row in enumerate(by_tensor)},
        "tensor": (by_tensor.sum(0), trial.rounds * numbers),
        "round": (by_tensor.sum(1), numbers.sum()),
        "the sum of tensor": (np.square(sums).sum((0, 1)) / sizes, draws),
        "place": (squares.sum((0, 1), dtype=np.float64), draws),
        "piece": (by_tensor.sum(keepdims=True)[0], draws * sizes.sum()),
    }
    tests = sum(len(totals) for totals, _ in pieces.values())
    for name, (totals, counts) in pieces.items():
        tails = np.minimum(stats.chi2.cdf(totals, counts), stats.chi2.sf(totals, counts))
        if tails.min() < CHANCE / 2 / tests:
            place, ratios = np.argmin(tails), np.sqrt(totals / counts)
            text = f"The noise of {name} {place + 1}, whitened, has {ratios[place]:.3g} times the claimed deviation."
            raise BrokenError(text)
    deviations = deviations_of(tests - trial.updates.dimension) + POWER
    least = [deviations / math.sqrt(2 * trial.rounds * count) for count in (numbers.sum(), numbers.min())]
    return f"Finds a scale that is off by {least[0]:.1%}, or by {least[1]:.1%} in the smallest tensor."


def correlation(trial: Trial) -> str:
    """Judges correlations of rounds, by lags too, of coordinates, and at every shift; and the law of a number."""
    rounds = trial.whitened.transpose(1, 0, 2).reshape(trial.rounds, -1)
    # The first coordinates of all tensors, then their second ones, and so on.
    paired = np.argsort(np.concatenate([np.arange(size) for size in trial.updates.sizes]), kind="stable")
    numbers = trial.whitened[..., paired[:_PAIRED]].reshape(rounds.size // len(paired), -1).T
    for name, vectors in (("Rounds", rounds), ("Numbers", numbers)):
        largest = np.abs(_correlations(vectors)).max()
        if not largest <= _by_chance(vectors.shape[1], len(vectors) ** 2):
            raise BrokenError(f"{name} are correlated by {largest:.3g}: C, or the noise, is another one.")
    correlations, deviations = _correlations(rounds), deviations_of(trial.rounds)
    for lag in range(1, trial.rounds):
        count = (trial.rounds - lag) * rounds.shape[1]
        # The second term is for products of normal numbers, whose tails are longer.
        bound = deviations / math.sqrt(count) + 2 * deviations**2 / count
        if abs(mean := np.mean(np.diagonal(correlations, -lag))) > bound:
            raise BrokenError(f"Rounds with a distance of {lag} are correlated by {mean:.3g}: C is another one.")
    _check_normal(trial)
    _check_shifts(rounds[:_SHIFTED], "Rounds, or coordinates, at some shift, have correlated noise, or the same.")
    least = (deviations + POWER) / math.sqrt(max(1, trial.rounds - 1) * rounds.shape[1])
    return f"Finds neighbouring rounds that are correlated by {least:.2g}."


def _check_normal(trial: Trial) -> None:
    """Checks that numbers are normal: by their characteristic function, their tail, and how many differ."""
    size = trial.whitened.size
    for order in (1.0, 2.0):
        mean, variance = math.exp(-(order**2) / 2), (1 + math.exp(-2 * order**2)) / 2 - math.exp(-(order**2))
        measured = float(np.mean(np.cos(np.float32(order) * trial.whitened), dtype=np.float64))
        if (off := abs(measured - mean) / math.sqrt(variance / size)) > deviations_of(2):
            raise BrokenError(f"The noise is not normal: its characteristic function is off by {off:.0f} σ.")
    # A limit that 40 numbers exceed on average, so that a tail which is cut there is seen.
    chance = min(0.5, _BEYOND / size)
    limit = float(stats.norm.isf(chance / 2))
    beyond = int(np.sum(np.abs(trial.whitened) > limit))
    if stats.binomtest(beyond, size, chance).pvalue < CHANCE / 2:
        raise BrokenError(f"{beyond} numbers exceed {limit:.2f} deviations, and {size * chance:.0f} should.")
    # Of first rounds, whose numbers are those that were drawn.
    first = trial.whitened[:, 0].ravel()[:100_000]
    different = len(np.unique(first))
    if trial.claim.grid is None and len(first) > 500 and different < _DISTINCT * len(first):
        raise BrokenError(f"Of {len(first)} numbers, {different} are different: the noise is on a lattice.")


def fresh(trial: Trial) -> str:
    """Judges whether draws repeat: from one state, or of many starts."""
    dimension = trial.updates.dimension
    many, rows = math.ceil(8 / dimension), []
    for state in trial.states:
        draws = np.stack([trial.step(state, trial.quiet).sums for _ in range(many + 1)])
        if _is_same(draws[1:], draws[:-1]):
            raise BrokenError("A state stepped twice repeats its noise.")
        # Their difference is of fresh noise alone.
        rows += [draws[0], draws[1]] if state is trial.states[0] else [draws[1] - draws[0]]
    starts = int(np.clip(_DRAWN / dimension, 20, max(20, _MOST_SEEDS * trial.effort)))
    rounds = min(many, trial.rounds)
    drawn = {b"".join(seen.sums[:500].tobytes() for seen in trial.run(*[trial.quiet] * rounds)) for _ in range(starts)}
    # Floats of 24 bits, or numbers on a coarse grid, of two starts are the same by chance if they are fewer.
    if rounds * dimension < (3 if trial.claim.grid is None else 8):
        raise NotJudgedError("A start draws so few numbers that two are the same by chance: check more.")
    if len(drawn) < starts:
        raise BrokenError(f"{starts} starts drew {len(drawn)} different noises: seeds are short, or repeat.")
    text = "Two draws share numbers, in the same or other places: keys repeat, are neighbours, or C is another."
    _check_shifts(np.stack([*rows, trial.whitened[1, 0], *trial.whitened[0]][:_SHIFTED]), text)
    # The probability that none of s starts shares one of 2^b seeds is about exp(−s² / 2^(b + 1)).
    return f"Finds seeds of at most {math.log2(starts**2 / 2 / math.log(1e6)):.0f} bits."


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


def processes(trial: Trial) -> str:
    """Judges the first noise of two processes that start at the same time."""
    if trial.elsewhere is None:
        raise NotJudgedError('Two processes need elsewhere="module:function", which returns subject, claim and like.')
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{index}.npy" for index in range(2)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        program = "import sys; from tff_mf.conformance import noise; noise.save_first(*sys.argv[1:])"
        command = [sys.executable, "-c", program, trial.elsewhere]
        running = [subprocess.Popen([*command, file], env=environment) for file in files]
        if {process.wait() for process in running} != {0}:
            raise InputValueError(f"elsewhere={trial.elsewhere!r} failed in its own process: see the message above.")
        if _is_same(*map(np.load, files)):
            raise BrokenError("They draw the same noise.")
    return ""


def save_first(elsewhere: str, file: str) -> None:
    """Writes the first noise of the subject of MODULE:FUNCTION to a file."""
    module, _, function = elsewhere.partition(":")
    subject, claim, like = getattr(importlib.import_module(module), function)()
    _, released = subject.step(subject.start(), [Updates(like, claim.clip_norm, 1).zeros])
    arrays = leaves(getattr(released, "estimate", released)).values()
    np.save(file, np.concatenate([array.ravel() for array in arrays]))
