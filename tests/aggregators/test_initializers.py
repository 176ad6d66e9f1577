"""Initial values that a worker need not compute: results are the same, and no variable is read without a value."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.aggregators.resident import forms, graphs

VARIABLES = 2


def run(computation, value):
    """The result of a computation of one number, executed as a worker does it: initializations first."""
    parts = tff.framework.serialize_computation(computation).tensorflow
    graph_def = tf.compat.v1.GraphDef()
    parts.graph_def.Unpack(graph_def)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        session.run(parts.initialize_op)
        return session.run(parts.result.tensor.tensor_name, {parts.parameter.tensor.tensor_name: value})


def step(kind, variable, other, x):
    """One step of a program, which returns what it has read."""
    if kind == "assign":
        variable.assign(x * 2.0)
    elif kind == "copy":
        variable.assign(other.read_value() + 1.0)
    elif kind == "add":
        variable.assign_add(x)
    elif kind == "read":
        return variable.read_value()
    elif kind == "assign in a branch":
        tf.cond(x > 0.0, lambda: variable.assign(x).read_value(), lambda: tf.constant(0.0))
    elif kind == "read in a branch":
        return tf.cond(x > 0.0, lambda: tf.constant(7.0), variable.read_value)
    elif kind == "assign in a loop":
        tf.while_loop(lambda i: tf.cast(i, tf.float32) < x, lambda i: (variable.assign(x), i + 1)[1:], [0])
    elif kind == "add in a loop":
        tf.while_loop(lambda i: i < 3, lambda i: (variable.assign_add(x), i + 1)[1:], [0])
    return tf.constant(0.0)


KINDS = (
    *("assign", "copy", "add", "read", "assign in a branch", "read in a branch", "assign in a loop", "add in a loop"),
)
PROGRAMS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, VARIABLES - 1)), min_size=1, max_size=5)


def compiled(program, initial_from_other):
    @tff.tensorflow.computation(np.float32)
    def computation(x):
        first = tf.Variable(3.0)
        second = tf.Variable(first.initial_value * 5.0 if initial_from_other else 5.0)
        variables = (first, second)

        @tf.function(autograph=False)
        def steps(x):
            read = [step(kind, variables[index], variables[1 - index], x) for kind, index in program]
            return tf.add_n([*read, *(each.read_value() for each in variables)])

        return steps(x)

    return forms._ready(computation)


@hypothesis.settings(max_examples=10)
@hypothesis.given(program=PROGRAMS, initial_from_other=st.booleans())
def test_programs_have_the_same_results(program, initial_from_other):
    whole = compiled(program, initial_from_other)
    lean = graphs.without_overwritten(whole)
    for value in (-1.0, 2.0):
        assert run(lean, value) == run(whole, value)
    first = {index: kind for kind, index in reversed(program)}
    copied = {1 - index for kind, index in program if kind == "copy"}
    if any(kind == "assign" and index not in copied for index, kind in first.items()):
        assert lean is not whole
    # A worker takes two graphs of one number for the same.
    numbers = [tff.framework.serialize_computation(each).tensorflow.cache_key.id for each in (whole, lean)]
    assert (numbers[0] == numbers[1]) == (lean is whole)
