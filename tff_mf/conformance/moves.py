"""Laws of what clients do to a release: how far one moves it, what it is divided by, and its last bits."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import stats

from tff_mf.conformance.claim import CHANCE, POWER, BrokenError, NotJudgedError
from tff_mf.conformance.noise import Noise, deviations_of
from tff_mf.conformance.rounds import Probe, unless_refused
from tff_mf.problem.grids import Grid

# Numbers that a round of hostile updates may draw.
_DRAWN, _MOST_DRAWS = 2e7, 256
# A client that moves a release this much further than allowed is found, if as many draws as are allowed suffice; a
# fault of this size, at least, or the law is not judged.
_FAULT, _LARGEST_FAULT = 1.25, 2.0
# Numbers that are kept as they were released; fewer near 0 do not show their last bits.
_KEPT, _FEWEST_NEAR_0 = 2e6, 120
# Digits of float16, and of float32 in float64.
_FEWER_DIGITS = {np.dtype(np.float32): 11, np.dtype(np.float64): 24}
# Tests of one law.
_TESTS = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draws:
    """First releases of one cohort, each with fresh noise, in clip norms.

    Attributes:
        mean: Their mean, `[dimension]`.
        along: How far it moves along the direction of the updates.
        scatter: Sum of the squared distances from the mean.
        spread: The same along the direction.
        estimates: Some of them as they were released.
    """

    mean: np.ndarray
    along: float
    scatter: float
    spread: float
    estimates: list[np.ndarray]


class Moves:
    """How far cohorts of equal clients move a first release, along the direction of their update and in all."""

    def __init__(self, probe: Probe, noise: Noise, effort: float) -> None:
        self.probe, self.updates, self.noise, self.clients = probe, probe.updates, noise, probe.clients
        self.threshold = deviations_of(_TESTS)
        least = (self.threshold + POWER) * noise.first / (self.clients * self.updates.cosine)
        self.most = max(2, int(np.clip(_DRAWN / probe.dimension, 4, _MOST_DRAWS) * effort))
        self.times = int(np.clip(math.ceil((least / (_FAULT - 1)) ** 2), 2, self.most))
        # Of the mean of the draws, along any direction.
        self.deviation = noise.first / math.sqrt(self.times)
        self.fault = 1 + least / math.sqrt(self.times)

    def draws(self, cohort: list[Any]) -> Draws:
        """Runs first rounds of a cohort."""
        mean, squares, lengths, estimates = np.zeros(self.probe.dimension), 0.0, [], []
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.times):
                seen = self.probe.step(self.probe.subject.start(), cohort)
                mean += seen.sums / self.times
                squares += float(seen.sums @ seen.sums)
                lengths.append(float(seen.sums @ self.updates.direction))
                if len(estimates) * self.probe.dimension < _KEPT:
                    estimates.append(seen.estimate)
            scatter, spread = squares - self.times * float(mean @ mean), self.times * float(np.var(lengths))
        along = float(np.mean(lengths))
        return Draws(mean=mean, along=along, scatter=scatter, spread=spread, estimates=estimates)

    @functools.cached_property
    def of_clipped(self) -> Draws:
        """Rounds of clients with long updates."""
        return self.draws([self.updates.long] * self.clients)

    def see(self) -> None:
        """Raises an error if clients cannot be seen in the noise."""
        if not self.noise.is_finite:
            raise NotJudgedError("The noise is not finite.")
        if self.updates.lacking:
            raise NotJudgedError(self.updates.lacking)
        if self.fault > _LARGEST_FAULT:
            needed = math.ceil(self.clients * (self.fault - 1) / (_LARGEST_FAULT - 1))
            text = f"A client that moves a release twice too far is lost in the noise of {self.times} releases."
            smaller = self.probe.claim.noise_multiplier * self.clients / needed
            raise NotJudgedError(text, f"Pass clients={needed}, or check with noise_multiplier={smaller:.3g}.")

    def bound(self) -> str:
        """Judges how far `clients` equal updates move the mean of first releases, for everything that one may send."""
        if not self.updates.lacking:
            self.see()
        refused = []
        for name, update in self.updates.hostile():
            if (draws := unless_refused(self.draws, [update] * self.clients)) is not None:
                self.check(draws, f"Of {self.clients} clients that send {name}")
            elif update is self.updates.long:
                raise NotJudgedError(f"It refuses {name}.")
            else:
                refused.append(name)
        self.see()
        self.in_one_place()
        self.odd_ones()
        self.in_later_rounds()
        finds = f"a client that moves a release {self.fault:.2f} times as far"
        return finds + (f", unless its update is refused: {', '.join(refused)}" if refused else "")

    def check(self, draws: Draws, who: str) -> None:
        """Checks the releases of a cohort: how far they are moved, and that they have no less noise."""
        if not np.all(np.isfinite(draws.mean)):
            raise BrokenError(f"{who}, the release is not finite.")
        dimension, moved = self.probe.dimension, (self.clients / self.deviation) ** 2
        total = float(draws.mean @ draws.mean) / self.deviation**2
        length = math.sqrt(max(0.0, total - dimension)) * self.deviation
        # A bound on the tail of a noncentral χ²: Birgé (2001), lemma 8.1.
        logarithm = -math.log(CHANCE / _TESTS)
        is_long = total > dimension + moved + 2 * math.sqrt((dimension + 2 * moved) * logarithm) + 2 * logarithm
        if is_long or abs(draws.along) > self.clients + self.threshold * self.deviation:
            far = max(length, abs(draws.along)) / self.clients
            raise BrokenError(f"{who}, each moves a release {far:.3g} times as far as clip_norm allows.")
        self.check_noise(draws, who)

    def check_noise(self, draws: Draws, who: str) -> None:
        """Checks that a cohort's draws have no less noise, in all or along its updates."""
        for name, squares, count in (
            ("the noise", draws.scatter, self.probe.dimension * (self.times - 1)),
            ("the noise along their updates", draws.spread, self.times - 1),
        ):
            if stats.chi2.cdf(squares / self.noise.first**2, count) < CHANCE / _TESTS:
                ratio = math.sqrt(max(0.0, squares) / count) / self.noise.first
                raise BrokenError(f"{who}, {name} is {ratio:.3g} times as large as claimed.")

    def in_one_place(self) -> None:
        """Checks whether an update that is large in one place alone is clipped, for as many places as there is time.

        Each client of a cohort has another place: a norm that leaves one out is seen in a single round.
        """
        limit = self.clients + deviations_of(self.probe.dimension * self.most) * self.noise.first
        for cohort in self.updates.single(self.most, self.clients):
            seen = unless_refused(self.probe.step, self.probe.subject.start(), cohort)
            if seen is not None and not np.all(np.abs(seen.sums) <= limit):
                place = int(np.argmax(np.nan_to_num(np.abs(seen.sums), nan=np.inf)))
                raise BrokenError(f"A client that sends 3e+38 in place {place} alone is not clipped.")

    def odd_ones(self) -> None:
        """Checks whether odd clients among ordinary ones move a release as far as among equals, as in a sum."""
        # Fewer than half: an ordinary client is in the middle.
        half, count = self.updates.half, max(1, (self.clients - 1) // 2)
        ordinary = [self.updates.long if half is None else half] * (self.clients - count)
        without = self.draws([*ordinary, *[self.updates.zeros] * count]).along
        for name, update in self.updates.odd.items():
            odd, equals = [update] * count, unless_refused(self.draws, [update] * self.clients)
            for place, cohort in (("first", [*odd, *ordinary]), ("last", [*ordinary, *odd])):
                draws = unless_refused(self.draws, cohort)
                if draws is None or equals is None:
                    continue
                moved, alike = (draws.along - without) / count, equals.along / self.clients
                if not abs(moved - alike) <= self.threshold * math.sqrt(3) * self.deviation / count:
                    who = f"Of {self.clients} clients, the {place} {count}, who send {name},"
                    text = f"{who} move a release by {moved:.3g} clip norms each, and among equals by {alike:.3g}."
                    raise BrokenError(text)

    def in_later_rounds(self) -> None:
        """Checks that no update is released in other rounds than its own, and that a later one is clipped."""
        rounds, probe = self.noise.rounds, self.probe
        long, lengths = [self.updates.long] * self.clients, np.zeros(rounds)
        # Half of the clients are away in every second round.
        quiet = [probe.quiet, probe.quiet[: (self.clients + 1) // 2]]
        for _ in range(self.times):
            state = probe.subject.start()
            for done in range(rounds):
                seen = unless_refused(probe.step, state, long if done in (0, rounds - 1) else quiet[done % 2])
                if seen is not None:
                    state = seen.state
                    lengths[done] += float(seen.sums @ self.updates.direction) / self.times
        stddevs = np.linalg.norm(np.linalg.inv(self.noise.encoder), axis=1) * probe.claim.noise_multiplier
        chance = self.threshold * stddevs / math.sqrt(self.times)
        for done in range(1, rounds):
            allowed = self.clients if done == rounds - 1 else 0
            if not abs(lengths[done]) <= allowed + chance[done]:
                sent = "clients send long updates" if allowed else "clients send zero, after long updates in round 1"
                raise BrokenError(f"In round {done + 1}, {sent}, and it is moved by {lengths[done]:.3g} clip norms.")

    def divisor(self) -> str:
        """Judges whether twice as many clients move a release twice as far, and idle ones change nothing."""
        self.see()
        sent, zeros, count = self.updates.long, self.updates.zeros, self.clients
        if (half := self.updates.half) is not None:
            short = self.draws([half] * count).along / count
            if short < 0.5 - self.threshold * self.deviation / count:
                text = f"Updates of half a clip norm move a release by {short:.3g} each: it is not of their sum."
                raise BrokenError(text)
            # Some subjects leave long updates out.
            sent = sent if self.of_clipped.along > count / 2 else half
        once = self.draws([sent] * count)
        cohorts = {f"{count} clients": once}
        for name, factor, cohort in (
            ("Twice as many clients", 2, [sent] * (2 * count)),
            ("As many idle clients beside them", 1, [sent] * count + [zeros] * count),
            ("Half as many idle clients beside them", 1, [sent] * count + [zeros] * (count // 2)),
        ):
            draws = cohorts[name] = self.draws(cohort)
            if abs(draws.along - factor * once.along) > self.threshold * math.hypot(1, factor) * self.deviation:
                ratio = draws.along / once.along
                text = f"{name} move a release {ratio:.3g} times as far: the divisor follows who reports."
                raise BrokenError(text)
        for name, cohort in (("nobody", []), ("one client", [zeros])):
            if (draws := unless_refused(self.draws, cohort)) is not None:
                cohorts[name] = draws
        for name, draws in cohorts.items():
            self.check_noise(draws, name)
            if not np.all(np.isfinite(draws.mean)):
                raise BrokenError(f"{name}, a release is not finite.")
        least = (self.threshold + POWER) * math.sqrt(5) * self.deviation / (count * self.updates.cosine)
        return f"a divisor that changes by {least:.0%}"

    def low_bits(self) -> str:
        """Judges whether numbers near 0, which clients have moved there, have the last bits of numbers that they left.

        A float near 0 has finer last bits than the noise that an update was added to. On a grid, all are whole
        multiples of g, as far as the released type can tell.
        """
        moved, still = self.of_clipped.estimates, self.draws(self.probe.quiet).estimates
        if self.probe.claim.grid is not None:
            return self._on_the_grid(self.probe.claim.grid, moved)
        if digits := _digits_of(np.concatenate(still), self.probe.claim.divisor):
            raise BrokenError(f"The noise has numbers of {digits} binary digits only.")
        scale = self.probe.claim.divisor
        size = np.abs(self.updates.direction) * self.clients * self.probe.claim.clip_norm
        halves = [
            np.sum([_coarse(estimate * scale, size) for estimate in estimates], axis=0) for estimates in (moved, still)
        ]
        shares = [coarse / max(1, count) for coarse, count in halves]
        if min(count for _, count in halves) < _FEWEST_NEAR_0:
            remedy = "Pass more clients, or check with a smaller noise_multiplier."
            raise NotJudgedError("Too few numbers are near 0.", remedy)
        if shares[0] - shares[1] > 0.5:
            text = f"Of numbers near 0, {shares[0]:.0%} end in zeros if clients moved them, and {shares[1]:.0%} if not"
            raise BrokenError(f"{text}: one release tells.")
        return "floats of this type that are added to floats"

    def _on_the_grid(self, grid: Grid, moved: list[np.ndarray]) -> str:
        """Judges whether releases are whole multiples of g, and no coarser."""
        quotients = np.concatenate(moved).astype(np.float64) * self.probe.claim.divisor / self.probe.claim.clip_norm
        quotients *= 2**grid.bits
        # What rounding to the released type, and the division, leave of a whole number.
        resolution = float(np.finfo(moved[0].dtype).eps) if moved[0].dtype.kind == "f" else 0.0
        rounding = 4 * np.abs(quotients) * resolution + 1e-9
        told = quotients[rounding < 0.01]
        if len(told) < _FEWEST_NEAR_0:
            raise NotJudgedError("The released type has too few bits to show whether numbers are on the grid.")
        if np.any(np.abs(told - np.rint(told)) > 0.01):
            raise BrokenError(f"Sums are no whole multiples of clip_norm / 2^{grid.bits}: they are not on the grid.")
        if stats.binom.cdf(int(np.sum(np.rint(told) % 2 == 1)), len(told), 0.5) < CHANCE:
            raise BrokenError("Sums are multiples of more than clip_norm / 2^bits.")
        return "sums or noise that are not on the grid"


def _digits_of(noise: np.ndarray, divisor: float) -> int:
    """Returns how many binary digits noise has, if they are those of a smaller type; or 0.

    The division and the product round at most the last digits.
    """
    digits = _FEWER_DIGITS.get(noise.dtype, 0) if noise.size > _FEWEST_NEAR_0 else 0
    parts = np.ldexp(np.frexp(noise * noise.dtype.type(divisor))[0], digits)
    rounding = 4 * np.finfo(noise.dtype).eps * 2**digits
    return digits if np.all(np.abs(parts - np.rint(parts)) <= rounding) else 0


def _coarse(values: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Returns how many numbers near 0 are multiples of half the last bit of a size, in their type; and how many are."""
    near = np.abs(values) < size / 8
    unit = np.exp2(np.floor(np.log2(size[near])) - np.finfo(values.dtype).nmant - 1.0)
    quotients = values[near].astype(np.float64) / unit
    return np.array([np.sum(quotients == np.rint(quotients)), np.sum(near)])
