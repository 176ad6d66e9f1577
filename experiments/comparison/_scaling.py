"""The runs of a comparison at a fraction of their size: what is scaled, and what is said about it."""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tff_mf.planning import mechanism_names
from tff_mf.planning.setting import MechanismSetting

from ..runs import layers
from ..runs.layers import Layer
from ..runs.settings import ALL, TEST_EXAMPLES, RunSettings

if TYPE_CHECKING:
    from ._spec import PlannedRun


_SOURCE = "fraction"
_LEAST_EXAMPLES = 100
_FIELDS = (
    *("rounds", "min_sep", "groups", "bands", "restart_every", "clients_per_round", "cohort", "noise_multiplier"),
    *("evaluate_every", "evaluation_examples", "test_examples"),
)


def scaled(layer: Layer, fraction: float) -> Layer:
    """Returns the settings of a run at a fraction of its size.

    Min-sep, or the number of groups, is scaled and rounded, and rounds, bands, restarts and the rounds between
    evaluations are scaled by the same ratio, so that the participations of a client are as many as at full size and as
    far apart in proportion. A run in which a client may take part in every round keeps that. The cohort stays, and is
    simulated by a fraction of its clients. A given ε stays, so that σ is calibrated anew. A given σ is scaled with the
    sensitivity of the mechanism, which keeps μ, and so ε without amplification; the σ of a mechanism that is optimized
    stays, since its columns have norm 1 at any size. Model, learning rates, clipping and data set stay. Sentences that
    the model is measured on are as many times fewer, and at least 100; of all test sentences as many are left as of the
    default.

    Example:
        >>> full = {"rounds": 2052, "min_sep": 342, "max_participations": 6, "clients_per_round": 100, "delta": 1e-6}
        >>> small = scaled(Layer.of({**full, "epsilon": 2.0}, "example"), 0.01).values
        >>> small["rounds"], small["min_sep"], small["max_participations"]
        (18, 3, 6)
        >>> small["clients_per_round"], small["cohort"]
        (1, 100)
    """
    run = layers.settings(layer)
    values = _sizes(run, fraction)
    changed = Layer.of({name: value for name, value in values.items() if value is not None}, _SOURCE)
    small = layers.laid([layer, changed])
    if run.noise_multiplier is None or run.mechanism in mechanism_names.searched():
        return small
    smaller = layers.settings(small)
    ratio = _sensitivity(run.mechanism, _setting(smaller)) / _sensitivity(run.mechanism, _setting(run))
    return layers.laid([small, Layer.of({"noise_multiplier": run.noise_multiplier * ratio}, _SOURCE)])


def changes(planned: Iterable["PlannedRun"]) -> dict[str, dict[str, list[Any]]]:
    """Returns the values of each changed field at full size and as they are run, by field: `from` and `to`."""
    found: dict[str, dict[str, list[Any]]] = {}
    for run in planned:
        if run.full_size is None:
            continue
        before, after = layers.settings(run.full_size), run.settings
        for name in _FIELDS:
            values = {"from": getattr(before, name), "to": getattr(after, name)}
            if values["from"] != values["to"]:
                entry = found.setdefault(name, {"from": [], "to": []})
                for key, value in values.items():
                    if value is not None and value not in entry[key]:
                        entry[key].append(value)

    def size(value: float | str) -> float:
        return math.inf if isinstance(value, str) else value

    return {name: {key: sorted(values, key=size) for key, values in entry.items()} for name, entry in found.items()}


def in_words(fraction: float, changed: Mapping[str, Mapping[str, list[Any]]]) -> str:
    """Returns what was made smaller, in one paragraph."""
    parts = [
        f"{name.replace('_', ' ')} {_range(entry['from'])} → {_range(entry['to'])}" for name, entry in changed.items()
    ]
    return (
        f"Run at {fraction:g} of the full size: {'; '.join(parts)}. Cohorts of the full size are simulated by fewer "
        "clients. Accuracies are not the paper's, and say nothing about them."
    )


def _sizes(run: RunSettings, fraction: float) -> dict[str, int | None]:
    schema = run.participation()
    everyone = schema.min_sep == 1 and schema.max_participations == run.rounds
    apart = max(1, round(fraction * schema.min_sep))
    ratio = apart / schema.min_sep if schema.min_sep > 1 else fraction
    least = 1 if everyone else (schema.max_participations - 1) * apart + 1
    rounds = max(least, round(ratio * run.rounds))

    def by_ratio(value: int | None) -> int | None:
        return None if value is None else max(1, round(ratio * value))

    def examples(number: int) -> int:
        return min(number, max(_LEAST_EXAMPLES, round(fraction * number)))

    return {
        "rounds": rounds,
        "min_sep": None if run.min_sep is None else apart,
        "max_participations": rounds if everyone and run.max_participations else run.max_participations,
        "groups": None if run.groups is None else apart,
        "bands": by_ratio(run.bands),
        "restart_every": by_ratio(run.restart_every),
        "clients_per_round": max(1, round(fraction * run.clients_per_round)),
        "cohort": run.cohort or run.clients_per_round,
        "evaluate_every": by_ratio(run.evaluate_every),
        "evaluation_examples": examples(run.evaluation_examples),
        "test_examples": examples(int(TEST_EXAMPLES if run.test_examples == ALL else run.test_examples)),
    }


@functools.lru_cache(maxsize=64)
def _sensitivity(mechanism: str, setting: MechanismSetting) -> float:
    return setting.sensitivity(setting.named(mechanism)).value


def _setting(run: RunSettings) -> MechanismSetting:
    return MechanismSetting(rounds=run.rounds, participation=run.participation(), restart_every=run.restart_every)


def _range(values: list[Any]) -> str:
    if not values:
        return "none"
    shown = [
        value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
        for value in values
    ]
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"
