"""Laws of what clients do to a release: how far they move it, whether it is of their sum, and its last bits."""

import collections
import contextlib
import math
from typing import Any

import numpy as np
from scipy import stats

from tff_mf.conformance.claim import CHANCE, POWER, BrokenError, NotJudgedError, deviations_of
from tff_mf.conformance.rounds import RefusedError, Trial

# Numbers that the runs of a history may draw, and how many runs there are at most.
_DRAWN, _MOST_DRAWS = 2e7, 256
# A client that moves a release this much further than allowed is found, if as many draws as are allowed suffice; a
# fault of this size, at least, or the law is not judged.
_FAULT, _LARGEST_FAULT = 1.25, 2.0
# Fewer numbers do not show their last bits, and more are not needed.
_FEWEST, _ENOUGH = 120, 1_000_000
# Digits of float16, and of float32 in float64.
_FEWER_DIGITS = {np.dtype(np.float32): 11, np.dtype(np.float64): 24}
# Tests of one law, what a normal number exceeds in none of them, and rounds of a history.
_TESTS, _THRESHOLD, _ROUNDS = 256, deviations_of(256), 8


class Moves:
    """How far cohorts move a release, along the direction of their updates and in all."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.updates, self.clients = trial, trial.updates, trial.clients
        least = (_THRESHOLD + POWER) * float(trial.stddevs[0]) / (self.clients * self.updates.cosine)
        self.most = max(2, int(np.clip(_DRAWN / self.updates.dimension, 4, _MOST_DRAWS) * trial.effort))
        self.times = int(np.clip(math.ceil((least / (_FAULT - 1)) ** 2), 2, self.most))
        # Of the means of releases, along any direction.
        self.deviations = trial.stddevs / math.sqrt(self.times)
        self.fault = 1 + least / math.sqrt(self.times)
        self._contributions = {id(self.updates.zeros): 0.0}

    def draws(self, *history: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Runs a history of cohorts many times.

        Returns:
            The last releases, `[times, dimension]`, and how far all are moved along the direction, `[times, rounds]`.
        """
        released, along = [], []
        for _ in range(self.times):
            rounds = self.trial.run(*history)
            released.append(rounds[-1].estimate)
            along.append([float(seen.sums @ self.updates.direction) for seen in rounds])
        return np.stack(released), np.array(along)

    def contribution(self, update: Any) -> float:
        """Returns how far a client moves a first release along the direction, among equals, by one of `updates`."""
        if id(update) not in self._contributions:
            self._contributions[id(update)] = float(np.mean(self.draws([update] * self.clients)[1])) / self.clients
        return self._contributions[id(update)]

    def check(self, who: str, *history: list[Any]) -> bool:
        """Checks how far clients move releases, and that there is no less noise; returns whether no round is refused.

        Different clients of a first round move it as far as among equals. Otherwise a client moves the release of its
        round alone, by at most 1, and a client that sends zero by nothing.
        """
        cohort, zeros = history[0], self.updates.zeros
        senders = collections.Counter(id(sent) for sent in cohort if sent is not zeros)
        are_equal = len(senders) == 1 and len(cohort) == self.clients
        is_mixed = len(history) == 1 and bool(senders) and not are_equal
        try:
            released, along = self.draws(*history)
            expected = sum(map(self.contribution, cohort)) if is_mixed else 0.0
        except RefusedError:
            return False
        mean = released.mean(0, dtype=np.float64)
        if not np.all(np.isfinite(mean)):
            raise BrokenError(f"With {who}, the release is not finite.")
        if is_mixed:
            moved, others = float(np.mean(along)), sum((number / self.clients) ** 2 for number in senders.values())
            if not abs(moved - expected) <= _THRESHOLD * math.sqrt(1 + others) * self.deviations[0]:
                text = f"With {who}, a release is moved by {moved:.3g} clip norms, and among equals they move it by"
                raise BrokenError(f"{text} {expected:.3g}: what a client adds, or the divisor, follows who reports.")
        else:
            clients = np.array([sum(sent is not zeros for sent in cohort) for cohort in history], float)
            self.check_lengths(who, clients, along.mean(0), mean * self.trial.factor)
        squares = np.einsum("ij,ij->", released, released, dtype=np.float64) - self.times * float(mean @ mean)
        variance = self.trial.stddevs[len(history) - 1] ** 2
        for name, scatter, count in (
            ("the noise", squares * self.trial.factor**2, released.shape[1] * (self.times - 1)),
            ("the noise along their updates", self.times * np.var(along[:, -1]), self.times - 1),
        ):
            if stats.chi2.cdf(scatter / variance, count) < CHANCE / _TESTS:
                ratio = math.sqrt(max(0.0, float(scatter)) / count / variance)
                raise BrokenError(f"With {who}, {name} is {ratio:.3g} times as large as claimed.")
        return True

    def check_lengths(self, who: str, clients: np.ndarray, along: np.ndarray, mean: np.ndarray) -> None:
        """Checks that so many clients of each round move its release by no more, and the last one in any direction."""
        deviations = self.deviations[: len(clients)]
        limits, lengths, last = clients + _THRESHOLD * deviations, np.abs(along), deviations[-1]
        # |m + noise|² = |m|² + 2·m·noise + |noise|², for a release that clients move by m.
        longest = clients[-1] ** 2 + 2 * clients[-1] * _THRESHOLD * last
        longest += last**2 * stats.chi2.isf(CHANCE / 4 / _TESTS, len(mean))
        if (excess := float(mean @ mean) - longest) > 0:
            lengths[-1] = max(lengths[-1], math.sqrt(limits[-1] ** 2 + excess))
        if np.any(lengths > limits):
            done = int(np.argmax(lengths - limits))
            text = f"With {who}, the release of round {done + 1} is moved by {lengths[done]:.3g} clip norms, and may be"
            raise BrokenError(f"{text} by {clients[done]:.0f}.")

    def check_seen(self) -> None:
        """Checks that clients can be seen in the noise."""
        if self.updates.lacking:
            raise NotJudgedError(self.updates.lacking)
        if self.fault > _LARGEST_FAULT:
            needed = math.ceil(self.clients * (self.fault - 1) / (_LARGEST_FAULT - 1))
            smaller = self.trial.claim.noise_multiplier * self.clients / needed
            text = f"Noise hides a client: pass clients={needed}, or check with noise_multiplier={smaller:.3g}."
            raise NotJudgedError(text)

    def bound(self) -> str:
        """Judges how far clients move a release: equals, for everything that one may send, odd ones, and later ones."""
        count, trial, updates = self.clients, self.trial, self.updates
        refused = [
            name
            for name, update in updates.hostile()
            if not self.check(f"{count} clients that send {name}", [update] * count)
        ]
        self.check_seen()
        self.contribution(updates.long)
        # An update that is large in one place alone: each client has another one, so that many are seen.
        limit = count + deviations_of(updates.dimension * self.most) * trial.stddevs[0]
        for cohort in updates.single(self.most, count):
            with contextlib.suppress(RefusedError):
                if not np.all(np.abs(trial.run(cohort)[0].sums) <= limit):
                    raise BrokenError("A client that sends 3e+38 in one place alone is not clipped.")
        # Fewer than half are odd: an ordinary client is in the middle.
        odd_ones = max(1, (count - 1) // 2)
        ordinary = [updates.long if updates.half is None else updates.half] * (count - odd_ones)
        for name, update in updates.odd.items():
            self.check(f"{odd_ones} clients before others who send {name}", [*[update] * odd_ones, *ordinary])
            self.check(f"{odd_ones} clients after others who send {name}", [*ordinary, *[update] * odd_ones])
        # Half of the clients, or all, are away in between.
        long, away, quiet = [updates.long] * count, trial.quiet[count // 2 :], trial.quiet
        for who, history in (
            ("long updates in the first and the last round, and half of the clients away", [long, *[away, quiet] * 4]),
            ("long updates in the first and the last round", [long, *[quiet] * 8]),
            ("long updates in every round", [long] * 8),
        ):
            self.check(who, *history[: min(trial.rounds, _ROUNDS) - 1], long)
        unless = f", unless its update is refused: {', '.join(refused)}" if refused else ""
        return f"Finds a client that moves a release {self.fault:.2f} times as far{unless}."

    def divisor(self) -> str:
        """Judges whether twice as many clients move a release twice as far, and idle ones change nothing."""
        updates, zeros, count, sent = self.updates, self.updates.zeros, self.clients, self.updates.long
        self.check_seen()
        by_long = self.contribution(sent)
        if updates.half is not None:
            by_half = self.contribution(updates.half)
            if count * (0.5 - by_half) > _THRESHOLD * self.deviations[0]:
                raise BrokenError(f"Updates of half a clip norm move a release by {by_half:.3g}: it is not their sum.")
            # Some subjects leave long updates out.
            sent = sent if by_long > 0.5 else updates.half
        for who, cohort in (
            ("twice as many clients", [sent] * (2 * count)),
            ("as many idle clients beside others", [*[sent] * count, *[zeros] * count]),
            ("half as many idle clients beside others", [*[sent] * count, *[zeros] * (count // 2)]),
            ("nobody", []),
            ("one client that sends zero", [zeros]),
        ):
            if not self.check(who, cohort) and len(cohort) > 1:
                raise NotJudgedError(f"It refuses {who}: pass fewer clients.")
        least = (_THRESHOLD + POWER) * math.sqrt(5) * self.deviations[0] / (count * updates.cosine)
        return f"Finds a divisor that changes by {least:.0%}."

    def low_bits(self) -> str:
        """Judges whether numbers near 0, which clients have moved there, have the last bits of numbers that they left.

        A float near 0 has finer last bits than the noise that an update was added to. On a grid, all are whole
        multiples of g, as far as the released type can tell, and no coarser.
        """
        trial, claim, updates = self.trial, self.trial.claim, self.updates
        enough = math.ceil(_ENOUGH / updates.dimension)
        moved, still = (self.draws(cohort)[0][:enough] for cohort in ([updates.long] * trial.clients, trial.quiet))
        kind = still.dtype
        resolution = float(np.finfo(kind).eps) if kind.kind == "f" else 0.0
        if claim.grid is not None:
            units = moved.astype(np.float64) * trial.factor * 2**claim.grid.bits
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
            size = np.broadcast_to(np.abs(updates.direction) * trial.clients * claim.clip_norm, values.shape)
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
