"""Who a node is, and the nodes of a round: those that are connected and that the schema allows."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tff_mf.base.errors import InputValueError

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


def uniform(allowed: Sequence[str], number: int) -> list[str]:
    """Returns so many nodes uniformly among those allowed, or all of them if they are fewer.

    Example:
        >>> sorted(uniform(["ann", "bob"], 3))
        ['ann', 'bob']
    """
    return secrets.SystemRandom().sample(allowed, min(number, len(allowed)))
