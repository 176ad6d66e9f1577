"""Laws of the noise of zero updates: its scale, its correlations, and whether it is fresh."""

import functools
import itertools
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from scipy import fft, stats

from tff_mf.base.errors import InputValueError
from tff_mf.conformance.claim import CHANCE, FAILED, NOT_JUDGED, PASSED, POWER, Outcome
from tff_mf.conformance.probe import Probe, ReleaseError

_ROUNDS = 8
# Numbers of noise that are measured, so that a scale that is off by 2 % is found; starts, at most; and numbers of all
# rounds up to the last one, which is run once.
_NUMBERS, _MOST_STARTS, _MOST_LATER = 500_000, 4000, 2e7
# Numbers that starts may draw to find a short seed.
_DRAWN, _MOST_SEEDS = 2e8, 1500
# Rows that are compared at all shifts; fewer coordinates than these are compared pair by pair.
_SHIFTED_ROWS, _FEW = 20, 64
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

    def scale(self) -> Outcome:
        """Judges sums of squares, over all starts, of each tensor in each round, of tensors, of rounds, and of all."""
        if not self.is_finite:
            return Outcome(law="scale", status=FAILED, text="Rounds of zero updates release what is not finite.")
        starts, size = len(self.whitened), self.probe.sizes
        ends = np.cumsum([0, *size])
        squares = np.array(
            [
                [float(np.sum(np.square(part, dtype=np.float64))) for part in np.split(row, ends[1:-1], axis=-1)]
                for row in self.whitened.transpose(1, 0, 2)
            ]
        )
        degrees = np.tile(np.array(size, float) * starts, (self.rounds, 1))
        pieces = [(f"tensor {j} in round {i + 1}", squares[i, j], degrees[i, j]) for i, j in np.ndindex(*squares.shape)]
        pieces += [(f"tensor {j}", *sums) for j, sums in enumerate(zip(squares.sum(0), degrees.sum(0), strict=True))]
        pieces += [(f"round {i + 1}", *sums) for i, sums in enumerate(zip(squares.sum(1), degrees.sum(1), strict=True))]
        coordinates = np.sum(np.square(self.whitened, dtype=np.float64), axis=(0, 1))
        for place in {int(np.argmin(coordinates)), int(np.argmax(coordinates))}:
            pieces += [(f"the number in place {place}", coordinates[place], float(starts * self.rounds))]
        pieces += [
            (f"round {done + 1}", float(np.sum(np.square(row))), float(len(row))) for done, row in enumerate(self.later)
        ]
        pieces.append(("all rounds", squares.sum(), degrees.sum()))
        pieces = [piece for piece in pieces if piece[2]]
        tails = [2 * min(stats.chi2.cdf(total, count), stats.chi2.sf(total, count)) for _, total, count in pieces]
        # Each place could have been the one that is looked at.
        wrong = [
            piece for piece, tail in zip(pieces, tails, strict=True) if tail < CHANCE / (len(pieces) + len(coordinates))
        ]
        if wrong:
            # All rounds if they are wrong, or else what is furthest off.
            ratios = {where: math.sqrt(total / count) for where, total, count in wrong}
            furthest = max(ratios, key=lambda where: abs(math.log(max(ratios[where], 1e-9))))
            where = "all rounds" if "all rounds" in ratios else furthest
            text = f"The noise of {where}, whitened, has {ratios[where]:.3g} times the claimed standard deviation"
            text += "." if where == furthest else f", that of {furthest} {ratios[furthest]:.3g} times."
            return Outcome(law="scale", status=FAILED, text=text)
        deviations = deviations_of(len(pieces))
        least = [
            (deviations + POWER) / math.sqrt(2 * count)
            for count in (degrees.sum(), degrees.sum(0)[np.array(size) > 0].min())
        ]
        finds = f"a scale that is off by {least[0]:.1%}, or by {least[1]:.1%} in the smallest tensor"
        return Outcome(law="scale", status=PASSED, finds=finds)

    def correlation(self) -> Outcome:
        """Judges correlations of rounds, of coordinates at every shift, and of tensors; and the law of a number."""
        if not self.is_finite:
            return Outcome(law="correlation", status=NOT_JUDGED, text="The noise is not finite.")
        flat = self.whitened.astype(np.float64)
        starts, rounds, dimension = flat.shape
        numbers = starts * dimension
        pairs = np.einsum("std,sud->tu", flat, flat)[np.tril_indices(rounds, -1)] / math.sqrt(numbers)
        if pairs.size and np.abs(pairs).max() > deviations_of(pairs.size):
            text = f"Rounds are correlated by {np.abs(pairs).max() / math.sqrt(numbers):.3g}: C is not the claimed one."
            return Outcome(law="correlation", status=FAILED, text=text)
        if len(self.later) > 1:
            directions = self.later / np.linalg.norm(self.later, axis=1, keepdims=True)
            of_run = np.abs((directions @ directions.T)[np.tril_indices(len(directions), -1)])
            if of_run.max() > largest_correlation(dimension, of_run.size):
                text = f"Rounds of a whole run are correlated by {of_run.max():.3g}."
                return Outcome(law="correlation", status=FAILED, text=text)
        if text := self._not_normal(flat):
            return Outcome(law="correlation", status=FAILED, text=text)
        if dimension < _FEW:
            rows = flat.reshape(-1, dimension)
            pairs = (rows.T @ rows)[np.tril_indices(dimension, -1)] / math.sqrt(len(rows))
            largest, what = np.abs(pairs).max(initial=0.0), "Coordinates"
            threshold = deviations_of(max(1, pairs.size))
        else:
            rows = self.whitened.reshape(-1, dimension)[:_SHIFTED_ROWS]
            (largest, threshold), what = _largest_shift(rows), "Coordinates, or rounds with a shift,"
            aligned = _aligned(flat, self.probe.sizes)
            if aligned > 1:
                largest, what = math.inf, "Tensors"
        if largest > threshold:
            return Outcome(law="correlation", status=FAILED, text=f"{what} have correlated noise, or the same.")
        least = (deviations_of(max(1, pairs.size)) + POWER) / math.sqrt(numbers)
        return Outcome(law="correlation", status=PASSED, finds=f"rounds that are correlated by {least:.2g}")

    def _not_normal(self, whitened: np.ndarray) -> str:
        """Returns why numbers are not normal: by their characteristic function, their tail, and how many differ."""
        for order in (1.0, 2.0):
            mean, variance = math.exp(-(order**2) / 2), (1 + math.exp(-2 * order**2)) / 2 - math.exp(-(order**2))
            off = abs(float(np.mean(np.cos(order * whitened))) - mean) / math.sqrt(variance / whitened.size)
            if off > deviations_of(2):
                return f"The noise is not normal: its characteristic function is off by {off:.0f} deviations."
        beyond, chance = int(np.sum(np.abs(whitened) > _BEYOND)), 2 * float(stats.norm.sf(_BEYOND))
        tails = (stats.binom.cdf(beyond, whitened.size, chance), stats.binom.sf(beyond - 1, whitened.size, chance))
        if whitened.size * chance >= _FEWEST_BEYOND and min(tails) < CHANCE / 4:
            expected = whitened.size * chance
            return f"{beyond} of {whitened.size} numbers exceed {_BEYOND:g} deviations, and {expected:.0f} should."
        # Of first rounds, whose numbers are those that were drawn.
        first = self.whitened[:, 0].ravel()[:100_000]
        if self.probe.claim.grid is None and len(first) > 8 * _FEW and len(np.unique(first)) < _DISTINCT * len(first):
            return f"Of {len(first)} numbers, {len(np.unique(first))} are different: the noise is on a lattice."
        return ""


def deviations_of(tests: int) -> float:
    """Returns the standard deviations that none of so many normal numbers exceeds, but with a chance of `CHANCE`."""
    return float(stats.norm.isf(CHANCE / 4 / tests))


def largest_correlation(numbers: int, tests: int) -> float:
    """Returns what no correlation of so many pairs of independent normal vectors exceeds, but with `CHANCE`.

    The square of one is beta distributed, exactly, whatever the number of coordinates.
    """
    return math.sqrt(float(stats.beta.isf(CHANCE / 4 / tests, 0.5, max(numbers - 1, 1) / 2)))


def _aligned(whitened: np.ndarray, sizes: list[int]) -> float:
    """Returns the largest correlation of the first numbers of two tensors, relative to what chance allows."""
    ends = np.cumsum([0, *sizes])
    parts = [whitened[..., begin:end] for begin, end in itertools.pairwise(ends) if end > begin][:_MOST_TENSORS]
    largest = 0.0
    for index, part in enumerate(parts):
        for other in parts[:index]:
            size = min(part.shape[-1], other.shape[-1])
            one, two = part[..., :size].ravel(), other[..., :size].ravel()
            correlation = abs(float(one @ two)) / float(np.linalg.norm(one) * np.linalg.norm(two))
            largest = max(largest, correlation / largest_correlation(len(one), len(parts) ** 2))
    return largest


def _largest_shift(rows: np.ndarray) -> tuple[float, float]:
    """Returns the largest correlation of two rows, or of a row with itself, over all circular shifts; and a bound."""
    count, dimension = rows.shape
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    transforms = np.asarray(fft.rfft(directions.astype(np.float32), axis=1))
    largest = 0.0
    for index, one in enumerate(transforms):
        for place, other in enumerate(transforms[: index + 1]):
            sums = np.abs(np.asarray(fft.irfft(one * other.conj(), dimension)))
            if place == index:
                sums[0] = 0.0
            largest = max(largest, float(sums.max()))
    # A row and its own shifts have half as many independent terms.
    return largest, largest_correlation(dimension // 2, count * (count + 1) // 2 * dimension)


def fresh(probe: Probe, noise: Noise, elsewhere: str | None, effort: float) -> Outcome:
    """Judges whether draws repeat: from one state, of many starts, and in two processes started at the same time."""
    if not noise.is_finite:
        return Outcome(law="fresh", status=NOT_JUDGED, text="The noise is not finite.")
    rows, many = [noise.whitened[0, 0]], -(-8 // probe.dimension)
    for done in {0, noise.rounds - 1}:
        once, twice = (np.concatenate([noise.again(done) for _ in range(many)]) for _ in range(2))
        if _is_same(once, twice):
            text = f"A state stepped twice after round {done + 1} repeats its noise."
            return Outcome(law="fresh", status=FAILED, text=text)
        rows += [once[: probe.dimension], twice[: probe.dimension]]
    starts = int(np.clip(_DRAWN / probe.dimension, 20, _MOST_SEEDS * effort))
    drawn = set()
    for _ in range(starts):
        state, numbers = probe.subject.start(), []
        for _ in range(min(many, noise.rounds)):
            seen = probe.step(state, probe.quiet)
            state, numbers = seen.state, [*numbers, seen.sums[: 8 * _FEW].tobytes()]
        drawn.add(b"".join(numbers))
    if len(drawn) < starts:
        text = f"{starts} starts drew {len(drawn)} different noises: seeds are short, or repeat."
        return Outcome(law="fresh", status=FAILED, text=text)
    if probe.dimension >= _FEW:
        rows += [noise.whitened[1, 0], *noise.whitened[0, 1:]]
        largest, bound = _largest_shift(np.stack(rows[:_SHIFTED_ROWS]))
        if largest > bound:
            text = "Two draws share numbers, in the same or other places: keys repeat, are neighbours, or C is another."
            return Outcome(law="fresh", status=FAILED, text=text)
    # The probability that none of s starts shares one of 2^b seeds is about exp(−s² / 2^(b + 1)).
    bits = math.log2(starts**2 / 2 / math.log(1e6))
    finds = f"seeds of at most {bits:.0f} bits"
    if elsewhere is None:
        remedy = 'Pass elsewhere="module:function", which returns subject, claim and like.'
        return Outcome(
            law="fresh", status=NOT_JUDGED, text="Two processes were not compared.", remedy=remedy, finds=finds
        )
    if _is_same(*_in_two_processes(elsewhere)):
        text = "Two processes that start at the same time draw the same noise."
        return Outcome(law="fresh", status=FAILED, text=text)
    return Outcome(law="fresh", status=PASSED, finds=finds)


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.linalg.norm(one - other) < _SAME * np.linalg.norm(one))


def _in_two_processes(elsewhere: str) -> list[np.ndarray]:
    """Returns the first noise of two processes that start at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"{index}.npy" for index in range(2)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        program = [sys.executable, "-m", "tff_mf.conformance.first_noise", elsewhere]
        running = [subprocess.Popen([*program, str(file)], env=environment) for file in files]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise InputValueError(f"elsewhere={elsewhere!r} failed in a process of its own: see the message above.")
        return [np.load(file) for file in files]
