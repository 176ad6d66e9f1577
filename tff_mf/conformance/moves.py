"""Laws of what clients do to a release: how far one moves it, what it is divided by, and its last bits."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import stats

from tff_mf.conformance.claim import CHANCE, FAILED, NOT_JUDGED, PASSED, POWER, Outcome
from tff_mf.conformance.noise import Noise, deviations_of
from tff_mf.conformance.rounds import Probe, ReleaseError
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

    def allowed(self, cohort: list[Any]) -> Draws | None:
        """Runs first rounds of a cohort, which the subject may refuse; then it is `None`."""
        try:
            return self.draws(cohort)
        except ReleaseError:
            raise
        except Exception:
            return None

    @functools.cached_property
    def of_clipped(self) -> Draws:
        """Rounds of clients with long updates."""
        return self.draws([self.updates.long] * self.clients)

    def lost(self, law: str) -> Outcome | None:
        """Returns that a law cannot be judged, or `None`."""
        text, remedy = self.updates.lacking, ""
        if not self.noise.is_finite:
            text = "The noise is not finite."
        elif not text and self.fault > _LARGEST_FAULT:
            needed = math.ceil(self.clients * (self.fault - 1) / (_LARGEST_FAULT - 1))
            text = f"A client that moves a release twice too far is lost in the noise of {self.times} releases."
            smaller = self.probe.claim.noise_multiplier * self.clients / needed
            remedy = f"Pass clients={needed}, or check with noise_multiplier={smaller:.3g}."
        return Outcome(law=law, status=NOT_JUDGED, text=text, remedy=remedy) if text else None

    def bound(self) -> Outcome:
        """Judges how far `clients` equal updates move the mean of first releases, for everything that one may send."""
        if (lost := self.lost("bound")) and not self.updates.lacking:
            return lost
        refused = []
        for name, update in self.updates.hostile():
            draws = self.allowed([update] * self.clients)
            if draws is None:
                refused.append(name)
            elif fault := self.too_far(draws) or self.less_noise(draws):
                return Outcome(law="bound", status=FAILED, text=f"Of {self.clients} clients that send {name}, {fault}.")
        if refused and refused[0].startswith("an update"):
            return Outcome(law="bound", status=NOT_JUDGED, text=f"It refuses {refused[0]}.")
        if lost:
            return lost
        if fault := self.in_one_place() or self.odd_one() or self.in_later_rounds():
            return Outcome(law="bound", status=FAILED, text=fault)
        text = f"It refuses: {', '.join(refused)}." if refused else ""
        finds = f"a client that moves a release {self.fault:.2f} times as far"
        return Outcome(law="bound", status=PASSED, text=text, finds=finds)

    def too_far(self, draws: Draws) -> str:
        """Returns what is wrong with the releases of a cohort; an empty text if nothing is."""
        if not np.all(np.isfinite(draws.mean)):
            return "the release is not finite"
        if abs(draws.along) > self.clients + self.threshold * self.deviation:
            return f"each moves a release {abs(draws.along) / self.clients:.3g} times as far as clip_norm allows"
        dimension, moved = self.probe.dimension, (self.clients / self.deviation) ** 2
        total = float(draws.mean @ draws.mean) / self.deviation**2
        # A bound on the tail of a noncentral χ²: Birgé (2001), lemma 8.1.
        logarithm = -math.log(CHANCE / _TESTS)
        if total > dimension + moved + 2 * math.sqrt((dimension + 2 * moved) * logarithm) + 2 * logarithm:
            far = math.sqrt(max(0.0, total - dimension)) * self.deviation / self.clients
            return f"each moves a release {far:.3g} times as far as clip_norm allows"
        return ""

    def less_noise(self, draws: Draws) -> str:
        """Returns that a cohort's draws have too little noise, in all or along its updates; or an empty text."""
        for name, squares, count in (
            ("the noise", draws.scatter, self.probe.dimension * (self.times - 1)),
            ("the noise along their updates", draws.spread, self.times - 1),
        ):
            if stats.chi2.cdf(squares / self.noise.first**2, count) < CHANCE / _TESTS:
                ratio = math.sqrt(max(0.0, squares) / count) / self.noise.first
                return f"{name} is {ratio:.3g} times as large as claimed"
        return ""

    def in_one_place(self) -> str:
        """Returns that an update that is large in one place alone is not clipped, for as many places as there is time.

        Each client of a cohort has another place: a norm that leaves one out is seen in a single round.
        """
        limit = self.clients + deviations_of(self.probe.dimension * self.most) * self.noise.first
        for cohort in self.updates.single(self.most, self.clients):
            seen = self.probe.allowed(self.probe.subject.start(), cohort)
            if seen is not None and not np.all(np.abs(seen.sums) <= limit):
                place = int(np.argmax(np.nan_to_num(np.abs(seen.sums), nan=np.inf)))
                return f"A client that sends 3e+38 in place {place} alone is not clipped."
        return ""

    def odd_one(self) -> str:
        """Returns what is wrong if one client among ordinary ones sends something odd; an empty text if nothing is.

        It moves a release as far as among equals, since a sum is made of what single clients send.
        """
        half = self.updates.half
        ordinary = [self.updates.long if half is None else half] * (self.clients - 1)
        without = self.draws([*ordinary, self.updates.zeros]).along
        for name, odd in self.updates.odd.items():
            equals = self.allowed([odd] * self.clients)
            for place, cohort in (("first", [odd, *ordinary]), ("last", [*ordinary, odd])):
                draws = self.allowed(cohort)
                if draws is None or equals is None:
                    continue
                moved, alone = draws.along - without, equals.along / self.clients
                if not abs(moved - alone) <= self.threshold * math.sqrt(3) * self.deviation:
                    who = f"A client that sends {name}, {place} of {self.clients}"
                    return f"{who}, moves a release by {moved:.3g} clip norms, and among equals by {alone:.3g}."
        return ""

    def in_later_rounds(self) -> str:
        """Returns that an update is released in other rounds than its own, or that a later one is not clipped."""
        rounds, probe = self.noise.rounds, self.probe
        long, lengths = [self.updates.long] * self.clients, np.zeros(rounds)
        # Half of the clients are away in every second round.
        quiet = [probe.quiet, probe.quiet[: (self.clients + 1) // 2]]
        for _ in range(self.times):
            state = probe.subject.start()
            for done in range(rounds):
                seen = probe.allowed(state, long if done in (0, rounds - 1) else quiet[done % 2])
                if seen is not None:
                    state = seen.state
                    lengths[done] += float(seen.sums @ self.updates.direction) / self.times
        stddevs = np.linalg.norm(np.linalg.inv(self.noise.encoder), axis=1) * probe.claim.noise_multiplier
        chance = self.threshold * stddevs / math.sqrt(self.times)
        for done in range(1, rounds):
            allowed = self.clients if done == rounds - 1 else 0
            if not abs(lengths[done]) <= allowed + chance[done]:
                sent = "clients send long updates" if allowed else "clients send zero, after long updates in round 1"
                return f"In round {done + 1}, {sent}, and it is moved by {lengths[done]:.3g} clip norms."
        return ""

    def divisor(self) -> Outcome:
        """Judges whether twice as many clients move a release twice as far, and idle ones change nothing."""
        if lost := self.lost("divisor"):
            return lost
        sent, zeros, count = self.updates.long, self.updates.zeros, self.clients
        if (half := self.updates.half) is not None:
            short = self.draws([half] * count).along / count
            if short < 0.5 - self.threshold * self.deviation / count:
                text = f"Updates of half a clip norm move a release by {short:.3g} each: it is not of their sum."
                return Outcome(law="divisor", status=FAILED, text=text)
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
                return Outcome(law="divisor", status=FAILED, text=text)
        for name, cohort in (("nobody", []), ("one client", [zeros])):
            if (draws := self.allowed(cohort)) is not None:
                cohorts[name] = draws
        for name, draws in cohorts.items():
            fault = self.less_noise(draws) or ("" if np.all(np.isfinite(draws.mean)) else "a release is not finite")
            if fault:
                return Outcome(law="divisor", status=FAILED, text=f"{name}: {fault}.")
        least = (self.threshold + POWER) * math.sqrt(5) * self.deviation / (count * self.updates.cosine)
        return Outcome(law="divisor", status=PASSED, finds=f"a divisor that changes by {least:.0%}")

    def low_bits(self) -> Outcome:
        """Judges whether numbers near 0, which clients have moved there, have the last bits of numbers that they left.

        A float near 0 has finer last bits than the noise that an update was added to. On a grid, all are whole
        multiples of g, as far as the released type can tell.
        """
        moved, still = self.of_clipped.estimates, self.draws(self.probe.quiet).estimates
        if self.probe.claim.grid is not None:
            return self._on_the_grid(self.probe.claim.grid, moved)
        if digits := _digits_of(np.concatenate(still), self.probe.claim.divisor):
            return Outcome(law="low_bits", status=FAILED, text=f"The noise has numbers of {digits} binary digits only.")
        scale = self.probe.claim.divisor
        size = np.abs(self.updates.direction) * self.clients * self.probe.claim.clip_norm
        halves = [
            np.sum([_coarse(estimate * scale, size) for estimate in estimates], axis=0) for estimates in (moved, still)
        ]
        shares = [coarse / max(1, count) for coarse, count in halves]
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
        return Outcome(law="low_bits", status=PASSED, finds="floats of this type that are added to floats")

    def _on_the_grid(self, grid: Grid, moved: list[np.ndarray]) -> Outcome:
        """Judges whether releases are whole multiples of g, and no coarser."""
        quotients = np.concatenate(moved).astype(np.float64) * self.probe.claim.divisor / self.probe.claim.clip_norm
        quotients *= 2**grid.bits
        # What rounding to the released type, and the division, leave of a whole number.
        resolution = float(np.finfo(moved[0].dtype).eps) if moved[0].dtype.kind == "f" else 0.0
        rounding = 4 * np.abs(quotients) * resolution + 1e-9
        told = quotients[rounding < 0.01]
        if len(told) < _FEWEST_NEAR_0:
            text = "The released type has too few bits to show whether numbers are on the grid."
            return Outcome(law="low_bits", status=NOT_JUDGED, text=text)
        if np.any(np.abs(told - np.rint(told)) > 0.01):
            text = f"Sums are no whole multiples of clip_norm / 2^{grid.bits}: they are not on the grid."
            return Outcome(law="low_bits", status=FAILED, text=text)
        if stats.binom.cdf(int(np.sum(np.rint(told) % 2 == 1)), len(told), 0.5) < CHANCE:
            return Outcome(law="low_bits", status=FAILED, text="Sums are multiples of more than clip_norm / 2^bits.")
        return Outcome(law="low_bits", status=PASSED, finds="sums or noise that are not on the grid")


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
