"""`check`: runs a subject on made-up updates, and judges it law by law.

Every statistical test has a false alarm below `CHANCE`, and there are fewer than ten. Noise of a round is compared with
its claim after whitening: row t of C·n / σ is standard normal, and independent of all other rows.
"""

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from tff_mf.base import validation
from tff_mf.conformance.claim import LAWS, BrokenError, Claim, NotJudgedError, Outcome, Subject, Verdict
from tff_mf.conformance.moves import Moves
from tff_mf.conformance.noise import Noise, processes
from tff_mf.conformance.rounds import Probe, Updates, leaves, unless_refused

# Numbers of the rounds that are run to reach the last one.
_MOST_LAST = 5e7


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
        like: A tree of arrays like a client's update: nested mappings, lists and tuples. Or an `Updates`, if what
            clients send is something else.
        clients: Clients that report in a round; some rounds have twice as many.
        elsewhere: "module:function" that returns subject, claim and `like`, for the law of two processes.
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
    clients = min(validation.whole("clients", clients), most)
    updates = like if isinstance(like, Updates) else Updates(like, claim.clip_norm, clients)
    probe = Probe(subject, claim, updates, clients)
    progress("scale")
    with np.errstate(over="ignore", invalid="ignore"):
        noise = Noise(probe, effort)
        moves = Moves(probe, noise, effort)
        judges: dict[str, Callable[[], str]] = {
            "scale": noise.scale,
            "correlation": noise.correlation,
            "fresh": functools.partial(noise.fresh, effort),
            "processes": functools.partial(processes, elsewhere),
            "bound": moves.bound,
            "divisor": moves.divisor,
            "beside": functools.partial(_beside, probe, noise.states),
            "last_round": functools.partial(_last_round, probe, noise),
            "low_bits": moves.low_bits,
        }
        outcomes = []
        for law in [law for law in LAWS if law in laws]:
            progress(law)
            outcomes.append(Outcome.of(law, judges[law], claim.not_promised))
    return Verdict(outcomes=tuple(outcomes))


def _beside(probe: Probe, states: tuple[Any, Any]) -> str:
    """Judges whether anything but the estimate changes with one client's update, or with its absence."""
    updates, cohort = probe.updates, probe.updates.cohort
    neighbours = {
        "is absent": cohort[1:],
        "that is last is absent": cohort[:-1],
        "sends zero": [updates.zeros, *cohort[1:]],
        "sends nothing": [[], *cohort[1:]],
        **{f"sends {what}": [update, *cohort[1:]] for what, update in updates.odd.items()},
    }

    def released(state: Any, cohort: list[Any]) -> dict[str, tuple[int, bytes]] | None:
        if (seen := unless_refused(probe.step, state, cohort)) is None:
            return None
        published = getattr(probe.subject, "published", None)
        state_leaves = {} if published is None else leaves(published(seen.state), "/published")
        return {path or "/": (leaf.size, leaf.tobytes()) for path, leaf in (seen.beside | state_leaves).items()}

    finds = ""
    # In the first round, and in the last of those that are measured.
    for state in states:
        first, second = released(state, cohort), released(state, cohort)
        if first is None or second is None:
            raise NotJudgedError("It refuses a round of ordinary updates.")
        random = {path for path, _ in first.items() ^ second.items()}
        covered = {path for path, (size, _) in first.items() if probe.claim.numbers_covered and size == 1}
        for what, neighbour in neighbours.items():
            if (other := released(state, neighbour)) is not None:
                changed = {path for path, _ in first.items() ^ other.items()}
                if exact := sorted(changed - random - covered):
                    raise BrokenError(f"{exact[0]} changes if one client {what}.")
        if left := sorted(random - covered):
            raise NotJudgedError(f"{left[0]} is random, and its noise is not known. Account for it: numbers_covered.")
        finds = "" if first else "nothing, since nothing else is released, by Released.beside"
    return finds


def _last_round(probe: Probe, noise: Noise) -> str:
    """Judges whether the round after the last one is refused."""
    rounds = probe.claim.rounds
    if rounds is None:
        raise NotJudgedError("The claim has no last round: pass rounds.")
    if rounds * probe.dimension > _MOST_LAST:
        raise NotJudgedError(f"{rounds} rounds would take long: check a subject of fewer rounds.")
    state = noise.last
    for _ in range(noise.rounds, rounds):
        state = probe.step(state, probe.quiet).state
    if unless_refused(probe.step, state, probe.quiet) is not None:
        raise BrokenError(f"Round {rounds + 1} ran, and the claim is for {rounds}.")
    return ""
