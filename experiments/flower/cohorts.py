"""Who a node is, and the nodes of a round: those that are connected and that the schema allows."""

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from .. import sampling

# From the nodes that Flower's grid lists to the node id of each identity.
Identify = Callable[[Iterable[Any]], Mapping[str, int]]

# Flower's simulation registers nodes with so many random bytes; every key of a SuperNode is longer.
_SIMULATED_KEY_BYTES = 32


def by_public_key(nodes: Iterable[Any]) -> dict[str, int]:
    """Returns the node id of each node by the SHA-256 of its public key, with which Flower authenticates it.

    With `flower-superlink --enable-supernode-auth`, a node proves that it has the private key, and a node that is
    registered again with its key, or with a SuperLink whose database was lost, is the same node. Without it, a
    SuperNode makes a key when it starts: it then is another node after each restart.

    Args:
        nodes: What `grid.get_nodes()` returns.

    Raises:
        InputValueError: If a node has no key, or two nodes have one.
    """
    by_key: dict[str, int] = {}
    for node in nodes:
        if not node.public_key:
            raise InputValueError(
                f"node {node.node_id} has no public key: use a SuperLink, and a grid that lists keys."
            )
        name = "key-" + hashlib.sha256(node.public_key).hexdigest()
        if name in by_key:
            raise InputValueError(f"nodes {by_key[name]} and {node.node_id} have the public key {name}: register one.")
        by_key[name] = node.node_id
    return by_key


def by_partition(nodes: Iterable[Any]) -> dict[str, int]:
    """Returns the node id of each simulated node by its `partition-id`. SIMULATION ONLY.

    Flower's simulation registers its nodes in the order of their partitions, with keys that are random in each run.

    Args:
        nodes: What `grid.get_nodes()` returns.

    Raises:
        InputValueError: If a node is not simulated: the connected ones would be numbered anew whenever one comes or
            goes. If two nodes were registered in the same microsecond, so that their order is not known.
    """
    nodes = list(nodes)
    for node in nodes:
        if len(node.public_key) != _SIMULATED_KEY_BYTES:
            raise InputValueError(
                f"node {node.node_id} has a key of its own, and is not simulated: count its participation with "
                "identify=cohorts.by_public_key (in the app: simulation=false)."
            )
    ordered = sorted(nodes, key=lambda node: node.registered_at)
    times = [node.registered_at for node in ordered]
    if len(set(times)) < len(times):
        raise InputValueError("two simulated nodes were registered at one time, and their order is lost: run again.")
    return {f"partition-{index}": node.node_id for index, node in enumerate(ordered)}


# From a round, counted from 1, and the identities that may take part in it, to a cohort.
Draw = Callable[[int, Sequence[str]], Sequence[str]]


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """Cohorts that are drawn before the first round; nodes that are not connected, or not allowed, are left out.

    Attributes:
        plan: Cohorts of identities: those that `by_public_key` returns, for example.
        secret: Whether nobody may learn a cohort, nor how large it is.
    """

    plan: sampling.CohortPlan
    secret: bool = False

    def __call__(self, round_number: int, allowed: Sequence[str]) -> list[str]:
        present = set(allowed)
        return [client for client in self.plan.cohort(round_number - 1) if client in present]


def check_drawn(cohort: Sequence[str], allowed: Sequence[str], most: int) -> None:
    """Raises unless a drawn cohort has distinct allowed nodes, and at most so many."""
    if len(cohort) > most or len(set(cohort)) < len(cohort) or set(cohort) - set(allowed):
        raise InputValueError(
            f"draw returned {len(cohort)} nodes, {len(set(cohort))} of them different and "
            f"{len(set(cohort) & set(allowed))} allowed: it must return at most {most} allowed ones."
        )
