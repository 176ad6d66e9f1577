"""Many runs of a few rounds without clients as one computation: a small model needs hundreds to measure its noise."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from ..resident.cohort_graph import NotInOneGraphError, Part
from ..resident.context import ResidentContext
from ..resident.forms import RoundForm, ServerForm


def changes(
    context: ResidentContext, process: tff.learning.templates.LearningProcess, *, runs: int, rounds: int
) -> np.ndarray:
    """Returns what rounds without clients add to the trainable weights, float64 `[runs, rounds, dimension]`.

    The graphs are those that the context runs for `process.initialize` and `process.next`, repeated by a loop in the
    worker; `NotInOneGraphError` if they cannot be. Each run has its own initial state, with a model of zeros, and each
    round the server's optimizer in its initial state, as `Probe.noise` does.
    """
    start, step = context.parts(process.initialize), context.parts(process.next)
    if not isinstance(start, ServerForm) or not isinstance(step, RoundForm):
        raise NotInOneGraphError("the process has no form of which the server's part can be repeated")
    initialize, zero, report, update = (
        Part(each, confined=False) for each in (start.run, step.zero, step.report, step.update)
    )
    state_type = process.initialize.type_signature.result.member
    aggregator = _place(state_type, "aggregator")
    model = trainable = _place(state_type, "global_model_weights")
    if tff.structure.has_field(state_type.global_model_weights, "trainable"):
        inside = _place(state_type.global_model_weights, "trainable")
        trainable = slice(model.start + inside.start, model.start + inside.stop)
    leaves = len(tff.structure.flatten(state_type))

    @tf.autograph.experimental.do_not_convert
    def run(_: tf.Tensor) -> tf.Tensor:
        state = initialize.apply([])
        state[model] = [tf.zeros_like(leaf) if leaf.dtype.is_floating else leaf for leaf in state[model]]
        seen = []
        for _ in range(rounds):
            after = update.apply([*state, *report.apply(zero.apply([]))])[leaves : 2 * leaves]
            moved = zip(after[trainable], state[trainable], strict=True)
            seen.append(tf.concat([tf.reshape(_wide(new) - _wide(old), [-1]) for new, old in moved], axis=0))
            state[aggregator] = after[aggregator]
        return tf.stack(seen)

    @tff.tensorflow.computation
    def all_runs() -> tf.Tensor:
        return tf.map_fn(run, tf.range(runs), fn_output_signature=tf.float64)

    return np.asarray(all_runs())


def _place(type_spec: tff.StructType, name: str) -> slice:
    """Returns the positions of an element's leaves among those of its structure."""
    first = 0
    for found, part in tff.structure.iter_elements(type_spec):
        size = len(tff.structure.flatten(part))
        if found == name:
            return slice(first, first + size)
        first += size
    raise NotInOneGraphError(f"the state has no {name}")


def _wide(leaf: tf.Tensor) -> tf.Tensor:
    return tf.cast(leaf, tf.float64)
