"""The laws, each a function of a `Trial` that returns the smallest fault that it finds, or raises the evidence of one.

Every statistical test has a false alarm below `CHANCE`, and there are fewer than ten. Noise of a round is compared with
its claim after whitening: row t of C·noise / σ is standard normal, and independent of all other rows.
"""

import concurrent.futures
import contextlib
import itertools
import math
import multiprocessing
from typing import Any

import numpy as np
from scipy import fft, stats

from tff_mf.conformance.trial import CHANCE, BrokenError, NotJudgedError, RefusedError, Trial, deviations_of, leaves

# Numbers that starts may draw to find a short seed, and how many starts there are at most.
_DRAWN, _MOST_SEEDS = 2e8, 1500
# Rows that are compared at all shifts, and coordinates that are compared pair by pair.
_SHIFTED, _PAIRED = 20, 256
# Relative differences within which two draws are the same.
_SAME = 1e-3
# Numbers in the tail that is judged; and the share of different ones among many.
_BEYOND, _DISTINCT = 40, 0.5
# Numbers of the rounds that are run to reach the last one.
_MOST_LAST = 5e7
# Fewer numbers do not show their last bits, and more are not needed.
_FEWEST, _ENOUGH = 120, 1_000_000


def scale(trial: Trial) -> str:
    """The noise has the claimed scale, in every tensor and round."""
    sizes = np.array([size for size in trial.updates.sizes if size])
    starts, begins, squares = len(trial.whitened), np.cumsum(sizes) - sizes, np.square(trial.whitened)
    sums = np.add.reduceat(trial.whitened, begins, axis=2, dtype=np.float64)
    # Sums of squares by rounds, and of how many numbers each is.
    tables = {
        "tensor": (np.add.reduceat(squares, begins, axis=2, dtype=np.float64).sum(0), starts * sizes),
        "the sum of tensor": (np.square(sums).sum(0) / sizes, starts),
        "number": (squares.sum((0, 1), dtype=np.float64)[None], starts * trial.rounds),
    }
    tests = sum(totals.size for totals, _ in tables.values())
    for name, (totals, counts) in tables.items():
        counts = _with_sums(np.broadcast_to(counts, totals.shape))
        ratios = _with_sums(totals) / counts
        tails = np.minimum(stats.chi2.cdf(ratios * counts, counts), stats.chi2.sf(ratios * counts, counts))
        if not tails.min() >= CHANCE / 8 / tests:
            row, column = np.unravel_index(np.argmin(tails), tails.shape)
            text = f"{math.sqrt(ratios[row, column]):.3g} times the claimed deviation, where 0 stands for all"
            raise BrokenError(f"Whitened, the noise of {name} {column} in round {row} has {text}.")
    numbers = starts * trial.rounds * np.array([sizes.sum(), sizes.min()])
    least = deviations_of(4 * tests - 4 * trial.updates.dimension, missed=1e-6) / np.sqrt(2 * numbers)
    return f"Finds a scale that is off by {least[0]:.1%}, or by {least[1]:.1%} in the smallest tensor."


def _with_sums(table: np.ndarray) -> np.ndarray:
    """Returns a table with its sums in row and column 0, which add fewer than three times as many numbers."""
    return np.block([[table.sum(), table.sum(0)], [table.sum(1, keepdims=True), table]])


def correlation(trial: Trial) -> str:
    """Whitened by the claimed C, the noise is normal and uncorrelated, in rounds and in numbers."""
    rounds = trial.whitened.transpose(1, 0, 2).reshape(trial.rounds, -1)
    # The first coordinates of all tensors, then their second ones, and so on.
    paired = np.argsort(np.concatenate([np.arange(size) for size in trial.updates.sizes]), kind="stable")
    numbers = trial.whitened[..., paired[:_PAIRED]].reshape(rounds.size // len(paired), -1).T
    for name, vectors in (("Rounds", rounds), ("Numbers", numbers)):
        if not (largest := np.abs(_correlations(vectors)).max()) <= _by_chance(vectors.shape[1], len(vectors) ** 2):
            raise BrokenError(f"{name} are correlated by {largest:.3g}: C, or the noise, is another one.")
    correlations, deviations = _correlations(rounds), deviations_of(trial.rounds)
    for lag in range(1, trial.rounds):
        count = (trial.rounds - lag) * rounds.shape[1]
        # The second term is for products of normal numbers, whose tails are longer.
        bound = deviations / math.sqrt(count) + 2 * deviations**2 / count
        if abs(mean := np.mean(np.diagonal(correlations, -lag))) > bound:
            raise BrokenError(f"Rounds with a distance of {lag} are correlated by {mean:.3g}: C is another one.")
    size = trial.whitened.size
    # The law of a number, by its characteristic function; with the deviation of a cosine.
    for order, deviation in ((1.0, 0.44698), (2.0, 0.69416)):
        off = float(np.mean(np.cos(np.float32(order) * trial.whitened), dtype=np.float64)) - math.exp(-(order**2) / 2)
        if abs(off) > deviations_of(2) * deviation / math.sqrt(size):
            raise BrokenError(f"The noise is not normal: its characteristic function is off by {off:.2g}.")
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
    _check_shifts(rounds[:_SHIFTED], "Rounds, or coordinates, at some shift, have correlated noise, or the same.")
    least = deviations_of(trial.rounds, missed=1e-6) / math.sqrt(max(1, trial.rounds - 1) * rounds.shape[1])
    return f"Finds neighbouring rounds that are correlated by {least:.2g}."


def fresh(trial: Trial) -> str:
    """A state stepped twice, and two starts, draw other noise."""
    dimension = trial.updates.dimension
    many, rows = math.ceil(8 / dimension), []
    for state in trial.states:
        draws = np.stack([trial.step(state, trial.quiet).sums for _ in range(many + 1)])
        if np.allclose(draws[1:], draws[:-1], _SAME, 0):
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


def processes(trial: Trial) -> str:
    """Two processes that start at the same time draw other noise."""
    if trial.elsewhere is None:
        raise NotJudgedError('Two processes need elsewhere="module:function", which returns subject, claim and like.')
    spawn, pool = multiprocessing.get_context("spawn"), concurrent.futures.ProcessPoolExecutor
    with pool(1, spawn) as one, pool(1, spawn) as other:
        first, second = [process.submit(Trial.noise_of, trial.elsewhere) for process in (one, other)]
        if np.allclose(first.result(), second.result(), _SAME, 0):
            raise BrokenError("They draw the same noise.")
    return ""


def bound(trial: Trial) -> str:
    """Hostile updates move a release by at most clip_norm / divisor for each client."""
    count, updates, refused = trial.clients, trial.updates, []
    for name, update in itertools.chain(updates.odd.items(), updates.hostile()):
        try:
            trial.contribution(update, name)
        except RefusedError:
            refused.append(name)
    trial.check_seen()
    # An update that is large in one place alone: each client has another one, so that many are seen.
    limit = count + deviations_of(updates.dimension * trial.most) * trial.stddevs[0]
    for cohort in updates.single(trial.most, count):
        with contextlib.suppress(RefusedError):
            if not np.all(np.abs(trial.run(cohort)[0].sums) <= limit):
                raise BrokenError(f"A client that sends {updates.huge:g} in one place alone is not clipped.")
    # Fewer than half are odd: an ordinary client is in the middle.
    few = max(1, (count - 1) // 2)
    for name, update in updates.odd.items():
        groups = (few, update), (count - few, updates.half)
        for place, order in (("before", groups), ("after", groups[::-1])):
            with contextlib.suppress(RefusedError):
                trial.check_sum(f"{few} clients {place} others who send {name}", *order)
    long, quiet, half = [updates.long] * count, trial.quiet, trial.quiet[count // 2 :]
    for who, history in (
        ("half of the clients away, or all quiet, between long updates", [long, half, long, quiet, half, quiet, half]),
        ("long updates in all rounds but the third", [long, long, quiet, long, long, long, long]),
    ):
        with contextlib.suppress(RefusedError):
            trial.check(who, *history[: trial.rounds - 1], long)
    return f"Finds a client that moves a release {trial.fault:.2f} times as far. Refused: {', '.join(refused) or '–'}."


def divisor(trial: Trial) -> str:
    """Neither the divisor nor the noise follows the number of clients."""
    updates, zeros, count = trial.updates, trial.updates.zeros, trial.clients
    trial.check_seen()
    by_half = trial.contribution(updates.half)
    if count * (0.5 - by_half) > deviations_of() * trial.deviations[0]:
        raise BrokenError(f"Updates of half a clip norm move a release by {by_half:.3g}: it is not their sum.")
    # Some subjects leave long updates out.
    sent = updates.long if trial.contribution(updates.long) > 0.5 else updates.half
    trial.check_sum("twice as many clients", (2 * count, sent))
    trial.check_sum("as many idle clients beside others", (count, sent), (count, zeros))
    trial.check_sum("half as many idle clients beside others", (count, sent), (count // 2, zeros))
    for who, cohort in (("nobody", []), ("one client that sends zero", [zeros])):
        with contextlib.suppress(RefusedError):
            trial.check(who, cohort)
    least = deviations_of(missed=1e-6) * math.sqrt(5) * trial.deviations[0] / (count * updates.cosine)
    return f"Finds a divisor that changes by {least:.0%}."


def low_bits(trial: Trial) -> str:
    """The last bits of what is released do not give a client away.

    A float near 0 has finer last bits than the larger numbers that it is the sum of, or than a type of fewer digits. On
    a grid, all are whole multiples of g, as far as the released type can tell, and no coarser.
    """
    claim, updates = trial.claim, trial.updates
    draws = min(trial.times, math.ceil(_ENOUGH / updates.dimension))
    cohorts = [updates.long] * trial.clients, trial.quiet
    moved, still = (np.stack([trial.run(cohort)[0].estimate for _ in range(draws)]) for cohort in cohorts)
    resolution = float(np.finfo(still.dtype).eps) if still.dtype.kind == "f" else 0.0
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
    for released, what in ((still, "the noise has fewer digits"), (moved, "clients moved them, and one release tells")):
        values = released.astype(np.float64) * claim.divisor
        size = np.broadcast_to(np.abs(updates.direction) * trial.clients * claim.clip_norm, values.shape)
        near = np.abs(values) < size / 8
        if np.sum(near) < _FEWEST:
            raise NotJudgedError("Too few numbers are near 0: pass more clients, or a smaller noise_multiplier.")
        # In units of half the last bit of a number of that size, which the division moves by at most an eighth.
        units = values[near] / (np.exp2(np.floor(np.log2(size[near]))) * resolution / 2)
        if (zeros := np.mean(np.abs(units - np.rint(units)) <= 1 / 8)) > 0.7:
            raise BrokenError(f"Of numbers near 0, {zeros:.0%} end in zeros: {what}.")
    return "Finds floats of this type that are added to floats."


def beside(trial: Trial) -> str:
    """Nothing else that leaves the server depends on a client."""
    cohort, published = trial.updates.cohort, getattr(trial.subject, "published", lambda state: ())
    others = {"zero": trial.updates.zeros, "nothing": [], **trial.updates.odd}
    neighbours = {f"sends {what}": [update, *cohort[1:]] for what, update in others.items()}
    neighbours |= {"is absent": cohort[1:], "that is last is absent": cohort[:-1]}

    def exact(state: Any, cohort: list[Any]) -> dict[str, bytes]:
        seen = trial.step(state, cohort)
        found = leaves(seen.beside) | leaves(published(seen.state), "/published")
        covered = 1 if trial.claim.numbers_covered else -1
        return {path or "/": leaf.tobytes() for path, leaf in found.items() if leaf.size != covered}

    first = {}
    # In the first round, and in the last of those that are measured.
    for state in trial.states:
        first, second = exact(state, cohort), exact(state, cohort)
        random = {path for path, _ in first.items() ^ second.items()}
        for what, neighbour in neighbours.items():
            with contextlib.suppress(RefusedError):
                changed = {path for path, _ in first.items() ^ exact(state, neighbour).items()}
                if changed - random:
                    raise BrokenError(f"{min(changed - random)} changes if one client {what}.")
        if random:
            raise NotJudgedError(f"{min(random)} is random, with unknown noise. Account for it: numbers_covered.")
    return "" if first else "Finds nothing, since nothing else is released, by Released.beside."


def last_round(trial: Trial) -> str:
    """The round after the last one is refused."""
    rounds, state = trial.claim.rounds, trial.last
    if rounds is None or rounds * trial.updates.dimension > _MOST_LAST:
        raise NotJudgedError(f"{rounds=} has no last round, or would take long: check a subject of fewer rounds.")
    for _ in range(trial.rounds, rounds):
        state = trial.step(state, trial.quiet).state
    with contextlib.suppress(RefusedError):
        trial.step(state, trial.quiet)
        raise BrokenError(f"Round {rounds + 1} ran, and the claim is for {rounds}.")
    return ""
