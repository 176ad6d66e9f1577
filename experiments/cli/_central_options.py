"""The flags of a central training: one for each field of `CentralConfiguration`, none of which has its own default."""

from collections.abc import Callable
from typing import Any

from ..central_training import data_sets, networks
from ..central_training.settings import SAMPLING_KINDS, CentralConfiguration
from . import _options, _train_options, _types

_HELP = {
    "epochs": "Number of epochs, in each of which an example takes part once, or once on average.",
    "batch_size": "Examples in a batch; on average, with --sampling.",
    "delta": _options.help_of("delta"),
    "dataset": "digits, mnist, cifar10, emnist (downloaded on first use), or synthetic-cifar10:N.",
    "network": "digits, kairouz-small or kairouz-vgg; the data set's own if not given.",
    "mechanism": _train_options.HELP["mechanism"],
    "buffers": _train_options.HELP["buffers"],
    "bands": "Bands of an optimized banded kind; as many as an epoch has rounds if not given.",
    "workload": _train_options.HELP["workload"],
    "sampling": "How batches are drawn: fixed_order, poisson (identity: DP-SGD) or cyclic_poisson (banded kinds).",
    "epsilon": "ε that the whole training may reach; or give --noise-multiplier.",
    "noise_multiplier": _options.help_of("noise_multiplier"),
    "clip_norm": "Bound on the L2 norm of an example's gradient.",
    "learning_rate": "Learning rate of SGD.",
    "momentum": "Momentum of SGD.",
    "warmup": "Fraction of the rounds over which the learning rate rises.",
    "cooldown": "Fraction of the rounds over which the learning rate falls.",
    "validation_examples": "Training examples that are split off for validation, and not trained on.",
    "seed": "Seed of initial weights and order, never of noise or sampling.",
}
_TYPES = {
    "dataset": _types.Known(data_sets.names),
    "network": _types.Words(networks.NAMES),
    "mechanism": _types.MECHANISM,
    "workload": _types.WORKLOAD,
    "sampling": _types.Words(SAMPLING_KINDS),
}


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a flag for each field; what is not given is None."""
    return _train_options.flags_of(command, CentralConfiguration, helps=_HELP, types=_TYPES)
