"""`check`: runs a subject on made-up updates, and judges it law by law; and the `Verdict`."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from tff_mf.base import validation
from tff_mf.conformance.laws import beside, bound, correlation, divisor, fresh, last_round, low_bits, processes, scale
from tff_mf.conformance.trial import BrokenError, Claim, NotJudgedError, Subject, Trial, Updates

_JUDGES = (scale, correlation, fresh, processes, bound, divisor, beside, last_round, low_bits)
# What each law says.
LAWS: Mapping[str, str] = {judge.__name__: str(judge.__doc__).partition(".")[0] for judge in _JUDGES}


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

    def __bool__(self) -> bool:
        return self.status == "passed"

    def __str__(self) -> str:
        laws = [outcome.law for outcome in self.outcomes if outcome.status == self.status]
        return "\n".join([f"{self.status.upper()}: {', '.join(laws)}", *map(str, self.outcomes)])


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
    for law in (*laws, *claim.not_promised):
        validation.one_of("laws", law, tuple(LAWS))
    effort = validation.positive("effort", effort)
    clients = validation.whole("clients", clients)
    if claim.grid is not None:
        clients = min(clients, claim.grid.max_clients // 2)
    updates = like if isinstance(like, Updates) else Updates(like, claim.clip_norm, clients)
    outcomes = []
    with np.errstate(over="ignore", invalid="ignore"):
        trial = Trial(subject, claim, updates, clients, effort, elsewhere)
        for law, judge in [(judge.__name__, judge) for judge in _JUDGES if judge.__name__ in laws]:
            progress(law)
            try:
                status, text = "passed", judge(trial)
            except (BrokenError, NotJudgedError) as error:
                status, text = "not promised" if law in claim.not_promised else error.status, str(error)
            outcomes.append(Outcome(law=law, status=status, text=text))
    return Verdict(outcomes=tuple(outcomes))
