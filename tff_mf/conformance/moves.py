"""Laws of what clients do to a release: how far one moves it, what it is divided by, and its last bits."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats

from tff_mf.conformance.claim import CHANCE, FAILED, NOT_JUDGED, PASSED, POWER, Outcome
from tff_mf.conformance.noise import Noise, deviations_of
from tff_mf.conformance.probe import Probe, ReleaseError, rebuilt
from tff_mf.problem.grids import Grid

# Numbers that a round of hostile updates may draw.
_DRAWN, _MOST_DRAWS = 2e7, 256
# A client that moves a release this much further than allowed is found, if as many draws as are allowed suffice; a
# fault of this size, at least, or the law is not judged.
_FAULT, _LARGEST_FAULT = 1.25, 2.0
# Numbers that are kept as they were released; fewer near 0 do not show their last bits.
_KEPT, _FEWEST_NEAR_0 = 2e6, 120
_DIGITS_OF_FLOAT16 = 11
# Tests of one law.
_TESTS = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draws:
    """First releases of one cohort, each with fresh noise, in clip norms.

    Attributes:
        times: Their number m.
        mean: Their mean, `[dimension]`.
        scatter: Sum of the squared distances from the mean.
        spread: The same along the direction of the updates.
        estimates: Some of them as they were released.
    """

    times: int
    mean: np.ndarray
    scatter: float
    spread: float
    estimates: list[np.ndarray]


class Moves:
    """How far cohorts of equal clients move a first release, along the direction of their update and in all."""

    def __init__(self, probe: Probe, noise: Noise, effort: float) -> None:
        self.probe, self.noise, self.clients = probe, noise, probe.clients
        self.threshold = deviations_of(_TESTS)
        wanted = ((self.threshold + POWER) * noise.first / ((_FAULT - 1) * self.clients)) ** 2
        most = np.clip(_DRAWN / probe.dimension, 4, _MOST_DRAWS) * effort
        self.times = int(np.clip(math.ceil(wanted), 2, max(2, most)))
        # Of the mean of the draws, along any direction.
        self.deviation = noise.first / math.sqrt(self.times)
        self.fault = 1 + (self.threshold + POWER) * self.deviation / self.clients
        self.long = self.vector(1e3)

    def vector(self, length: float) -> np.ndarray:
        """Returns a vector of so many clip norms, as much in every tensor."""
        return self.probe.direction * (length * self.probe.claim.clip_norm)

    def draws(self, cohort: list[Any]) -> Draws:
        """Runs first rounds of a cohort."""
        mean, squares, lengths, estimates = np.zeros(self.probe.dimension), 0.0, [], []
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.times):
                seen = self.probe.step(self.probe.subject.start(), cohort)
                mean += seen.sums / self.times
                squares += float(seen.sums @ seen.sums)
                lengths.append(float(seen.sums @ self.probe.direction))
                if len(estimates) * self.probe.dimension < _KEPT:
                    estimates.append(seen.estimate)
            scatter, spread = squares - self.times * float(mean @ mean), self.times * float(np.var(lengths))
        return Draws(times=self.times, mean=mean, scatter=scatter, spread=spread, estimates=estimates)

    @functools.cached_property
    def of_clipped(self) -> Draws:
        """Rounds of clients with long updates."""
        return self.draws([self.probe.update(self.long)] * self.clients)

    def along(self, draws: Draws) -> float:
        """Returns how far a cohort moves the mean along the direction of its updates."""
        return float(draws.mean @ self.probe.direction)

    def hostile(self) -> Iterator[tuple[str, Any, bool]]:
        """Yields what a client may send, by name, and whether it lies along the direction."""
        probe, long = self.probe, self.long
        yield "an update of 1,000 clip norms", probe.update(long), True
        for length in (-1e3, 1.5, 1e6):
            yield f"an update of {length:g} clip norms", probe.update(self.vector(length)), True
        places = np.arange(probe.dimension)
        for value in (3e38, -3e38):
            yield f"{value:g} in every place", probe.update(np.full(probe.dimension, value)), False
        for place, value in ((0, 3e38), (probe.dimension // 2, -3e38), (probe.dimension - 1, 3e38)):
            yield f"{value:g} in place {place}", probe.update(np.where(places == place, value, 0.0)), False
        yield "float64 of 1e300", probe.update(np.full(probe.dimension, 1e300), np.float64), False
        yield "subnormal numbers", probe.update(np.full(probe.dimension, 1e-40)), True
        for value in (np.nan, np.inf, -np.inf):
            one = np.where(places == probe.dimension // 3, value, long)
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
            needed = math.ceil((self.threshold + POWER) * self.deviation / (_LARGEST_FAULT - 1))
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
            if fault := self.too_far(draws, is_along) or self.less_noise(draws):
                return Outcome(law="bound", status=FAILED, text=f"Of {self.clients} clients that send {name}, {fault}.")
        if refused and refused[0].startswith("an update"):
            return Outcome(law="bound", status=NOT_JUDGED, text=f"It refuses {refused[0]}.")
        if fault := self.odd_one() or self.in_later_rounds():
            return Outcome(law="bound", status=FAILED, text=fault)
        text = f"It refuses: {', '.join(refused)}." if refused else ""
        return Outcome(
            law="bound", status=PASSED, text=text, finds=f"a client that moves a release {self.fault:.2f} times as far"
        )

    def too_far(self, draws: Draws, is_along: bool) -> str:
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
        logarithm = -math.log(CHANCE / _TESTS)
        spread = 2 * math.sqrt((len(rest) + 2 * moved) * logarithm) + 2 * logarithm
        if total > len(rest) + moved + spread:
            far = math.sqrt(max(0.0, total - len(rest))) * self.deviation
            return f"they move a release by {far:.3g} clip norms in other directions than their update's"
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

    def odd_one(self) -> str:
        """Returns what is wrong if one client among ordinary ones sends something odd; an empty text if nothing is."""
        probe, ordinary = self.probe, [self.probe.update(self.vector(0.5))] * (self.clients - 1)
        without = self.draws([*ordinary, probe.zeros]).mean
        allowed = 1 + self.threshold * math.sqrt(2) * self.deviation
        for name, odd in (
            ("a long update", probe.update(self.long)),
            ("the opposite", probe.update(-self.long)),
            ("NaN", probe.update(np.full(probe.dimension, np.nan))),
        ):
            for cohort in ([odd, *ordinary], [*ordinary, odd]):
                try:
                    moved = float((self.draws(cohort).mean - without) @ probe.direction)
                except ReleaseError:
                    raise
                except Exception:
                    continue
                if not abs(moved) <= allowed:
                    place = "first" if cohort[0] is odd else "last"
                    who = f"A client that sends {name}, {place} of {self.clients}"
                    return f"{who}, moves a release by {moved:.3g} clip norms."
        return ""

    def in_later_rounds(self) -> str:
        """Returns that an update is released in other rounds than its own, or that a later one is not clipped."""
        rounds, probe = self.noise.rounds, self.probe
        long, lengths = [probe.update(self.long)] * self.clients, np.zeros(rounds)
        for _ in range(self.times):
            state = probe.subject.start()
            for done in range(rounds):
                seen = probe.step(state, long if done in (0, rounds - 1) else probe.quiet)
                state = seen.state
                lengths[done] += float(seen.sums @ probe.direction) / self.times
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
        cohorts = {f"{self.clients} clients": once, f"{2 * self.clients} clients": twice, "idle clients": idle}
        for name, cohort in (("nobody", []), ("one client", [self.probe.zeros])):
            try:
                cohorts[name] = self.draws(cohort)
            except ReleaseError:
                raise
            except Exception:
                continue
        for name, draws in cohorts.items():
            if fault := self.less_noise(draws) or (
                "" if np.all(np.isfinite(draws.mean)) else "a release is not finite"
            ):
                return Outcome(law="divisor", status=FAILED, text=f"With {name}, {fault}.")
        least = (self.threshold + POWER) * math.sqrt(5) * self.deviation / self.clients
        return Outcome(law="divisor", status=PASSED, finds=f"a divisor that changes by {least:.0%}")

    def low_bits(self) -> Outcome:
        """Judges whether numbers near 0, which clients have moved there, have the last bits of numbers that they left.

        A float near 0 has finer last bits than the noise that an update was added to. On a grid, all are whole
        multiples of g, as far as the released type can tell.
        """
        moved, still = self.of_clipped.estimates, self.draws(self.probe.quiet).estimates
        if self.probe.claim.grid is not None:
            return self._on_the_grid(self.probe.claim.grid, moved)
        scale = self.probe.claim.divisor
        size = np.abs(self.long) / np.linalg.norm(self.long) * self.clients * self.probe.claim.clip_norm
        halves = [
            np.sum([_coarse(estimate * scale, size) for estimate in estimates], axis=0) for estimates in (moved, still)
        ]
        shares = [coarse / max(1, count) for coarse, count in halves]
        digits = np.concatenate([np.frexp(estimate)[0] for estimate in still]) * 2.0**_DIGITS_OF_FLOAT16
        if np.array_equal(digits, np.rint(digits)):
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


def _coarse(values: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Returns how many numbers near 0 are multiples of half the last bit of a size, in their type; and how many are."""
    near = np.abs(values) < size / 8
    unit = np.exp2(np.floor(np.log2(size[near])) - np.finfo(values.dtype).nmant - 1.0)
    quotients = values[near].astype(np.float64) / unit
    return np.array([np.sum(quotients == np.rint(quotients)), np.sum(near)])
