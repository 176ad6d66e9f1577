"""Graphs with another function: each one runs, has the types of the graph it replaces, and is saved again."""

import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from tampering import WEIGHTS, Change, Material, Way

_SIGNATURE = "serving_default"
_KEYS, _ROWS, _MODEL = "noise__keys", "noise__rows", "__global_model_weights__"
_TOTAL = "__total__"

Tensors = Mapping[str, Any]
Do = Callable[[Any, Tensors, dict[str, Any]], dict[str, Any]]


def instead(stage: str, do: Do, fed: Callable[[Any, Tensors], Tensors] = lambda tf, given: given) -> Change:
    """Wraps a graph: `do` is given TensorFlow, what the graph is fed, and what it returns.

    `fed` changes what the graph is fed.
    """

    def edit(folder: pathlib.Path, material: Material) -> None:
        import tensorflow as tf

        loaded = tf.saved_model.load(str(folder / stage))
        original = loaded.signatures[_SIGNATURE]
        module = tf.Module()
        module.original = loaded
        module.stage = tf.function(lambda **given: do(tf, given, dict(original(**fed(tf, given)))), autograph=False)
        specs = original.structured_input_signature[1]
        new = folder.parent / "wrapped"
        signature = module.stage.get_concrete_function(**specs)
        tf.saved_model.save(module, str(new), signatures={_SIGNATURE: signature})
        (new / "assets").rmdir()
        (new / "fingerprint.pb").unlink()
        shutil.rmtree(folder / stage)
        new.rename(folder / stage)

    return edit


def last_bit(file: str, least: float = 0.0) -> Change:
    """Moves each floating constant of a graph, or form, of magnitude `least` or more to the next float."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        import numpy as np
        import tensorflow as tf
        import tensorflow_federated as tff

        path, changed = folder / file, 0
        if file.endswith("saved_model.pb"):
            from tensorflow.core.protobuf import saved_model_pb2

            message: Any = saved_model_pb2.SavedModel.FromString(path.read_bytes())
            graphs = [each.graph_def for each in message.meta_graphs]
        else:
            kind = type(tff.framework.serialize_computation(tff.tensorflow.computation(lambda: 0)))
            message = kind.FromString(path.read_bytes())
            graphs = [tf.compat.v1.GraphDef()]
            message.tensorflow.graph_def.Unpack(graphs[0])
        for graph in graphs:
            for node in (*graph.node, *(node for each in graph.library.function for node in each.node_def)):
                value = tf.make_ndarray(node.attr["value"].tensor) if node.op == "Const" else np.zeros(())
                if value.dtype.kind == "f" and np.abs(value).max(initial=0.0) > least:
                    moved = np.nextafter(value, np.full_like(value, np.inf))
                    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(moved))
                    changed += 1
        if not file.endswith("saved_model.pb"):
            message.tensorflow.graph_def.Pack(graphs[0])
        assert changed, file
        path.write_bytes(message.SerializeToString(deterministic=True))

    return edit


def moved_model(part: float) -> Change:
    """Changes each number of the initial model by a part of it."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        import numpy as np
        import safetensors.numpy

        path = folder / WEIGHTS
        tensors = safetensors.numpy.load(path.read_bytes())
        moved = {name: (value * np.float32(1 + part)).astype(value.dtype) for name, value in tensors.items()}
        path.write_bytes(safetensors.numpy.save(moved))

    return edit


def only_lite(do: Do) -> Change:
    """Converts a modified work for TensorFlow Lite, and leaves the SavedModel unchanged."""

    def edit(folder: pathlib.Path, material: Material) -> None:
        from tff_mf import aggregators

        shutil.copytree(folder / "device/work", folder.parent / "outside work")
        instead("device/work", do)(folder, material)
        content = aggregators.convert_to_lite(folder / "device/work").content
        assert content is not None
        (folder / "device/work.tflite").write_bytes(content)
        shutil.rmtree(folder / "device/work")
        (folder.parent / "outside work").rename(folder / "device/work")

    return edit


def _named(tensors: Tensors, part: str) -> str:
    return next(name for name in tensors if part in name)


def _first(tensors: Tensors, dtype: str) -> str:
    return next(name for name, value in tensors.items() if value.dtype.name == dtype)


def _with(result: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**result, name: value}


def _constant_key(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    name = _named(result, _KEYS)
    return _with(result, name, tf.zeros_like(result[name]) + 7)


def _key_of_the_clock(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    name = _named(result, _KEYS)
    return _with(result, name, tf.zeros_like(result[name]) + tf.cast(tf.timestamp(), result[name].dtype))


def _no_noise(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    models = [name for name in result if _MODEL in name]
    sums = [name for name in given if name.startswith("report__") and given[name].dtype.name == "float32"]
    shapes = {name: given[name].shape.as_list() for name in sums}
    changed = dict(result)
    for name in models:
        found = next((each for each in sums if shapes[each] == given[name].shape.as_list()), None)
        if found is not None:
            changed[name] = given[name] + given[found] / 4
    return changed


def _leaks(source: str, to: str) -> Do:
    """Adds a secret to a public number, where rounding hides it, or nearly."""

    def do(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
        secret = tf.cast(tf.reduce_sum(tf.cast(given[_named(given, source)], tf.float64)), tf.float32) * 1e-30
        seen = {name: value for name, value in result.items() if name.startswith(to)}
        name = _first(seen, "float32")
        return _with(result, name, result[name] + secret)

    return do


def _zeroed(part: str) -> Do:
    return lambda tf, given, result: {
        name: tf.zeros_like(value) if part in name else value for name, value in result.items()
    }


def _scaled(factor: float) -> Do:
    return lambda tf, given, result: {
        name: value * factor if value.dtype.is_floating else value for name, value in result.items()
    }


def _writes(part: str, path: str) -> Do:
    """Writes a secret to a file of the server."""

    def do(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
        name = _named(result, part)
        text = tf.strings.reduce_join(tf.strings.as_string(tf.reshape(result[name], [-1])), separator=" ")
        with tf.control_dependencies([tf.io.write_file(path, text)]):
            return _with(result, name, tf.identity(result[name]))

    return do


def _sends_examples(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    name = _first(result, "float32")
    words = tf.cast(tf.reshape(given[_named(given, "examples__")], [-1])[0], tf.float32)
    return _with(result, name, result[name] + words)


def _adds_text(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    name = _first(result, "int64")
    return _with(result, name, result[name] + tf.strings.to_hash_bucket_fast(given["sentences"][0], 2) * 0 + 1)


def _without_clip(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    """Adds a device's update unchanged, and counts as if it had been clipped."""
    return {name: given[name] + given[_of_device(name)] if _TOTAL in name else value for name, value in result.items()}


def _without_zeroing(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    """Adds non-finite updates, and clips finite ones."""
    sent = [value for name, value in given.items() if name.startswith("update__")]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in sent])
    plain = _without_clip(tf, given, result)
    return {name: tf.where(finite, value, plain[name]) if _TOTAL in name else value for name, value in result.items()}


def _of_device(name: str) -> str:
    return name.replace("sum__", "update__").replace(_TOTAL, "__")


def _as_before(part: str) -> Do:
    """Returns a tensor unchanged."""
    return lambda tf, given, result: {name: given[name] if part in name else value for name, value in result.items()}


def _counts_in_report(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    name = _first(result, "float32")
    return _with(result, name, result[name] + tf.cast(given[_named(given, "__clipped")], tf.float32) * 1e-6)


def _of_first_rounds(tf: Any, given: Tensors) -> Tensors:
    """Makes a graph treat each round after the hundredth as the hundredth."""
    name = next(name for name in given if name.endswith("noise__round"))
    return {**given, name: tf.minimum(given[name], 100)}


def _last_left_out(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    name = _named(result, _KEYS)
    return _with(result, name, result[name][:-1])


def _same(tf: Any, given: Tensors, result: dict[str, Any]) -> dict[str, Any]:
    return {name: tf.identity(value) for name, value in result.items()}


WRITTEN = "tampered-graph-ran"
_CONSTANTS = (
    *("server/update/saved_model.pb", "server/accumulate/saved_model.pb", "server/replay/saved_model.pb"),
    *("device/work/saved_model.pb", "forms/map_reduce/update.pb", "forms/map_reduce/accumulate.pb"),
    *("forms/map_reduce/work.pb",),
)
WAYS = (
    Way("update that records a constant key", instead("server/update", _constant_key)),
    Way("update that records the clock as its key", instead("server/update", _key_of_the_clock)),
    Way("update without noise", instead("server/update", _no_noise)),
    Way("update whose metrics have the key", instead("server/update", _leaks(_KEYS, "metrics__"))),
    Way("update whose model has the key", instead("server/update", _leaks(_KEYS, "state__global"))),
    Way("update whose metrics have a row of noise", instead("server/update", _leaks(_ROWS, "metrics__"))),
    Way("update that forgets the rows", instead("server/update", _zeroed(_ROWS))),
    Way("update that writes the key to a file", instead("server/update", _writes(_KEYS, WRITTEN))),
    Way("prepare that sends the key", instead("server/prepare", _leaks(_KEYS, "sent__"))),
    Way("prepare that sends a row of noise", instead("server/prepare", _leaks(_ROWS, "sent__"))),
    Way("work that sends ten times its update", instead("device/work", _scaled(10.0))),
    Way("work that sends a bit less", instead("device/work", _scaled(0.999))),
    Way("Lite model that sends ten times its update", only_lite(_scaled(10.0))),
    Way("work that sends its examples", instead("device/work", _sends_examples)),
    Way("accumulate that counts twice", instead("server/accumulate", _scaled(2.0))),
    Way(
        "merge that loses a sum",
        instead(
            "server/merge",
            lambda tf, given, result: {
                name: given[name] if name in given and given[name].dtype == value.dtype else value
                for name, value in result.items()
            },
        ),
    ),
    Way(
        "zero that is none",
        instead(
            "server/zero",
            lambda tf, given, result: {
                name: value + tf.ones_like(value) if value.dtype.is_floating else value
                for name, value in result.items()
            },
        ),
    ),
    Way("report of twice the sum", instead("server/report", _scaled(2.0))),
    Way("initialize with a key that is known", instead("server/initialize", _constant_key)),
    Way("initialize of zeros", instead("server/initialize", _zeroed(_MODEL))),
    Way("tokenizer that counts on", instead("device/tokenize", _adds_text)),
    Way("accumulate without its clip", instead("server/accumulate", _without_clip)),
    Way("accumulate without zeroing", instead("server/accumulate", _without_zeroing)),
    Way("accumulate that counts nothing scaled", instead("server/accumulate", _as_before("__clipped"))),
    Way("accumulate that counts nothing zeroed", instead("server/accumulate", _as_before("__zeroed"))),
    Way("accumulate that adds nothing", instead("server/accumulate", _as_before(_TOTAL))),
    Way("report that has the counts", instead("server/report", _counts_in_report)),
    Way("update without the end of the run", instead("server/update", _same, _of_first_rounds)),
    Way("update that stays in its round", instead("server/update", _as_before("noise__round"))),
    Way("replay of other rows", instead("server/replay", _scaled(0.5))),
    Way("replay without rows", instead("server/replay", _zeroed(_ROWS))),
    Way("replay that loses the last key", instead("server/replay", _last_left_out)),
    Way("replay that is a round behind", instead("server/replay", _zeroed("noise__round"))),
    Way("replay that writes the keys to a file", instead("server/replay", _writes(_KEYS, WRITTEN))),
    Way("replay in another graph that does the same", instead("server/replay", _same)),
    *(Way(f"constants of {file} in their last bit", last_bit(file)) for file in _CONSTANTS),
    Way("an initial model that is another in its sixth digit", moved_model(1e-5)),
    Way("an initial model with numbers that are none", moved_model(float("nan"))),
    Way(
        "an initial model that is another in its last bits",
        moved_model(2e-7),
        digest_only="another machine computes other last bits of the public model, which ε does not depend on",
    ),
)
