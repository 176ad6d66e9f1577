"""The parts of a central training, made from its settings: order, σ, model, and the training itself."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tff_mf
from tff_mf.base.errors import InputValueError

from ..runs import statements
from . import networks
from .settings import CentralSettings

if TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedTraining:
    """Everything about a training that is decided before its data are loaded.

    Attributes:
        order: Which examples are in which batch.
        epsilon: ε of the whole training, infinite if none can be stated.
        reasons: Why no ε can be stated; empty if it is.
    """

    settings: CentralSettings
    mechanism: tff_mf.Mechanism
    order: tff_mf.Order
    noise_multiplier: float
    epsilon: float
    reasons: Sequence[statements.Reason]


def prepare(
    settings: CentralSettings,
    mechanism: tff_mf.Mechanism,
    *,
    noise_multiplier: float | None = None,
    without_epsilon: bool = False,
) -> PreparedTraining:
    """Returns the parts of a training.

    Formal guarantee: `epsilon` is the order's (`tff_mf.Order`), for the σ that is returned: with `epsilon` in the
    settings, the smallest σ at which the order's ε does not exceed it.

    Args:
        settings: Settings that were checked.
        mechanism: The mechanism of the settings, or of a run that is resumed.
        noise_multiplier: σ of a run that is resumed: calibrated again, on another machine, it could differ in its last
            bits, and its noise would continue no run.
        without_epsilon: Whether to train although no ε can be stated.
    """
    order = _order(settings)
    sigma = settings.noise_multiplier if noise_multiplier is None else noise_multiplier
    if sigma is None:
        assert settings.epsilon is not None
        sigma = order.calibrate_noise_multiplier(mechanism, epsilon=settings.epsilon, delta=settings.delta)
    level = {"noise_multiplier": sigma, "delta": settings.delta}
    if not without_epsilon:
        settings.check_statable()
    epsilon = order.epsilon(mechanism, **level)
    wrong = statements.violations(epsilon, settings.delta, settings.examples)
    if wrong and not without_epsilon:
        raise InputValueError(
            f"noise_multiplier={sigma!r}: {wrong[0].text}. Give a larger σ, or train with without_epsilon."
        )
    return PreparedTraining(
        settings=settings,
        mechanism=mechanism,
        order=order,
        noise_multiplier=sigma,
        epsilon=math.inf if wrong else epsilon,
        reasons=wrong,
    )


def _order(settings: CentralSettings) -> tff_mf.Order:
    return tff_mf.Order(
        sampling=settings.drawn_by,
        examples=settings.examples,
        batch_size=settings.batch_size,
        rounds=settings.rounds,
        seed=settings.seed,
    )


def compiled_network(settings: CentralSettings) -> "tf.keras.Sequential":
    """Returns the network of a training, with SGD and its learning rates."""
    import tensorflow as tf

    source = settings.source
    model = networks.build(
        settings.network or source.network,
        shape=source.shape,
        classes=source.classes,
        seed=settings.seed,
    )
    model.compile(
        tf.keras.optimizers.SGD(_learning_rate(settings), momentum=settings.momentum),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _learning_rate(settings: CentralSettings) -> Any:
    import tensorflow as tf

    rates = settings.learning_rate * settings.schedule.rates(settings.rounds)

    class _RoundRates(tf.keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return tf.gather(tf.constant(rates, tf.float32), step)

        def get_config(self) -> dict[str, Any]:
            return {"rates": rates.tolist()}

    return settings.learning_rate if not (settings.warmup or settings.cooldown) else _RoundRates()
