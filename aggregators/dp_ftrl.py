"""Server optimizer of DP-FTRL: steps from a start along the sum of all updates, with restarts."""

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

_RATE = tff.learning.optimizers.LEARNING_RATE_KEY
_MOMENTUM = "momentum"


class _DPFTRL(tff.learning.optimizers.Optimizer):
    """See `build_dp_ftrl`."""

    def __init__(self, learning_rate: float, momentum: float, restart_every: int | None) -> None:
        self._learning_rate, self._momentum, self._restart_every = learning_rate, momentum, restart_every

    def initialize(self, specs: Any) -> collections.OrderedDict[str, Any]:
        def zeros() -> Any:
            return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)

        return collections.OrderedDict(
            [
                (_RATE, tf.constant(self._learning_rate, tf.float32)),
                (_MOMENTUM, tf.constant(self._momentum, tf.float32)),
                ("round", tf.zeros([], tf.int64)),
                ("start", zeros()),
                ("total", zeros()),
                ("velocity", zeros()),
            ]
        )

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[collections.OrderedDict[str, Any], Any]:
        step, rate, momentum = state["round"], state[_RATE], state[_MOMENTUM]
        begins = tf.equal(step, 0) if self._restart_every is None else tf.equal(step % self._restart_every, 0)

        def advance(weight: tf.Tensor, gradient: tf.Tensor, start: tf.Tensor, total: tf.Tensor, velocity: tf.Tensor):
            start = tf.where(begins, weight, start)
            total = tf.where(begins, tf.zeros_like(total), total) + gradient
            velocity = tf.where(begins, tf.zeros_like(velocity), velocity) * tf.cast(momentum, total.dtype) + total
            return start - tf.cast(rate, total.dtype) * velocity, start, total, velocity

        memory = [tf.nest.flatten(state[name]) for name in ("start", "total", "velocity")]
        leaves = zip(tf.nest.flatten(weights), tf.nest.flatten(gradients), *memory, strict=True)
        new = [
            tf.nest.pack_sequence_as(weights, column)
            for column in zip(*(advance(*leaf) for leaf in leaves), strict=True)
        ]
        values = [rate, momentum, step + 1, *new[1:]]
        return collections.OrderedDict(zip(state, values, strict=True)), new[0]

    def get_hparams(self, state: Any) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict([(name, state[name]) for name in (_RATE, _MOMENTUM)])

    def set_hparams(self, state: Any, hparams: Any) -> collections.OrderedDict[str, Any]:
        return collections.OrderedDict([(name, hparams.get(name, value)) for name, value in state.items()])


def build_dp_ftrl(
    learning_rate: float, momentum: float = 0.0, *, restart_every: int | None = None
) -> tff.learning.optimizers.Optimizer:
    """Returns the server optimizer of DP-FTRL, DP-FTRLM and DP-FTRL-TR.

    With S_t the sum of the updates g since the start w, and momentum γ:

        S_t = S_{t−1} + g_t;  V_t = γV_{t−1} + S_t;  w_{t+1} = w − ηV_t.

    With a constant rate, and without restarts, this is SGDM. It differs when the rate η changes, since the new rate
    applies to all updates since the start, and at a restart, which makes w the model of that round and sets S and V to
    0. TFF's `build_sgdm` keeps its momentum through a restart of the noise.

    Args:
        learning_rate: η, at least 0.
        momentum: γ, from 0 to less than 1.
        restart_every: Number of rounds from one restart to the next: equal to `build_mf_aggregator`'s, so that both
            restart in the same round. `None` for no restarts.

    Source: Kairouz et al. (2021), algorithm 1; DP-FTRLM, appendix E.2; DP-FTRL-TR, appendix D.

    Example:
        >>> optimizer = build_dp_ftrl(0.5, momentum=0.5)
        >>> state, weights = optimizer.initialize(tf.TensorSpec([])), tf.constant(1.0)
        >>> for _ in range(2):
        ...     state, weights = optimizer.next(state, weights, tf.constant(1.0))
        ...     print(float(weights))
        0.5
        -0.25
    """
    learning_rate = validation.nonnegative("learning_rate", learning_rate)
    momentum = validation.nonnegative("momentum", momentum)
    if momentum >= 1:
        raise InputValueError(f"momentum={momentum!r} must be less than 1: with 1 or more, the steps would not decay.")
    if restart_every is not None:
        restart_every = validation.whole("restart_every", restart_every)
    return _DPFTRL(learning_rate, momentum, restart_every)
