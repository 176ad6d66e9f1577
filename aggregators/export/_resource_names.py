"""Replaces the random names that TensorFlow gives to lookup tables in graphs."""

import hashlib
import re
from collections.abc import Iterator

import tensorflow as tf

_ATTRIBUTE = "shared_name"
_RANDOM = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def named_by_content(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Returns a graph whose tables are named by a hash of the graph instead of at random.

    Different graphs get different names, since tables with the same name are one table in a process.
    """
    changed = tf.compat.v1.GraphDef()
    changed.CopyFrom(graph_def)
    places: dict[bytes, int] = {}
    for attribute in _names(changed):
        for drawn in _RANDOM.findall(attribute.s):
            places.setdefault(drawn, len(places))
        attribute.s = _RANDOM.sub(lambda match: b"#%d" % places[match[0]], attribute.s)
    if places:
        content = hashlib.sha256(changed.SerializeToString(deterministic=True)).hexdigest()
        for attribute in _names(changed):
            attribute.s = re.sub(rb"#(\d+)", lambda match: b"%s_%s" % (content.encode(), match[1]), attribute.s)
    return changed


def _names(graph_def: tf.compat.v1.GraphDef) -> Iterator[tf.compat.v1.AttrValue]:
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            if _ATTRIBUTE in node.attr:
                yield node.attr[_ATTRIBUTE]
