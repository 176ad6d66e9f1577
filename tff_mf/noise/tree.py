"""Noise of a tree, by its variant."""

from typing import Any

from tff_mf.mechanisms import Tree
from tff_mf.noise._stream import NoiseStream
from tff_mf.noise.tree_full import FullTreeStream
from tff_mf.noise.tree_online import OnlineTreeStream
from tff_mf.noise.tree_vanilla import VanillaTreeStream

_STREAMS: dict[str, type[NoiseStream[Tree]]] = {
    "full": FullTreeStream,
    "online": OnlineTreeStream,
    "vanilla": VanillaTreeStream,
}


def build_tree_stream(mechanism: Tree, **arguments: Any) -> NoiseStream[Tree]:
    """Returns the stream of a tree; arguments as of `NoiseStream`."""
    return _STREAMS[mechanism.variant](mechanism, **arguments)
