"""`check`: runs a subject on made-up updates, and judges it law by law.

Every statistical test has a false alarm below `CHANCE`, and there are fewer than ten. Noise of a round is compared with
its claim after whitening: row t of C·n / σ is standard normal, and independent of all other rows.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from tff_mf.base import validation
from tff_mf.conformance.claim import LAWS, BrokenError, Claim, NotJudgedError, Subject
from tff_mf.conformance.moves import Moves
from tff_mf.conformance.noise import correlation, fresh, processes, scale
from tff_mf.conformance.rounds import RefusedError, Trial, Updates, leaves

# Numbers of the rounds that are run to reach the last one.
_MOST_LAST = 5e7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a law was judged.

    Attributes:
        law: Name of the law.
        status: "passed", "failed", "not judged" or "not promised".
        text: The smallest fault that is found with probability 1 − 1e-6; or the evidence of one; or why it was not
            judged, and what would let it be judged.
    """

    law: str
    status: str
    text: str

    def __str__(self) -> str:
        return f"{self.status:12}  {self.law}: {LAWS[self.law]}" + (f"\n{'':14}{self.text}" if self.text else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What `check` found. It is true if every law was judged and is kept, or is not promised.

    Formal guarantee: a subject that keeps its claim has a failed law with probability below 1e-9. That all laws pass is
    no proof: a subject may do otherwise on other updates, or in later rounds.

    Attributes:
        outcomes: One for each law, in the order of `LAWS`.
    """

    outcomes: tuple[Outcome, ...]

    def __getitem__(self, law: str) -> Outcome:
        return {outcome.law: outcome for outcome in self.outcomes}[law]

    @property
    def status(self) -> str:
        """It is "failed" if a law is broken, or "not judged" if one could not be judged, or "passed"."""
        statuses = {outcome.status for outcome in self.outcomes}
        return next((status for status in ("failed", "not judged") if status in statuses), "passed")

    @property
    def failed(self) -> bool:
        """Whether a law is broken that the subject claims to keep."""
        return self.status == "failed"

    def __bool__(self) -> bool:
        return self.status == "passed"

    def as_dict(self) -> dict[str, Any]:
        """Returns the verdict as JSON."""
        return {"status": self.status, "laws": {outcome.law: dataclasses.asdict(outcome) for outcome in self.outcomes}}

    @property
    def headline(self) -> str:
        """The status, and the laws that it is due to."""
        laws = [outcome.law for outcome in self.outcomes if outcome.status == self.status]
        return self.status.upper() + ("" if self else f": {', '.join(laws)}")

    def __str__(self) -> str:
        return "\n".join([self.headline, *map(str, self.outcomes)])


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
        effort: Rounds that are run, relative to what usually shows small faults: `Outcome.text` says what is found.
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
    for law in laws:
        validation.one_of("laws", law, tuple(LAWS))
    effort = validation.positive("effort", effort)
    most = claim.grid.max_clients // 2 if claim.grid is not None else sys.maxsize
    clients = min(validation.whole("clients", clients), most)
    updates = like if isinstance(like, Updates) else Updates(like, claim.clip_norm, clients)
    progress("scale")
    outcomes = []
    with np.errstate(over="ignore", invalid="ignore"):
        trial = Trial(subject, claim, updates, clients, effort, elsewhere)
        moves = Moves(trial)
        of_trial = {judge.__name__: judge for judge in (scale, correlation, fresh, processes, beside, last_round)}
        of_moves = {judge.__name__: judge for judge in (moves.bound, moves.divisor, moves.low_bits)}
        for law in [law for law in LAWS if law in laws]:
            progress(law)
            try:
                status, text = "passed", of_moves[law]() if law in of_moves else of_trial[law](trial)
            except (BrokenError, NotJudgedError) as error:
                status, text = "not promised" if law in claim.not_promised else error.status, str(error)
            outcomes.append(Outcome(law=law, status=status, text=text))
    return Verdict(outcomes=tuple(outcomes))


def beside(trial: Trial) -> str:
    """Judges whether anything but the estimate changes with one client's update, or with its absence."""
    updates, cohort = trial.updates, trial.updates.cohort
    neighbours = {
        "is absent": cohort[1:],
        "that is last is absent": cohort[:-1],
        "sends zero": [updates.zeros, *cohort[1:]],
        "sends nothing": [[], *cohort[1:]],
        **{f"sends {what}": [update, *cohort[1:]] for what, update in updates.odd.items()},
    }
    first, published = {}, getattr(trial.subject, "published", lambda state: ())

    def released(state: Any, cohort: list[Any]) -> dict[str, tuple[int, bytes]]:
        seen = trial.step(state, cohort)
        found = seen.beside | leaves(published(seen.state), "/published")
        return {path or "/": (leaf.size, leaf.tobytes()) for path, leaf in found.items()}

    # In the first round, and in the last of those that are measured.
    for state in trial.states:
        first, second = released(state, cohort), released(state, cohort)
        random = {path for path, _ in first.items() ^ second.items()}
        covered = {path for path, (size, _) in first.items() if trial.claim.numbers_covered and size == 1}
        for what, neighbour in neighbours.items():
            with contextlib.suppress(RefusedError):
                changed = {path for path, _ in first.items() ^ released(state, neighbour).items()}
                if exact := sorted(changed - random - covered):
                    raise BrokenError(f"{exact[0]} changes if one client {what}.")
        if left := sorted(random - covered):
            raise NotJudgedError(f"{left[0]} is random, and its noise is not known. Account for it: numbers_covered.")
    return "" if first else "Finds nothing, since nothing else is released, by Released.beside."


def last_round(trial: Trial) -> str:
    """Judges whether the round after the last one is refused."""
    rounds, state = trial.claim.rounds, trial.last
    if rounds is None:
        raise NotJudgedError("The claim has no last round: pass rounds.")
    if rounds * trial.updates.dimension > _MOST_LAST:
        raise NotJudgedError(f"{rounds} rounds would take long: check a subject of fewer rounds.")
    for _ in range(trial.rounds, rounds):
        state = trial.step(state, trial.quiet).state
    with contextlib.suppress(RefusedError):
        trial.step(state, trial.quiet)
        raise BrokenError(f"Round {rounds + 1} ran, and the claim is for {rounds}.")
    return ""
