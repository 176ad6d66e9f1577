"""What a command answers: facts for programs, and the same in words, with labels and the digits that mean something."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import msgspec

import tff_mf
from tff_mf.base import strict_json
from tff_mf.numerics import digits
from tff_mf.planning import MechanismSetting

from ..output import console, typed
from ..output.console import Block, Facts
from ..runs import folders, statements
from ..runs.settings import Layer, Preset

_MOST_LISTED = 8
_YES_NO = {True: "yes", False: "no", None: "–"}

# Rounded up, so that a copied value is safe.
_UPWARDS = (
    *("epsilon", "zcdp_rho", "mu", "noise_multiplier"),
    *("amplified_epsilon", "amplified_noise_multiplier", "epsilon_if_cohorts_are_known"),
)
_SIX_UPWARDS = functools.partial(digits.upwards, digits=6)
# Losses are close to each other, and used in calculations.
_ROUNDED: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(_UPWARDS, digits.upwards),
    **dict.fromkeys(("sensitivity", "sensitivity_as_run"), _SIX_UPWARDS),
    "effective_noise_multiplier": digits.downwards,
    "seconds": functools.partial(digits.nearest, digits=2),
    "delta": repr,
    "momentum": repr,
}
_LABELS = {
    "mu": "μ of Gaussian DP",
    "zcdp_rho": "ρ of zCDP",
    "epsilon": "ε",
    "delta": "δ",
    "grid_bits": "bits of the grid",
    "dimension": "model parameters",
    "noise_multiplier": "noise multiplier σ",
    "effective_noise_multiplier": "effective σ",
    "sensitivity_as_run": "as run, in float32",
    "sensitivity_rule": "rule",
    "rms_loss": "RmsLoss",
    "max_loss": "MaxLoss",
    "duality_gap": "relative duality gap",
    "out": "file",
    "message": "search",
    "amplified_noise_multiplier": "amplified σ",
    "amplified_epsilon": "amplified ε",
    "epsilon_if_cohorts_are_known": "ε if cohorts are known",
}
_AT_EQUAL_PRIVACY = (
    "RmsLoss and MaxLoss are errors times sensitivity: they compare mechanisms at equal privacy, for the same rounds, "
    "participation and workload."
)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command found.

    Attributes:
        facts: For programs, with all digits; what is unbounded is null.
        words: The same for people.
        failed: Whether the exit status is 1.
    """

    facts: Mapping[str, Any]
    words: Sequence[Block]
    failed: bool = False

    def show(self, *, as_json: bool) -> None:
        """Prints the facts as one JSON object, or the words as wide as the terminal."""
        if as_json:
            click.echo(json.dumps(strict_json.finite(self.facts), allow_nan=False))
        else:
            console.show(self.words)
        if self.failed:
            raise SystemExit(1)


def figures(result: Mapping[str, Any], words: Mapping[str, str | None] | None = None) -> Facts:
    """Returns a label and a text for each entry of a result, with `words` in place of values; None is left out."""
    shown = {**result, **(words or {})}
    rows = [(_LABELS.get(name, name.replace("_", " ")), _words(name, shown[name])) for name in shown]
    return Facts([(label, text) for label, text in rows if text])


def line(name: str, value: Any) -> str:
    """Returns the label of an entry of a result, and its text."""
    ((label, text),) = figures({name: value}).rows
    return f"{label} {text}"


def title(name: str, mechanism: tff_mf.Mechanism) -> str:
    """Returns the name of a mechanism, with its kind unless the name contains it."""
    kind = mechanism.kind.replace("_", "-")
    return name if name.startswith(kind) else f"{name}, {kind}"


def described(rounds: int, schema: tff_mf.Participation) -> dict[str, Any]:
    """Returns rounds and participation as entries of a result."""
    return {"rounds": rounds, **folders.named(schema)}


def sensitivity(mechanism: tff_mf.Mechanism, rounds: int, schema: tff_mf.Participation) -> dict[str, Any]:
    """Returns the sensitivity of C as it runs, in float32, and the rule that gave it."""
    as_run = MechanismSetting(rounds=rounds, participation=schema).sensitivity(mechanism.cast_to_float32())
    return {"sensitivity": as_run.value, "sensitivity_exact": as_run.exact, "sensitivity_rule": as_run.rule}


def losses(mechanism: tff_mf.Mechanism, setting: MechanismSetting) -> dict[str, Any]:
    """Returns the sensitivity of C as stored and as it runs, and the losses for the workload."""
    stored, error = setting.sensitivity(mechanism), setting.errors(mechanism)
    as_run = sensitivity(mechanism, setting.rounds, setting.participation)
    return {
        "workload": repr(workload_of(setting)),
        "sensitivity": stored.value,
        "sensitivity_as_run": as_run.pop("sensitivity"),
        **as_run,
        "rms_loss": stored.value * error.rms,
        "max_loss": stored.value * error.max,
    }


def of_mechanism(
    facts: Mapping[str, Any], setting: MechanismSetting, words: Mapping[str, str | None], *, first: str
) -> Answer:
    """Returns the answer about a mechanism: the entry `first` and the losses before all others."""
    usual = isinstance(workload_of(setting), tff_mf.PrefixSum)
    shown = {
        "mechanism": facts["mechanism"].replace("_", "-"),
        "participation": statements.bound_to(setting.participation),
        **dict.fromkeys(("min_sep", "max_participations", "sensitivity_exact")),
        "workload": "prefix sums" if usual else f"prefix sums with {facts['workload']}",
        "sensitivity_rule": exactness(facts),
        **words,
    }
    asked = ", ".join(line(name, facts[name]) for name in (first, "rms_loss", "max_loss"))
    return Answer(facts, [asked, figures(facts, shown), _AT_EQUAL_PRIVACY])


def workload_of(setting: MechanismSetting) -> tff_mf.Workload:
    """Returns the workload that losses are for."""
    return tff_mf.PrefixSum() if setting.workload is None else setting.workload


def exactness(facts: Mapping[str, Any]) -> str:
    """Returns the rule of a sensitivity, and whether it is exact, in words."""
    rule = facts["sensitivity_rule"]
    if facts["sensitivity_exact"]:
        return f"exact; {rule}"
    return rule if "upper bound" in rule else f"an upper bound; {rule}"


def settings(preset: Preset | None, layer: Layer, kind: type[typed.Record]) -> Answer:
    """Returns the settings of a run, which are checked if none is missing, and where each is from."""
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    if required <= layer.values.keys() and layer.values.keys() & {"epsilon", "noise_multiplier"}:
        layer.settings(kind).check()
    shown = layer.shown(kind)
    facts: dict[str, Any] = {"run": shown}
    about = []
    if preset:
        row = preset.row_of(layer.values)
        facts |= {"preset": preset.name, "title": preset.title, "paper": preset.paper, "notes": preset.notes}
        about = [f"{preset.name}: {preset.title}. {preset.paper}.", preset.notes]
        if row:
            facts["published"] = dict(row.published)
            results = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.published.items())
            about.append(f"published ({row.source}): {results}" if results else "")
    texts = typed.described(kind)
    rows = []
    for name, each in shown.items():
        value = each["value"]
        word = _YES_NO[value] if value is None or isinstance(value, bool) else value
        rows.append((name, f"{word} ({each['source']}). {texts.get(name, '')}"))
    return Answer(facts, [*about, Facts(rows)])


def _words(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return _YES_NO[value]
    if isinstance(value, float):
        return _ROUNDED.get(name, digits.nearest)(value)
    return _listed(value) if isinstance(value, list | tuple) else str(value)


def _listed(values: Sequence[Any]) -> str:
    if not all(isinstance(value, int | float) for value in values):
        return ", ".join(map(str, values))
    if all(isinstance(value, int) for value in values):
        return f"{' × '.join(map(str, values))} numbers"
    if len(values) <= _MOST_LISTED:
        return ", ".join(map(digits.parameter, values))
    return f"{len(values)} numbers, from {digits.parameter(values[0])} to {digits.parameter(values[-1])}"
