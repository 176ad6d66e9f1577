"""Laws of what clients do to a release: how far they move it, whether it is of their sum, and its last bits."""

import contextlib
import math
from typing import Any

import numpy as np
from scipy import stats

from tff_mf.conformance.claim import CHANCE, POWER, BrokenError, NotJudgedError
from tff_mf.conformance.noise import Noise, deviations_of
from tff_mf.conformance.rounds import RefusedError

# Numbers that the runs of a history may draw, and how many runs there are at most.
_DRAWN, _MOST_DRAWS = 2e7, 256
# A client that moves a release this much further than allowed is found, if as many draws as are allowed suffice; a
# fault of this size, at least, or the law is not judged.
_FAULT, _LARGEST_FAULT = 1.25, 2.0
# Fewer numbers do not show their last bits.
_FEWEST = 120
# Digits of float16, and of float32 in float64.
_FEWER_DIGITS = {np.dtype(np.float32): 11, np.dtype(np.float64): 24}
# Tests of one law, and rounds of a history.
_TESTS, _ROUNDS = 256, 8


class Moves:
    """How far cohorts move a release, along the direction of their updates and in all."""

    def __init__(self, noise: Noise, effort: float) -> None:
        self.noise, self.probe, self.updates, self.clients = (
            noise,
            noise.probe,
            noise.probe.updates,
            noise.probe.clients,
        )
        self.threshold = deviations_of(_TESTS)
        least = (self.threshold + POWER) * float(noise.stddevs[0]) / (self.clients * self.updates.cosine)
        self.most = max(2, int(np.clip(_DRAWN / self.updates.dimension, 4, _MOST_DRAWS) * effort))
        self.times = int(np.clip(math.ceil((least / (_FAULT - 1)) ** 2), 2, self.most))
        # Of the means of releases, along any direction.
        self.deviations = noise.stddevs / math.sqrt(self.times)
        self.fault = 1 + least / math.sqrt(self.times)

    def draws(self, *history: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Runs a history of cohorts many times.

        Returns:
            The last releases, `[times, dimension]`, and how far all are moved along the direction, `[times, rounds]`.
        """
        released, along = [], []
        for _ in range(self.times):
            rounds = self.probe.run(*history)
            released.append(rounds[-1].estimate)
            along.append([float(seen.sums @ self.updates.direction) for seen in rounds])
        return np.stack(released), np.array(along)

    def check_seen(self) -> None:
        """Checks that clients can be seen in the noise."""
        if self.updates.lacking:
            raise NotJudgedError(self.updates.lacking)
        if self.fault > _LARGEST_FAULT:
            needed = math.ceil(self.clients * (self.fault - 1) / (_LARGEST_FAULT - 1))
            smaller = self.probe.claim.noise_multiplier * self.clients / needed
            text = f"Noise hides a client: pass clients={needed}, or check with noise_multiplier={smaller:.3g}."
            raise NotJudgedError(text)

    def check(self, who: str, *history: list[Any]) -> None:
        """Checks how far clients move releases, and that the noise is no smaller.

        A client moves the release of its round alone, by at most 1, and a client that sends zero by nothing.
        """
        released, along = self.draws(*history)
        mean, deviations = released.mean(0, dtype=np.float64) * self.probe.factor, self.deviations[: len(history)]
        if not np.all(np.isfinite(mean)):
            raise BrokenError(f"With {who}, the release is not finite.")
        clients = np.array([sum(sent is not self.updates.zeros for sent in cohort) for cohort in history], float)
        lengths, limits = np.abs(along.mean(0)), clients + self.threshold * deviations
        # |m + noise|² = |m|² + 2·m·noise + |noise|², for a release that clients move by m.
        along_it, squares = self.threshold * deviations[-1], stats.chi2.isf(CHANCE / 4 / _TESTS, len(mean))
        excess = float(mean @ mean) - clients[-1] ** 2 - 2 * clients[-1] * along_it - squares * deviations[-1] ** 2
        if excess > 0:
            lengths[-1] = max(lengths[-1], math.sqrt(limits[-1] ** 2 + excess))
        done = int(np.argmax(lengths - limits))
        if lengths[done] > limits[done]:
            text = f"With {who}, the release of round {done + 1} is moved by {lengths[done]:.3g} clip norms, and may be"
            raise BrokenError(f"{text} by {clients[done]:.0f}.")
        self.check_noise(who, released, along)

    def check_noise(self, who: str, released: np.ndarray, along: np.ndarray) -> None:
        """Checks that the last releases of a history have no less noise, in all or along the updates."""
        mean, variance = released.mean(0, dtype=np.float64), self.noise.stddevs[along.shape[1] - 1] ** 2
        squares = np.einsum("ij,ij->", released, released, dtype=np.float64) - self.times * float(mean @ mean)
        for name, scatter, count in (
            ("the noise", squares * self.probe.factor**2, released.shape[1] * (self.times - 1)),
            ("the noise along their updates", self.times * np.var(along[:, -1]), self.times - 1),
        ):
            if stats.chi2.cdf(scatter / variance, count) < CHANCE / _TESTS:
                ratio = math.sqrt(max(0.0, float(scatter)) / count / variance)
                raise BrokenError(f"With {who}, {name} is {ratio:.3g} times as large as claimed.")

    def moved(self, who: str, cohort: list[Any]) -> float:
        """Returns how far a cohort moves a first release along the direction, whose noise is no smaller."""
        released, along = self.draws(cohort)
        self.check_noise(who, released, along)
        return float(np.mean(along))

    def check_sum(self, who: str, cohort: list[Any]) -> None:
        """Checks that clients move a release as far as among equals."""
        updates = list({id(sent): sent for sent in cohort if sent is not self.updates.zeros}.values())
        portions = np.array([sum(sent is update for sent in cohort) for update in updates]) / self.clients
        moved = self.moved(who, cohort)
        expected = float(portions @ [self.moved(who, [update] * self.clients) for update in updates])
        deviation = math.sqrt(1 + float(portions @ portions)) * self.deviations[0]
        if not abs(moved - expected) <= self.threshold * deviation:
            text = f"With {who}, a release is moved by {moved:.3g} clip norms, and among equals they move it by"
            raise BrokenError(f"{text} {expected:.3g}: what a client adds, or the divisor, follows who reports.")

    def bound(self) -> str:
        """Judges how far clients move a release: equals, for everything that one may send, odd ones, and later ones."""
        count, probe, updates, refused = self.clients, self.probe, self.updates, []
        for name, update in updates.hostile():
            try:
                self.check(f"{count} clients that send {name}", [update] * count)
            except RefusedError:
                refused.append(name)
        self.check_seen()
        # An update that is large in one place alone: each client has another one, so that many are seen.
        limit = count + deviations_of(updates.dimension * self.most) * self.noise.stddevs[0]
        for cohort in updates.single(self.most, count):
            with contextlib.suppress(RefusedError):
                if not np.all(np.abs(probe.run(cohort)[0].sums) <= limit):
                    raise BrokenError("A client that sends 3e+38 in one place alone is not clipped.")
        # Fewer than half are odd: an ordinary client is in the middle.
        odd_ones = max(1, (count - 1) // 2)
        ordinary = [updates.long if updates.half is None else updates.half] * (count - odd_ones)
        for name, update in updates.odd.items():
            with contextlib.suppress(RefusedError):
                self.check_sum(f"{odd_ones} clients before others who send {name}", [*[update] * odd_ones, *ordinary])
                self.check_sum(f"{odd_ones} clients after others who send {name}", [*ordinary, *[update] * odd_ones])
        # Half of the clients, or all, are away in between.
        rounds, long, away, quiet = (
            min(self.noise.rounds, _ROUNDS),
            [updates.long] * count,
            probe.quiet[count // 2 :],
            probe.quiet,
        )
        for who, history in (
            ("long updates in the first and the last round, and half of the clients away", [long, *[away, quiet] * 4]),
            ("long updates in the first and the last round", [long, *[quiet] * 8]),
            ("long updates in every round", [long] * 8),
        ):
            with contextlib.suppress(RefusedError):
                self.check(who, *history[: min(self.noise.rounds, _ROUNDS) - 1], long)
        finds = f"Finds a client that moves a release {self.fault:.2f} times as far"
        return finds + (f", unless its update is refused: {', '.join(refused)}." if refused else ".")

    def divisor(self) -> str:
        """Judges whether twice as many clients move a release twice as far, and idle ones change nothing."""
        updates, zeros, count = self.updates, self.updates.zeros, self.clients
        self.check_seen()
        sent = [updates.long] * count
        moved = np.mean(self.draws(sent)[1])
        if updates.half is not None:
            halves = [updates.half] * count
            by_halves = np.mean(self.draws(halves)[1])
            if by_halves < 0.5 * count - self.threshold * self.deviations[0]:
                text = f"{count} updates of half a clip norm move a release by {by_halves:.3g}: it is not of their sum."
                raise BrokenError(text)
            # Some subjects leave long updates out.
            sent = sent if moved > count / 2 else halves
        for who, others in (
            ("twice as many clients", sent),
            ("as many idle clients beside others", [zeros] * count),
            ("half as many idle clients beside others", [zeros] * (count // 2)),
        ):
            self.check_sum(who, [*sent, *others])
        for who, cohort in (("nobody", []), ("one client that sends zero", [zeros])):
            with contextlib.suppress(RefusedError):
                self.check(who, cohort)
        least = (self.threshold + POWER) * math.sqrt(5) * self.deviations[0] / (count * updates.cosine)
        return f"Finds a divisor that changes by {least:.0%}."

    def low_bits(self) -> str:
        """Judges whether numbers near 0, which clients have moved there, have the last bits of numbers that they left.

        A float near 0 has finer last bits than the noise that an update was added to. On a grid, all are whole
        multiples of g, as far as the released type can tell, and no coarser.
        """
        claim, updates = self.probe.claim, self.updates
        moved, still = (self.draws(cohort)[0] for cohort in ([updates.long] * self.clients, self.probe.quiet))
        kind = still.dtype
        resolution = float(np.finfo(kind).eps) if kind.kind == "f" else 0.0
        if claim.grid is not None:
            units = moved.astype(np.float64) * self.probe.factor * 2**claim.grid.bits
            # What rounding to the released type, and the division, leave of a whole number.
            told = units[4 * np.abs(units) * resolution + 1e-9 < 0.01]
            if len(told) < _FEWEST:
                raise NotJudgedError("The released type has too few bits to show whether numbers are on the grid.")
            if np.any(np.abs(told - np.rint(told)) > 0.01):
                raise BrokenError(f"Sums are no whole multiples of clip_norm / 2^{claim.grid.bits}, of the grid.")
            if stats.binom.cdf(int(np.sum(np.rint(told) % 2 == 1)), len(told), 0.5) < CHANCE:
                raise BrokenError("Sums are multiples of more than clip_norm / 2^bits.")
            return "Finds sums or noise that are not on the grid."
        digits = _FEWER_DIGITS.get(kind, 0) if still.size > _FEWEST else 0
        parts = np.ldexp(np.frexp(still * kind.type(claim.divisor))[0], digits)
        # The division and the product round at most the last digits.
        if digits and np.all(np.abs(parts - np.rint(parts)) <= 4 * resolution * 2**digits):
            raise BrokenError(f"The noise has numbers of {digits} binary digits only.")
        shares = []
        for released in (moved, still):
            values = released * claim.divisor
            size = np.broadcast_to(np.abs(updates.direction) * self.clients * claim.clip_norm, values.shape)
            near = np.abs(values) < size / 8
            if np.sum(near) < _FEWEST:
                text = "Too few numbers are near 0: pass more clients, or check with a smaller noise_multiplier."
                raise NotJudgedError(text)
            # In units of half the last bit of a number of that size.
            units = values[near].astype(np.float64) / (np.exp2(np.floor(np.log2(size[near]))) * resolution / 2)
            shares.append(np.mean(units == np.rint(units)))
        if shares[0] - shares[1] > 0.5:
            text = f"Of numbers near 0, {shares[0]:.0%} end in zeros if clients moved them, and {shares[1]:.0%} if not"
            raise BrokenError(f"{text}: one release tells.")
        return "Finds floats of this type that are added to floats."
