"""Laws of the noise of zero updates: its scale, its correlations, and whether it is fresh."""

import functools
import itertools
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
from scipy import fft, stats

from tff_mf.base.errors import InputValueError
from tff_mf.conformance.claim import CHANCE, POWER, BrokenError, NotJudgedError
from tff_mf.conformance.rounds import Probe, ReleaseError

_ROUNDS = 8
# Numbers of noise that are measured, so that a scale that is off by 2 % is found; starts, at most; and numbers of all
# rounds up to the last one, which is run once.
_NUMBERS, _MOST_STARTS, _MOST_LATER = 500_000, 4000, 2e7
# Numbers that starts may draw to find a short seed.
_DRAWN, _MOST_SEEDS = 2e8, 1500
# Rows that are compared at all shifts; fewer coordinates than these are compared pair by pair.
_SHIFTED_ROWS, _FEW = 20, 256
_MOST_TENSORS = 40
_SAME = 1e-3
# Of normal numbers, so many exceed 4, in absolute value; and the share of different ones among many.
_BEYOND, _FEWEST_BEYOND, _DISTINCT = 4.0, 25, 0.5


class Noise:
    """Rounds whose updates are zero: whitened noise, float32 `[starts, rounds, dimension]`, and the states before."""

    def __init__(self, probe: Probe, effort: float) -> None:
        claim, self.probe = probe.claim, probe
        run = claim.mechanism.cast_to_float32()
        limits = (claim.rounds, run.max_rounds)
        self.rounds = min([_ROUNDS, *(limit for limit in limits if limit is not None)])
        self.encoder = run.encoder(self.rounds)
        # Of a coordinate of a first release, in clip norms.
        self.first = claim.noise_multiplier / float(self.encoder[0, 0])
        wanted = math.ceil(_NUMBERS * effort / (self.rounds * probe.dimension))
        starts = min(max(wanted, 2), _MOST_STARTS)
        self.whitened = np.empty((starts, self.rounds, probe.dimension), np.float32)
        self.states, self.past = [], np.empty((self.rounds, probe.dimension))
        for start in range(starts):
            state, rows = probe.subject.start(), np.empty((self.rounds, probe.dimension))
            for done in range(self.rounds):
                if start == 0:
                    self.states.append(state)
                try:
                    seen = probe.step(state, probe.quiet)
                except ReleaseError:
                    raise
                except Exception as error:
                    raise InputValueError(
                        f"subject refuses a round of zero updates like the tree of like: {error!r}. Pass a tree "
                        "that has the shapes of its updates."
                    ) from error
                state, rows[done] = seen.state, seen.sums
            if start == 0:
                self.past = rows
            with np.errstate(over="ignore", invalid="ignore"):
                self.whitened[start] = self.encoder @ rows / claim.noise_multiplier
        self.is_finite = bool(np.all(np.isfinite(self.whitened)))

    @functools.cached_property
    def later(self) -> np.ndarray:
        """Whitened noise of one run of all rounds, `[rounds, dimension]`; of none if that takes long."""
        claim, dimension = self.probe.claim, self.probe.dimension
        if claim.rounds is None or claim.rounds * max(dimension, claim.rounds) > _MOST_LATER:
            return np.empty((0, dimension))
        state, rows = self.probe.subject.start(), np.empty((claim.rounds, dimension))
        for done in range(claim.rounds):
            seen = self.probe.step(state, self.probe.quiet)
            state, rows[done] = seen.state, seen.sums
        return claim.mechanism.cast_to_float32().encoder(claim.rounds) @ rows / claim.noise_multiplier

    def again(self, done: int) -> np.ndarray:
        """Returns the whitened noise of a round that runs a second time from one state."""
        rows = self.past[: done + 1].copy()
        rows[done] = self.probe.step(self.states[done], self.probe.quiet).sums
        return self.encoder[done, : done + 1] @ rows / self.probe.claim.noise_multiplier

    def parts(self) -> Iterator[np.ndarray]:
        """Yields the whitened noise of each tensor, float32 `[starts, rounds, size]`."""
        ends = np.cumsum([0, *self.probe.updates.sizes])
        return (self.whitened[..., begin:end] for begin, end in itertools.pairwise(ends))

    def scale(self) -> str:
        """Judges sums of squares: of tensors and rounds, of places, of a whole run, and of the sums of tensors."""
        if not self.is_finite:
            raise BrokenError("Rounds of zero updates release what is not finite.")
        starts, sizes = len(self.whitened), np.array(self.probe.updates.sizes, float)
        squares = np.stack([np.sum(np.square(part, dtype=np.float64), axis=(0, 2)) for part in self.parts()], axis=1)
        each, places = starts * sizes, np.sum(np.square(self.whitened, dtype=np.float64), axis=(0, 1))
        pieces = {"all rounds": (squares.sum(), self.rounds * each.sum())}
        for tensor, part in enumerate(self.parts()):
            if not sizes[tensor]:
                continue
            pieces[f"tensor {tensor}"] = (squares[:, tensor].sum(), self.rounds * each[tensor])
            for done in range(self.rounds):
                pieces[f"tensor {tensor} in round {done + 1}"] = (squares[done, tensor], each[tensor])
            sums = np.sum(part, axis=2, dtype=np.float64) / math.sqrt(sizes[tensor])
            pieces[f"the sum of tensor {tensor}"] = (np.sum(sums**2), sums.size)
        for done, row in enumerate(self.later):
            pieces[f"round {done + 1}"] = (np.sum(row**2), len(row))
        for done in range(self.rounds):
            pieces[f"round {done + 1}"] = (squares[done].sum(), each.sum())
        for place in (int(np.argmin(places)), int(np.argmax(places))):
            pieces[f"the number in place {place}"] = (places[place], starts * self.rounds)
        totals, counts = np.array(list(pieces.values())).T
        tails = 2 * np.minimum(stats.chi2.cdf(totals, counts), stats.chi2.sf(totals, counts))
        # Each place could have been the one that is looked at.
        wrong = tails < CHANCE / (len(pieces) + len(places))
        if np.any(wrong):
            # All rounds if they are wrong, or else what is furthest off.
            off = np.where(wrong, np.abs(np.log(np.maximum(totals / counts, 1e-18))), 0.0)
            ratios, furthest = np.sqrt(totals / counts), list(pieces)[np.argmax(off)]
            ratio = dict(zip(pieces, ratios, strict=True))
            where = "all rounds" if wrong[0] else furthest
            text = f"The noise of {where}, whitened, has {ratio[where]:.3g} times the claimed standard deviation"
            text += "." if where == furthest else f", that of {furthest} {ratio[furthest]:.3g} times."
            raise BrokenError(text)
        deviations = deviations_of(len(pieces)) + POWER
        least = [deviations / math.sqrt(2 * count) for count in (counts[0], self.rounds * each[each > 0].min())]
        return f"a scale that is off by {least[0]:.1%}, or by {least[1]:.1%} in the smallest tensor"

    def correlation(self) -> str:
        """Judges correlations of rounds, of coordinates at every shift, and of tensors; and the law of a number."""
        if not self.is_finite:
            raise NotJudgedError("The noise is not finite.")
        rounds = self.whitened.transpose(1, 0, 2).reshape(self.rounds, -1).astype(np.float64)
        numbers = rounds.shape[1]
        for what, rows in (("Rounds", rounds), ("Rounds of a whole run", self.later)):
            if (correlation := _largest(rows)) > largest_correlation(rows.shape[1], len(rows) ** 2):
                raise BrokenError(f"{what} are correlated by {correlation:.3g}: C is not the claimed one.")
        self._check_normal(rounds)
        rows = self.whitened.reshape(-1, self.probe.dimension)
        if self.probe.dimension < _FEW:
            related = _largest(rows.T) > largest_correlation(len(rows), self.probe.dimension**2)
        else:
            related = _is_shifted(rows[:_SHIFTED_ROWS]) or self._tensors_are_aligned()
        if related:
            raise BrokenError("Coordinates, tensors, or rounds with a shift, have correlated noise, or the same.")
        least = (deviations_of(self.rounds**2) + POWER) / math.sqrt(numbers)
        return f"rounds that are correlated by {least:.2g}"

    def _check_normal(self, whitened: np.ndarray) -> None:
        """Checks that numbers are normal: by their characteristic function, their tail, and how many differ."""
        for order in (1.0, 2.0):
            mean, variance = math.exp(-(order**2) / 2), (1 + math.exp(-2 * order**2)) / 2 - math.exp(-(order**2))
            off = abs(float(np.mean(np.cos(order * whitened))) - mean) / math.sqrt(variance / whitened.size)
            if off > deviations_of(2):
                raise BrokenError(
                    f"The noise is not normal: its characteristic function is off by {off:.0f} deviations."
                )
        beyond, chance = int(np.sum(np.abs(whitened) > _BEYOND)), 2 * float(stats.norm.sf(_BEYOND))
        tails = (stats.binom.cdf(beyond, whitened.size, chance), stats.binom.sf(beyond - 1, whitened.size, chance))
        if whitened.size * chance >= _FEWEST_BEYOND and min(tails) < CHANCE / 4:
            expected = f"{whitened.size * chance:.0f} should"
            raise BrokenError(f"{beyond} of {whitened.size} numbers exceed {_BEYOND:g} deviations, and {expected}.")
        # Of first rounds, whose numbers are those that were drawn.
        first = self.whitened[:, 0].ravel()[:100_000]
        if self.probe.claim.grid is None and len(first) > 500 and len(np.unique(first)) < _DISTINCT * len(first):
            different = len(np.unique(first))
            raise BrokenError(f"Of {len(first)} numbers, {different} are different: the noise is on a lattice.")

    def _tensors_are_aligned(self) -> bool:
        """Whether the first numbers of two tensors are correlated."""
        parts = [part for part in itertools.islice(self.parts(), _MOST_TENSORS) if part.size]
        for one, other in itertools.combinations(parts, 2):
            size = min(one.shape[-1], other.shape[-1])
            pair = np.stack([part[..., :size].ravel() for part in (one, other)]).astype(np.float64)
            if _largest(pair) > largest_correlation(pair.shape[1], len(parts) ** 2):
                return True
        return False


def deviations_of(tests: int) -> float:
    """Returns the standard deviations that none of so many normal numbers exceeds, but with a chance of `CHANCE`."""
    return float(stats.norm.isf(CHANCE / 4 / tests))


def largest_correlation(numbers: int, tests: int) -> float:
    """Returns what no correlation of so many pairs of independent normal vectors exceeds, but with `CHANCE`.

    The square of one is beta distributed, exactly, whatever the number of coordinates.
    """
    return math.sqrt(float(stats.beta.isf(CHANCE / 4 / max(tests, 1), 0.5, max(numbers - 1, 1) / 2)))


def _largest(rows: np.ndarray) -> float:
    """Returns the largest correlation of two rows, in absolute value."""
    products, norms = rows @ rows.T, np.linalg.norm(rows, axis=1)
    sizes = np.maximum(np.outer(norms, norms), 1e-300)
    return float(np.abs(np.tril(products / sizes, -1)).max(initial=0.0))


def _is_shifted(rows: np.ndarray) -> bool:
    """Whether two rows, or a row and itself, are correlated at any circular shift, or if one is read backwards."""
    count, dimension = rows.shape
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    transforms = np.asarray(fft.rfft(directions.astype(np.float32), axis=1))
    # A row and its own shifts have half as many independent terms, and two places are their own images backwards.
    bound = largest_correlation(dimension // 2, count * (count + 1) * dimension) + 2 * deviations_of(1) ** 2 / dimension
    for index, one in enumerate(transforms):
        for place, other in enumerate(transforms[: index + 1]):
            forwards = np.abs(np.asarray(fft.irfft(one * other.conj(), dimension)))
            backwards = np.abs(np.asarray(fft.irfft(one * other, dimension)))
            if place == index:
                forwards[0] = 0.0
            if max(forwards.max(), backwards.max()) > bound:
                return True
    return False


def fresh(probe: Probe, noise: Noise, effort: float) -> str:
    """Judges whether draws repeat: from one state, or of many starts."""
    if not noise.is_finite:
        raise NotJudgedError("The noise is not finite.")
    rows, many = [noise.whitened[0, 0]], -(-8 // probe.dimension)
    for done in {0, noise.rounds - 1}:
        once, twice = (np.concatenate([noise.again(done) for _ in range(many)]) for _ in range(2))
        if _is_same(once, twice):
            raise BrokenError(f"A state stepped twice after round {done + 1} repeats its noise.")
        rows += [once[: probe.dimension], twice[: probe.dimension]]
    starts = int(np.clip(_DRAWN / probe.dimension, 20, max(20, _MOST_SEEDS * effort)))
    drawn = set()
    for _ in range(starts):
        state, numbers = probe.subject.start(), []
        for _ in range(min(many, noise.rounds)):
            seen = probe.step(state, probe.quiet)
            state, numbers = seen.state, [*numbers, seen.sums[:500].tobytes()]
        drawn.add(b"".join(numbers))
    if len(drawn) < starts:
        raise BrokenError(f"{starts} starts drew {len(drawn)} different noises: seeds are short, or repeat.")
    rows += [noise.whitened[1, 0], *noise.whitened[0, 1:]]
    if probe.dimension >= _FEW and _is_shifted(np.stack(rows[:_SHIFTED_ROWS])):
        text = "Two draws share numbers, in the same or other places: keys repeat, are neighbours, or C is another."
        raise BrokenError(text)
    # The probability that none of s starts shares one of 2^b seeds is about exp(−s² / 2^(b + 1)).
    bits = math.log2(starts**2 / 2 / math.log(1e6))
    return f"seeds of at most {bits:.0f} bits"


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.linalg.norm(one - other) < _SAME * np.linalg.norm(one))


def processes(elsewhere: str | None) -> str:
    """Judges the first noise of two processes that start at the same time."""
    if elsewhere is None:
        remedy = 'Pass elsewhere="module:function", which returns subject, claim and like.'
        raise NotJudgedError("Two processes were not compared.", remedy)
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"{index}.npy" for index in range(2)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        program = [sys.executable, "-m", "tff_mf.conformance.rounds", elsewhere]
        running = [subprocess.Popen([*program, str(file)], env=environment) for file in files]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise InputValueError(f"elsewhere={elsewhere!r} failed in a process of its own: see the message above.")
        if _is_same(*map(np.load, files)):
            raise BrokenError("They draw the same noise.")
    return ""
