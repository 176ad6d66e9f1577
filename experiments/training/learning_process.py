"""The learning process of a run: federated averaging or SGD, momentum on the server, and noise of a mechanism."""

import math

import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import queries
from tff_mf.base import validation
from tff_mf.planning.by_name import RAMP_FLOOR

from ... import aggregators
from ..guard.models import SIMULATION_LOOP
from ..runs.settings import RunSettings
from . import task


def build_process(
    settings: RunSettings,
    privacy: tff_mf.Plan,
    language_task: task.Task,
    *,
    loop: tff.learning.LoopImplementation = SIMULATION_LOOP,
) -> tuple[tff.learning.templates.LearningProcess, aggregators.MFAggregationFactory]:
    """Returns the learning process of a run, and the aggregator in it that adds the noise.

    With `fed-sgd` a client's update is the mean gradient over its examples, at the model as it was sent; it is clipped,
    summed and noised as the updates of `fed-avg` are.

    Args:
        settings: How to train, with numbers for words: `RunSettings.resolved`.
        privacy: The mechanism and its noise.
        language_task: The model.
        loop: How a client iterates over its batches: `SIMULATION_LOOP`, or `models.DEVICE_LOOP` for graphs.
            Both give the same model, up to rounding.
    """
    clipping = _adaptive_clipping(settings, privacy)
    mean = aggregators.MFAggregationFactory.of_plan(privacy, clip_norm=settings.clip_norm, adaptive_clipping=clipping)
    shared = {
        "server_optimizer_fn": server_optimizer(settings, privacy),
        "metrics_aggregator": aggregators.withhold_metrics,
        "loop_implementation": loop,
    }
    aggregator = _zeroed(settings, mean)
    if settings.algorithm == "fed-sgd":
        # TFF weights gradients by numbers of examples, which are exact: here each client weighs the same.
        weighted = tff.aggregators.as_weighted_aggregator(aggregator)
        return tff.learning.algorithms.build_fed_sgd(language_task.model, model_aggregator=weighted, **shared), mean
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        language_task.model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(settings.client_learning_rate),
        model_aggregator=aggregator,
        **shared,
    )
    return process, mean


def _zeroed(
    settings: RunSettings, mean: aggregators.MFAggregationFactory
) -> tff.aggregators.UnweightedAggregationFactory:
    if settings.zeroing is None:
        return mean
    # A constant bound: TFF's adaptive one follows the clients' updates without noise.
    zeroing = tff.aggregators.zeroing_factory(settings.zeroing, mean, norm_order=math.inf)
    # Its measurements are exact counts of zeroed clients.
    return aggregators.withhold_measurements(zeroing)


def _adaptive_clipping(settings: RunSettings, privacy: tff_mf.Plan) -> queries.AdaptiveClipping | None:
    if settings.adaptive_clipping is None or privacy.adaptive_count_stddev_as_run is None:
        return None
    return queries.AdaptiveClipping(
        count_stddev=privacy.adaptive_count_stddev_as_run,
        target_quantile=settings.adaptive_clipping,
        learning_rate=settings.adaptive_learning_rate,
    )


def server_optimizer(settings: RunSettings, privacy: tff_mf.Plan) -> tff.learning.optimizers.Optimizer:
    """Returns the server's optimizer of a run, with the rates of its rounds."""
    highest = validation.positive("server_learning_rate", settings.server_learning_rate)
    if settings.server_optimizer == "dp-ftrl":
        return aggregators.build_dp_ftrl(highest, settings.server_momentum, restart_every=privacy.restart_every)
    rounds = privacy.rounds
    warmup, cooldown = settings.server_warmup * rounds, settings.server_cooldown * rounds

    def rate(step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rising = step / warmup if warmup else 1.0
        falling = (rounds - step) / cooldown if cooldown else 1.0
        ramp = tf.clip_by_value(tf.minimum(rising, falling), 0.0, 1.0)
        return highest * (RAMP_FLOOR + (1 - RAMP_FLOOR) * ramp)

    return tff.learning.optimizers.schedule_learning_rate(
        tff.learning.optimizers.build_sgdm(highest, settings.server_momentum), rate
    )
