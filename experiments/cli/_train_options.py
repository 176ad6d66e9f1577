"""The flags of a run: one for each field of `RunConfiguration`, none of which has a default of its own."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import rich_click as click

from ..configuration.run import PROPOSED, RunConfiguration
from ..configuration.settings import ALL
from . import _options, _types

HELP = {
    "dataset": "`pydoc` (made on first use), `stackoverflow` (downloaded on first use), `synthetic` (of its size, for "
    "dry runs), or `sqlite:FILE`.",
    "mechanism": "blt, banded, banded-toeplitz, banded-inverse, dense (optimized for the run), tree-full, tree-online, "
    "tree-vanilla, identity, production:NAME or a FILE.",
    "workload": "What the mechanism is optimized for: prefix_sum, momentum, learning_rates or momentum_with_rates.",
    "buffers": "Buffers of an optimized blt; chosen by the optimizer if not given.",
    "bands": "Bands of an optimized banded kind; --min-sep if not given.",
    "unit_norms": _options.UNIT_NORMS,
    "objective": _options.help_of("objective"),
    "rounds": _options.help_of("rounds"),
    "clients_per_round": "Clients that train in a round.",
    "restart_every": _options.help_of("restart_every"),
    "cohort": "Clients that a round stands for, simulated by --clients-per-round.",
    "min_sep": _options.help_of("min_sep"),
    "max_participations": _options.help_of("max_participations"),
    "sampling": "How cohorts are drawn: min_sep, shuffled_epochs, fixed_epochs, timer, poisson, cyclic_poisson, "
    "balls_in_bins, min_sep_poisson or random_allocation.",
    "timer_hours": "With --sampling timer: hours that a device waits after taking part; --min-sep rounds if not given.",
    "round_minutes": "With --timer-hours: minutes that a round takes on average.",
    "participation_schema": "Participation schema of the guarantee: min_sep, or fixed_epoch, which is the default with "
    "--sampling fixed_epochs, cyclic_poisson and balls_in_bins.",
    "dropout": "Probability that a chosen client does not report.",
    "epsilon": "ε that the whole run may reach; or give --noise-multiplier.",
    "noise_multiplier": "σ: standard deviation of Z over the clip norm, for the cohort.",
    "delta": _options.help_of("delta"),
    "grid": "Updates, sums and noise as integers: bits of the clip norm, auto, or none for floating point, whose low "
    "bits can give clients away.",
    "clip_norm": "Bound on the L2 norm of a client's update; the first one, with --adaptive-clipping.",
    "adaptive_clipping": "Part of the updates that shall be below the clip norm, which adapts at each restart; needs "
    "--restart-every and --adaptive-count-stddev.",
    "adaptive_count_stddev": "With --adaptive-clipping: standard deviation of the noise of each round's count, for the "
    "cohort; the counts are part of ε.",
    "adaptive_learning_rate": "With --adaptive-clipping: how fast the clip norm follows, as an exponent.",
    "zeroing": "Updates with an entry larger than this are set to zero.",
    "algorithm": "fed_avg, or fed_sgd: clients send the mean gradient over their examples.",
    "initial_model": "The model.safetensors of another run's folder, to start from: public, or accounted for by you.",
    "model": "lstm (the papers') or conv.",
    "vocab_size": "Most frequent words to know.",
    "embedding_size": "Width of the word embedding.",
    "units": "LSTM units, or filters of conv.",
    "client_learning_rate": "Learning rate of the clients' SGD.",
    "client_epochs": "Passes over its sentences that a client makes in a round.",
    "batch_size": "Sentences in a batch of a client.",
    "max_examples": "Sentences a client uses at most in one round.",
    "server_optimizer": "sgdm, or dp_ftrl: its momentum starts anew when the noise does.",
    "server_learning_rate": f"Learning rate of the server's SGD, or `{PROPOSED}`: from the noise, by a regression.",
    "server_momentum": "Momentum of the server's SGD.",
    "server_warmup": "Part of the rounds over which the server's rate rises.",
    "server_cooldown": "Part of the rounds over which the server's rate falls.",
    "evaluate_every": "Rounds between evaluations on validation sentences.",
    "evaluation_examples": "Validation sentences to evaluate on.",
    "validation_split": "Where they are from: heldout, or test: the first of the test clients, as in the papers.",
    "test_examples": f"Test sentences that the final model is measured on, or `{ALL}`.",
    "seed": "Seed of cohorts and initial model, never of noise.",
    "reference_model": "Whether clients compute with TFF's own model: the same up to rounding, and half as fast.",
}
_TYPES = {"bool": bool, "int": int, "float": float, "str": str}
_PAIRS = {"unit_norms": "--unit-norms/--free-norms", "reference_model": "--reference-model/--fast-model"}
_WORDS = {
    "dataset": _types.DATASET,
    "mechanism": _types.MECHANISM,
    "workload": _types.WORKLOAD,
    "sampling": _types.SAMPLING,
    "participation_schema": _types.SCHEMA,
    "objective": _types.OBJECTIVE,
    "initial_model": click.Path(),
    "algorithm": _types.ALGORITHM,
    "model": _types.MODEL,
    "server_optimizer": _types.SERVER_OPTIMIZER,
    "validation_split": _types.VALIDATION_SPLIT,
}


_NUMBERS = {
    "server_learning_rate": _types.NumberOr(click.FLOAT, PROPOSED),
    "test_examples": _types.NumberOr(click.INT, ALL),
    "grid": _types.GRID,
}


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a flag for each field of a run; what is not given is None."""
    return flags_of(command, RunConfiguration, helps=HELP, types={**_WORDS, **_NUMBERS})


def flags_of(
    command: Callable[..., Any], kind: type, *, helps: Mapping[str, str], types: Mapping[str, click.ParamType]
) -> Callable[..., Any]:
    """Adds a flag for each field of a configuration; what is not given is None.

    Args:
        command: The command.
        kind: The class of the configuration.
        helps: The help of each flag, without its default.
        types: Types of fields that are more than numbers and strings.
    """
    for field in reversed(dataclasses.fields(kind)):
        default = field.default
        shown = f"  [default: {default}]" if default not in (None, dataclasses.MISSING) else ""
        if default is dataclasses.MISSING:
            shown = "  [required]"
        kind_of = types.get(field.name) or _type_of(field)
        flag = _PAIRS.get(field.name, "--" + field.name.replace("_", "-"))
        command = click.option(flag, field.name, type=kind_of, default=None, help=helps[field.name] + shown)(command)
    return command


def _type_of(field: dataclasses.Field) -> type:
    names = (str(field.type) if not isinstance(field.type, type) else field.type.__name__).split(" | ")
    return _TYPES[names[0]]
