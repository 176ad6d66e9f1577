"""Leaves of a program state, and the noise states in it, as a checkpoint stores them."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import tree

from tff_mf import checkpoint_files
from tff_mf.noise.tensorflow import NoiseState


def keys_alone(noise: NoiseState) -> NoiseState:
    """Returns a noise state with the keys of past rounds and without rows."""
    past = np.asarray(noise.keys)[: int(np.asarray(noise.round))]
    return noise._replace(keys=past, rows=(), coefficients=())


def each_noise(change: Callable[..., NoiseState], structure: Any, *others: Any) -> Any:
    """Returns a structure with `change` applied to each noise state and those in its place in `others`."""
    found = [iter(noise_states(other)) for other in others]

    def replaced(part: object) -> NoiseState | None:
        return change(part, *map(next, found)) if isinstance(part, NoiseState) else None

    return tree.traverse(replaced, structure)


def noise_states(structure: Any) -> list[NoiseState]:
    """Returns the noise states in a structure, in order."""
    found: list[NoiseState] = []

    def remember(part: object) -> object | None:
        if not isinstance(part, NoiseState):
            return None
        found.append(part)
        return part

    tree.traverse(remember, structure)
    return found


def encoded(leaf: Any, tensors: list[Any]) -> dict[str, Any]:
    """Returns the description of a leaf, and appends the leaf to `tensors` if it is a tensor."""
    if not checkpoint_files.is_tensor(leaf) and hasattr(leaf, "numpy"):
        leaf = leaf.numpy()
    if checkpoint_files.is_tensor(leaf):
        tensors.append(leaf)
        return {"tensor": len(tensors) - 1}
    if hasattr(leaf, "to_bytes") and hasattr(type(leaf), "from_bytes") and not isinstance(leaf, int):
        return {"serializable": base64.b64encode(leaf.to_bytes()).decode()}
    if isinstance(leaf, np.ndarray | np.generic):
        leaf = leaf.tolist()
    if isinstance(leaf, bytes):
        return {"bytes": base64.b64encode(leaf).decode()}
    return {"json": leaf}


def decoded(leaf: dict[str, Any], tensors: list[np.ndarray], like: Any) -> Any:
    """Returns the leaf that `encoded` described; `like` is one of the same type."""
    ((kind, value),) = leaf.items()
    if kind == "tensor":
        return tensors[value][()]
    if kind == "json":
        return value
    data = base64.b64decode(value)
    return data if kind == "bytes" else type(like).from_bytes(data)
