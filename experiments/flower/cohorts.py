"""Chooses the nodes of a round among those that are connected and that the participation schema allows."""

import dataclasses
import random
import secrets
from collections.abc import Callable, Sequence

from tff_mf import validation
from tff_mf.errors import InputValueError

from .. import sampling

# From a round, counted from 1, and the identities that may take part in it, to a cohort.
Draw = Callable[[int, Sequence[str]], Sequence[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """How long a round waits for nodes, and for their replies.

    Attributes:
        nodes_seconds: Time until enough allowed nodes are connected; after it the round begins with fewer.
        replies_seconds: Time until all replies have come; after it the round ends with fewer.
        poll_seconds: Time between two questions to the SuperLink.
        fewest: Fewest nodes with which a round begins; with fewer after `nodes_seconds`, the run stops, and can be
            resumed.

    Raises:
        InputTypeError: If a value is not a number.
        InputValueError: If one is out of range.
    """

    nodes_seconds: float = 600.0
    replies_seconds: float = 600.0
    poll_seconds: float = 1.0
    fewest: int = 1

    def __post_init__(self) -> None:
        validation.nonnegative("nodes_seconds", self.nodes_seconds)
        validation.positive("replies_seconds", self.replies_seconds)
        validation.positive("poll_seconds", self.poll_seconds)
        validation.whole("fewest", self.fewest, at_least=0)


def uniform(clients_per_round: int) -> Draw:
    """Returns a draw of so many nodes uniformly among those allowed, or of all of them if they are fewer.

    Example:
        >>> sorted(uniform(2)(1, ["ann", "bob"]))
        ['ann', 'bob']
    """
    number, generator = validation.whole("clients_per_round", clients_per_round), secrets.SystemRandom()

    def draw(round_number: int, allowed: Sequence[str]) -> list[str]:
        return generator.sample(list(allowed), min(number, len(allowed)))

    return draw


def planned(plan: sampling.CohortPlan) -> Draw:
    """Returns a draw of the nodes that a plan of `tff_mf.experiments.sampling` has for the round.

    Nodes of the plan that are not connected, or not allowed, are left out: the cohort is smaller then.

    Args:
        plan: Cohorts of identities: those that `by_public_key` returns, for example.

    Example:
        >>> plan = sampling.plan_cohorts(client_ids=["ann", "bob"], clients_per_round=1, rounds=2, seed=0,
        ...                              participation=__import__("tff_mf").SingleParticipation())
        >>> len(planned(plan)(1, ["ann", "bob"]))
        1
    """
    validation.instance("plan", plan, sampling.CohortPlan, "make one with sampling.plan_cohorts")

    def draw(round_number: int, allowed: Sequence[str]) -> list[str]:
        present = set(allowed)
        return [client for client in plan.cohort(round_number - 1) if client in present]

    return draw


def repeatable(clients_per_round: int, seed: int) -> Draw:
    """Returns a draw as `uniform`, repeatable from a seed: for comparisons of runs.

    Example:
        >>> repeatable(1, 7)(1, ["ann", "bob"]) == repeatable(1, 7)(1, ["ann", "bob"])
        True
    """
    number = validation.whole("clients_per_round", clients_per_round)

    def draw(round_number: int, allowed: Sequence[str]) -> list[str]:
        return random.Random(f"{seed} {round_number}").sample(sorted(allowed), min(number, len(allowed)))

    return draw


def check_drawn(cohort: Sequence[str], allowed: Sequence[str], clients_per_round: int) -> None:
    """Raises unless a drawn cohort has distinct allowed nodes, and not more than planned.

    Raises:
        InputValueError: If it has others.
    """
    if len(cohort) > clients_per_round or len(set(cohort)) < len(cohort) or set(cohort) - set(allowed):
        raise InputValueError(
            f"draw returned {len(cohort)} nodes, {len(set(cohort))} of them different and "
            f"{len(set(cohort) & set(allowed))} allowed: it must return at most {clients_per_round} allowed ones."
        )
