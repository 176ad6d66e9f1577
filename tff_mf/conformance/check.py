"""`check`: runs a subject on made-up updates, and judges it law by law.

Every statistical test has a false alarm below `CHANCE`, and there are fewer than ten. Noise of a round is compared with
its claim after whitening: row t of C·n / σ is standard normal, and independent of all other rows.
"""

import dataclasses
import functools
import itertools
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from scipy import fft, stats

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.conformance.claim import FAILED, LAWS, NOT_JUDGED, NOT_PROMISED, PASSED, Claim, Outcome, Subject, Verdict
from tff_mf.conformance.probe import Probe, ReleaseError, leaves, rebuilt

# Of one law that is kept; and standard deviations within which a fault is missed with probability 1e-6.
CHANCE, _POWER = 1e-10, 4.76
_ROUNDS = 8
# Numbers of noise that are measured, so that a scale that is off by 2 % is found; starts, at most.
_NUMBERS, _MOST_STARTS = 400_000, 4000
# Numbers that starts may draw to find a short seed, and that a round of hostile updates may draw.
_DRAWN, _MOST_SEEDS, _MOST_DRAWS = 2e8, 1500, 256
# A client that moves a release this much further than allowed is found, if as many draws as are allowed suffice; a
# fault of this size, at least, or the law is not judged.
_FAULT, _LARGEST_FAULT = 1.25, 2.0
# Rows that are compared at all shifts; fewer coordinates than these are compared pair by pair.
_SHIFTED_ROWS, _FEW = 20, 64
_MOST_TENSORS = 40
# Rounds that are run to reach the last one: as many numbers.
_MOST_LAST = 5e7
_SAME = 1e-3
# Numbers that are kept as they were released; fewer near 0 do not show their last bits.
_KEPT, _FEWEST_NEAR_0 = 2e6, 120
_DIGITS_OF_FLOAT16 = 11


def check(
    subject: Subject,
    claim: Claim,
    *,
    like: Any,
    clients: int = 10,
    elsewhere: str | None = None,
    laws: Collection[str] = tuple(LAWS),
    effort: float = 1.0,
    progress: Callable[[str], None] = lambda law: None,
) -> Verdict:
    """Runs a subject on made-up updates, and judges whether it keeps its claim.

    Formal guarantee: as for `Verdict`. Statistical laws take their noise for independent of the updates that are made.

    Args:
        subject: The implementation.
        claim: What it claims.
        like: A tree of arrays like a client's update: nested mappings, lists and tuples.
        clients: Clients that report in a round; some rounds have twice as many.
        elsewhere: "module:function" that returns subject, claim and `like`, so that two processes can be compared; if
            `None`, they are not.
        laws: Names of the laws that are judged.
        effort: Rounds that are run, relative to what usually shows small faults: `Outcome.finds` says what is found.
        progress: Called with the name of each law before it is judged.

    Example:
        >>> class Gaussian:
        ...     def start(self):
        ...         return 0
        ...     def step(self, state, updates):
        ...         norms = [max(1.0, np.linalg.norm(update.astype(float))) for update in updates]
        ...         clipped = [update / norm for update, norm in zip(updates, norms) if np.isfinite(norm)]
        ...         return state, sum(clipped, 0.0) + np.random.default_rng().normal(size=1000)
        >>> check(Gaussian(), Claim(clip_norm=1.0, noise_multiplier=1.1), like=np.zeros(1000))["scale"].status
        'failed'

    Raises:
        InputError: If an argument is of the wrong type or out of range, or a release is no tree like an update.
    """
    validation.instance("claim", claim, Claim, "make one with tff_mf.conformance.Claim")
    most = claim.grid.max_clients // 2 if claim.grid is not None else sys.maxsize
    for law in laws:
        validation.one_of("laws", law, tuple(LAWS))
    effort = validation.positive("effort", effort)
    probe = Probe(subject, claim, like, min(validation.whole("clients", clients), most))
    outcomes = []
    progress("scale")
    noise = _Noise(probe, effort)
    moves = _Moves(probe, noise, effort)
    judges: dict[str, Callable[[], Outcome]] = {
        "scale": noise.scale,
        "correlation": noise.correlation,
        "fresh": lambda: _fresh(probe, noise, elsewhere, effort),
        "bound": moves.bound,
        "divisor": moves.divisor,
        "beside": lambda: _beside(probe),
        "last_round": lambda: _last_round(probe),
        "low_bits": moves.low_bits,
    }
    for law in [law for law in LAWS if law in laws]:
        progress(law)
        outcome = judges[law]()
        if outcome.status != PASSED and law in claim.not_promised:
            outcome = Outcome(law=law, status=NOT_PROMISED, text=outcome.text)
        outcomes.append(outcome)
    return Verdict(outcomes=tuple(outcomes))


class _Noise:
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
        pieces.append(("all rounds", squares.sum(), degrees.sum()))
        pieces = [piece for piece in pieces if piece[2]]
        tails = [2 * min(stats.chi2.cdf(total, count), stats.chi2.sf(total, count)) for _, total, count in pieces]
        # Of all that are wrong, the largest.
        wrong = [index for index, tail in enumerate(tails) if tail < CHANCE / len(pieces)]
        if wrong:
            where, total, count = pieces[wrong[-1]]
            ratio = math.sqrt(total / count)
            text = f"The noise of {where}, whitened, has {ratio:.3g} times the claimed standard deviation."
            return Outcome(law="scale", status=FAILED, text=text)
        deviations = _deviations(len(pieces))
        least = [(deviations + _POWER) / math.sqrt(2 * count) for count in (degrees.sum(), degrees.sum(0).min())]
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
        if pairs.size and np.abs(pairs).max() > _deviations(pairs.size):
            text = f"Rounds are correlated by {np.abs(pairs).max() / math.sqrt(numbers):.3g}: C is not the claimed one."
            return Outcome(law="correlation", status=FAILED, text=text)
        for order in (1.0, 2.0):
            mean, variance = math.exp(-(order**2) / 2), (1 + math.exp(-2 * order**2)) / 2 - math.exp(-(order**2))
            off = abs(float(np.mean(np.cos(order * flat))) - mean) / math.sqrt(variance / flat.size)
            if off > _deviations(2):
                text = f"The noise is not normal: its characteristic function is off by {off:.0f} deviations."
                return Outcome(law="correlation", status=FAILED, text=text)
        if dimension < _FEW:
            rows = flat.reshape(-1, dimension)
            pairs = (rows.T @ rows)[np.tril_indices(dimension, -1)] / math.sqrt(len(rows))
            largest, what = np.abs(pairs).max(initial=0.0), "Coordinates"
            threshold = _deviations(max(1, pairs.size))
        else:
            rows = self.whitened.reshape(-1, dimension)[:_SHIFTED_ROWS]
            (largest, threshold), what = _largest_shift(rows), "Coordinates, or rounds with a shift,"
            aligned = _aligned(flat, self.probe.sizes)
            if np.abs(aligned).max(initial=0.0) > _deviations(max(1, len(aligned))):
                largest, what = math.inf, "Tensors"
        if largest > threshold:
            return Outcome(law="correlation", status=FAILED, text=f"{what} have correlated noise, or the same.")
        least = (_deviations(max(1, pairs.size)) + _POWER) / math.sqrt(numbers)
        return Outcome(law="correlation", status=PASSED, finds=f"rounds that are correlated by {least:.2g}")


def _deviations(tests: int) -> float:
    """Returns the standard deviations that none of so many normal numbers exceeds, but with a chance of `CHANCE`."""
    return float(stats.norm.isf(CHANCE / 4 / tests))


def _aligned(whitened: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Returns the correlations of the first numbers of pairs of tensors, in standard deviations."""
    ends = np.cumsum([0, *sizes])
    parts = [whitened[..., begin:end] for begin, end in itertools.pairwise(ends)][:_MOST_TENSORS]
    found = []
    for index, part in enumerate(parts):
        for other in parts[:index]:
            size = min(part.shape[-1], other.shape[-1])
            if size * part.shape[0] * part.shape[1] >= _FEW:
                both = part[..., :size] * other[..., :size]
                found.append(float(np.sum(both)) / math.sqrt(both.size))
    return np.array(found)


def _largest_shift(rows: np.ndarray) -> tuple[float, float]:
    """Returns the largest correlation of two rows, or of a row with itself, over all circular shifts; and a bound."""
    count, dimension = rows.shape
    transforms = np.asarray(fft.rfft(rows.astype(np.float32), axis=1))
    largest = 0.0
    for index, one in enumerate(transforms):
        for place, other in enumerate(transforms[: index + 1]):
            sums = np.abs(np.asarray(fft.irfft(one * other.conj(), dimension)))
            if place == index:
                sums[0] = 0.0
            largest = max(largest, float(sums.max()) / math.sqrt(dimension))
    return largest, _deviations(count * (count + 1) // 2 * dimension)


def _fresh(probe: Probe, noise: _Noise, elsewhere: str | None, effort: float) -> Outcome:
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
            text = "Two draws have the same numbers, moved to other coordinates or rounds: their seeds are neighbours."
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Draws:
    """First releases of one cohort, each with fresh noise, in clip norms.

    Attributes:
        times: Their number m.
        mean: Their mean, `[dimension]`.
        scatter: Sum of the squared distances from the mean.
        estimates: Some of them as they were released.
    """

    times: int
    mean: np.ndarray
    scatter: float
    estimates: list[np.ndarray]


class _Moves:
    """How far cohorts of equal clients move a first release, along the direction of their update and in all."""

    def __init__(self, probe: Probe, noise: _Noise, effort: float) -> None:
        self.probe, self.noise, self.clients = probe, noise, probe.clients
        self.threshold = _deviations(64)
        wanted = ((self.threshold + _POWER) * noise.first / ((_FAULT - 1) * self.clients)) ** 2
        most = np.clip(_DRAWN / 10 / probe.dimension, 4, _MOST_DRAWS) * effort
        self.times = int(np.clip(math.ceil(wanted), 2, max(2, most)))
        # Of the mean of the draws, along any direction.
        self.deviation = noise.first / math.sqrt(self.times)
        self.fault = 1 + (self.threshold + _POWER) * self.deviation / self.clients
        self.long = self.vector(1e3)

    def vector(self, length: float) -> np.ndarray:
        """Returns a vector of so many clip norms, as much in every tensor."""
        return self.probe.direction * (length * self.probe.claim.clip_norm)

    def draws(self, cohort: list[Any]) -> _Draws:
        """Runs first rounds of a cohort."""
        mean, squares, estimates = np.zeros(self.probe.dimension), 0.0, []
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.times):
                seen = self.probe.step(self.probe.subject.start(), cohort)
                mean += seen.sums / self.times
                squares += float(seen.sums @ seen.sums)
                if len(estimates) * self.probe.dimension < _KEPT:
                    estimates.append(seen.estimate)
            scatter = squares - self.times * float(mean @ mean)
        return _Draws(times=self.times, mean=mean, scatter=scatter, estimates=estimates)

    @functools.cached_property
    def of_clipped(self) -> _Draws:
        """Rounds of clients with long updates."""
        return self.draws([self.probe.update(self.long)] * self.clients)

    def along(self, draws: _Draws) -> float:
        """Returns how far a cohort moves the mean along the direction of its updates."""
        return float(draws.mean @ self.probe.direction)

    def hostile(self) -> Iterator[tuple[str, Any, bool]]:
        """Yields what a client may send, by name, and whether it lies along the direction."""
        probe, long = self.probe, self.long
        yield "an update of 1,000 clip norms", probe.update(long), True
        for length in (1.5, 1e6):
            yield f"an update of {length:g} clip norms", probe.update(self.vector(length)), True
        huge = np.full(probe.dimension, 3e38)
        yield "3e38 in every place", probe.update(huge), False
        yield "3e38 in one place", probe.update(np.where(np.arange(probe.dimension) == 0, 3e38, 0.0)), False
        yield "float64 of 1e300", probe.update(np.full(probe.dimension, 1e300), np.float64), False
        yield "subnormal numbers", probe.update(np.full(probe.dimension, 1e-40)), True
        for value in (np.nan, np.inf, -np.inf):
            one = long.copy()
            one[0] = value
            yield f"{value} in one place", probe.update(one), bool(np.isnan(value))
            yield f"{value} in every place", probe.update(np.full(probe.dimension, value)), False
        yield "integers", probe.update(np.full(probe.dimension, 2.0**40), np.int64), False
        yield "float16", probe.update(np.full(probe.dimension, 6e4), np.float16), False
        yield "no tensors", [], False
        # NumPy repeats a number for all places.
        yield "a number for each tensor", rebuilt(probe.like, [np.float32(1e6)] * len(probe.shapes)), False

    def bound(self) -> Outcome:
        """Judges how far `clients` equal updates move the mean of first releases, for everything that one may send."""
        if not self.noise.is_finite:
            return Outcome(law="bound", status=NOT_JUDGED, text="The noise is not finite.")
        if self.fault > _LARGEST_FAULT:
            needed = math.ceil((self.threshold + _POWER) * self.deviation / (_LARGEST_FAULT - 1))
            text = f"A client that moves a release twice too far is lost in the noise of {self.times} releases."
            smaller = self.probe.claim.noise_multiplier * self.clients / needed
            remedy = f"Pass clients={needed}, or check with noise_multiplier={smaller:.3g}."
            return Outcome(law="bound", status=NOT_JUDGED, text=text, remedy=remedy)
        refused = []
        for name, update, is_along in self.hostile():
            try:
                draws = self.draws([update] * self.clients)
            except ReleaseError:
                raise
            except Exception as error:
                refused.append(f"{name} ({type(error).__name__})")
                continue
            if fault := self.too_far(draws, is_along):
                return Outcome(law="bound", status=FAILED, text=f"Of clients that send {name}, {fault}.")
        if refused and refused[0].startswith("an update"):
            return Outcome(law="bound", status=NOT_JUDGED, text=f"It refuses {refused[0]}.")
        text = f"It refuses: {', '.join(refused)}." if refused else ""
        return Outcome(
            law="bound", status=PASSED, text=text, finds=f"a client that moves a release {self.fault:.2f} times as far"
        )

    def too_far(self, draws: _Draws, is_along: bool) -> str:
        """Returns what is wrong with the releases of a cohort; an empty text if nothing is."""
        if not np.all(np.isfinite(draws.mean)):
            return "the release is not finite"
        along = self.along(draws)
        if abs(along) > self.clients + self.threshold * self.deviation:
            return f"each moves a release {abs(along) / self.clients:.3g} times as far as clip_norm allows"
        rest = draws.mean - along * self.probe.direction if is_along else draws.mean
        moved = 0.0 if is_along else (self.clients / self.deviation) ** 2
        total = float(rest @ rest) / self.deviation**2
        # A bound on the tail of a noncentral χ²: Birgé (2001), lemma 8.1.
        logarithm = -math.log(CHANCE / 64)
        spread = 2 * math.sqrt((len(rest) + 2 * moved) * logarithm) + 2 * logarithm
        if total > len(rest) + moved + spread:
            far = math.sqrt(max(0.0, total - len(rest))) * self.deviation / self.clients
            return f"each moves a release {far:.3g} times as far as clip_norm allows"
        return ""

    def divisor(self) -> Outcome:
        """Judges whether twice as many clients move a release twice as far, and idle ones change nothing."""
        if self.fault > _LARGEST_FAULT or not self.noise.is_finite:
            return Outcome(law="divisor", status=NOT_JUDGED, text="Clients are lost in the noise.", remedy="See bound.")
        half = self.probe.update(self.vector(0.5))
        short = self.along(self.draws([half] * self.clients)) / self.clients
        if short < 0.5 - self.threshold * self.deviation / self.clients:
            text = f"Updates of half a clip norm move a release by {short:.3g} clip norms each: it is not of their sum."
            return Outcome(law="divisor", status=FAILED, text=text)
        # Some subjects leave long updates out.
        is_clipped = self.along(self.of_clipped) > self.clients / 2
        sent = self.probe.update(self.long) if is_clipped else half
        once, twice, idle = (
            self.draws([sent] * clients + [self.probe.zeros] * others)
            for clients, others in ((self.clients, 0), (2 * self.clients, 0), (self.clients, self.clients))
        )
        lengths = [self.along(draws) for draws in (once, twice, idle)]
        for name, ratio, off, deviations in (
            ("Twice as many clients", lengths[1] / lengths[0], lengths[1] - 2 * lengths[0], math.sqrt(5)),
            ("As many idle clients beside them", lengths[2] / lengths[0], lengths[2] - lengths[0], math.sqrt(2)),
        ):
            if abs(off) > self.threshold * deviations * self.deviation:
                text = f"{name} move a release {ratio:.3g} times as far: the divisor follows who reports."
                return Outcome(law="divisor", status=FAILED, text=text)
        degrees = self.probe.dimension * (self.times - 1)
        for draws in (once, twice, idle):
            if stats.chi2.cdf(draws.scatter / self.noise.first**2, degrees) < CHANCE / 8:
                ratio = math.sqrt(max(0.0, draws.scatter) / degrees) / self.noise.first
                text = f"With clients, the noise is {ratio:.3g} times as large as claimed."
                return Outcome(law="divisor", status=FAILED, text=text)
        least = (self.threshold + _POWER) * math.sqrt(5) * self.deviation / self.clients
        return Outcome(law="divisor", status=PASSED, finds=f"a divisor that changes by {least:.0%}")

    def low_bits(self) -> Outcome:
        """Judges whether numbers near 0, which clients have moved there, have the last bits of numbers that they left.

        A float near 0 has finer last bits than the noise that an update was added to. On a grid both are multiples of
        one number.
        """
        moved, still = self.of_clipped.estimates, self.draws(self.probe.quiet).estimates
        scale = self.probe.claim.divisor
        size = np.abs(self.long) / np.linalg.norm(self.long) * self.clients * self.probe.claim.clip_norm
        halves = [
            np.sum([_coarse(estimate * scale, size) for estimate in estimates], axis=0) for estimates in (moved, still)
        ]
        shares = [coarse / max(1, count) for coarse, count in halves]
        digits = np.concatenate([np.frexp(estimate)[0] for estimate in still]) * 2.0**_DIGITS_OF_FLOAT16
        if self.probe.claim.grid is None and np.array_equal(digits, np.rint(digits)):
            return Outcome(law="low_bits", status=FAILED, text="The noise has numbers of float16 only.")
        if min(count for _, count in halves) < _FEWEST_NEAR_0:
            return Outcome(
                law="low_bits",
                status=NOT_JUDGED,
                text="Too few numbers are near 0.",
                remedy="Pass more clients, or check with a smaller noise_multiplier.",
            )
        if shares[0] - shares[1] > 0.5:
            text = (
                f"Of numbers near 0, {shares[0]:.0%} end in zeros if clients moved them, and {shares[1]:.0%} if not: "
                "one release tells."
            )
            return Outcome(law="low_bits", status=FAILED, text=text)
        return Outcome(law="low_bits", status=PASSED, finds="floats to which noise was added, for such divisors")


def _coarse(values: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Returns how many numbers near 0 are multiples of the last bit of a float32 of a size; and how many are near 0."""
    near = np.abs(values) < size / 8
    unit = np.exp2(np.floor(np.log2(size[near])) - 24)
    quotients = values[near].astype(np.float64) / unit
    return np.array([np.sum(quotients == np.rint(quotients)), np.sum(near)])


def _beside(probe: Probe) -> Outcome:
    """Judges whether anything but the estimate changes with one client's update, or with its absence."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(probe.clients, probe.dimension)) / math.sqrt(probe.dimension)
    cohort = [probe.update(vector * probe.claim.clip_norm / 2) for vector in vectors]
    nan, long = np.full(probe.dimension, np.nan), vectors[0] * probe.claim.clip_norm * 1e4
    neighbours = {
        "is absent": cohort[1:],
        "sends zero": [probe.zeros, *cohort[1:]],
        "sends a long update": [probe.update(long), *cohort[1:]],
        "sends NaN": [probe.update(nan), *cohort[1:]],
    }
    state = probe.subject.start()

    def released(updates: list[Any]) -> dict[str, np.ndarray]:
        seen = probe.step(state, updates)
        published = getattr(probe.subject, "published", None)
        state_leaves = {} if published is None else leaves(published(seen.state), "/published")
        return {path or "/": leaf for path, leaf in (seen.beside | state_leaves).items()}

    with np.errstate(over="ignore", invalid="ignore"):
        first, second = released(cohort), released(cohort)
        random = {path for path, leaf in first.items() if not _equal(leaf, second.get(path))}
        covered = {path for path, leaf in first.items() if probe.claim.numbers_covered and leaf.size == 1}
        for what, updates in neighbours.items():
            try:
                other = released(updates)
            except ReleaseError:
                raise
            except Exception:
                continue
            changed = [path for path in first.keys() | other.keys() if not _equal(first.get(path), other.get(path))]
            exact = sorted({*changed} - random - covered)
            if exact:
                return Outcome(law="beside", status=FAILED, text=f"{exact[0]} changes if one client {what}.")
    if left := sorted(random - covered):
        text = f"{left[0]} is random, and its noise is not known."
        return Outcome(law="beside", status=NOT_JUDGED, text=text, remedy="Account for it, and claim numbers_covered.")
    return Outcome(law="beside", status=PASSED, text="" if first else "Nothing else is released.")


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return False
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def _last_round(probe: Probe) -> Outcome:
    """Judges whether the round after the last one is refused."""
    rounds = probe.claim.rounds
    if rounds is None:
        return Outcome(law="last_round", status=NOT_JUDGED, text="The claim has no last round.", remedy="Pass rounds.")
    if rounds * probe.dimension > _MOST_LAST:
        text = f"{rounds} rounds would take long."
        return Outcome(law="last_round", status=NOT_JUDGED, text=text, remedy="Check a subject of fewer rounds.")
    state = probe.subject.start()
    for _ in range(rounds):
        state = probe.step(state, probe.quiet).state
    try:
        probe.step(state, probe.quiet)
    except Exception:
        return Outcome(law="last_round", status=PASSED)
    text = f"Round {rounds + 1} ran, and the claim is for {rounds}."
    return Outcome(law="last_round", status=FAILED, text=text)
