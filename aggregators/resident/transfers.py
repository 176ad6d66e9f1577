"""Warns before the first round if the ordinary context would send a large state to the worker and back."""

import math
import warnings

import numpy as np
import tensorflow_federated as tff

_LARGE_BYTES = 64e6
# Measured: 35 ms per MB for states of 64 to 900 MB; on a busier machine, 96 s and 14 GB of memory for one of 1 GB.
_SECONDS_PER_BYTE = (35e-9, 100e-9)
_COPIES = 14
MAX_MESSAGE_BYTES = 2e9


class LargeStateWarning(UserWarning):
    """A state is so large that sending it costs the ordinary context seconds in every round."""


def state_bytes(type_spec: tff.Type | None) -> int:
    """Returns the bytes of all tensors of fixed shape in a type that are at the server or have no placement."""
    if isinstance(type_spec, tff.FederatedType):
        return 0 if type_spec.placement is tff.CLIENTS else state_bytes(type_spec.member)
    if isinstance(type_spec, tff.StructType):
        return sum(state_bytes(part) for part in type_spec.children())
    if not isinstance(type_spec, tff.TensorType) or type_spec.shape is None:
        return 0
    return math.prod(length or 0 for length in type_spec.shape) * np.dtype(type_spec.dtype).itemsize


def check(computation: tff.Computation) -> bool:
    """Returns whether the ordinary context would send a large state to or from the worker, and warns if so."""
    signature = computation.type_signature
    size = max(state_bytes(signature.parameter), state_bytes(signature.result))
    if size < _LARGE_BYTES:
        return False
    least, most = (size * seconds for seconds in _SECONDS_PER_BYTE)
    cost = f"about {least:.0f} to {most:.0f} s a round, and up to {size * _COPIES / 1e9:.0f} GB of memory"
    if size > MAX_MESSAGE_BYTES:
        cost = "more than the 2 GB that a message may have, so that a round may fail"
    warnings.warn(
        f"TFF's ordinary context sends the server's state of {size / 1e6:,.0f} MB to the worker and back in every "
        f"round: {cost}. Run in `with tff_mf.aggregators.resident_context():`, where it stays in the worker.",
        LargeStateWarning,
        stacklevel=2,
    )
    return True


def watch(state_type: tff.Type) -> None:
    """Makes TFF's own context `check` each computation, until it has warned, if a process has a large state.

    Which context will run a process is not known when it is built. If the current one is TFF's own, its `invoke` is
    replaced until the warning; a resident context that is entered later needs no check, and a session has its own.
    """
    context = tff.framework.get_context_stack().current
    ordinary = isinstance(context, tff.framework.SyncExecutionContext | tff.framework.AsyncExecutionContext)
    if not ordinary or state_bytes(state_type) < _LARGE_BYTES or "invoke" in vars(context):
        return
    invoke = context.invoke

    def invoke_and_check(comp: tff.Computation, arg: object) -> object:
        if check(comp):
            vars(context).pop("invoke", None)
        return invoke(comp, arg)

    context.invoke = invoke_and_check
