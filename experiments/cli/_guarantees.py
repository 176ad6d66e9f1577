"""A mechanism in its setting, as `account` and `calibrate` print it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import click

import tff_mf
from tff_mf.base import validation
from tff_mf.planning.setting import MechanismSetting

from ..runs import amplification, statements
from ..sampling.settings import SamplingSettings
from . import _screens
from ._flags import Flags

AT_EQUAL_PRIVACY = (
    "RmsLoss and MaxLoss are errors times sensitivity: they compare mechanisms at equal privacy, for the same rounds, "
    "participation and workload."
)
# What a screen shows below its figures.
STATED = ("claim", "amplified_statement")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A mechanism, the setting of its guarantee, and how cohorts are drawn if amplification is asked for.

    Attributes:
        name: Name of the mechanism on the command line.
        mechanism: The mechanism.
        setting: Its setting.
        drawn: How cohorts are drawn.
        cohorts: Population and clients per round, as far as they were given.
        says_workload: Whether a workload was asked for.
        on_grid: The grid and the number of parameters, for which every figure includes what integers cost.
    """

    name: str
    mechanism: tff_mf.Mechanism
    setting: MechanismSetting
    drawn: SamplingSettings
    cohorts: Mapping[str, int | None]
    says_workload: bool
    on_grid: Mapping[str, Any]

    def guarantee(self, noise_multiplier: float) -> tff_mf.Guarantee:
        """Returns the guarantee for whoever knows the cohorts."""
        return self.setting.guarantee(self.mechanism, noise_multiplier, **self.on_grid)

    def sensitivity(self) -> dict[str, Any]:
        """Returns the sensitivity of C as it runs, and the rule that gave it."""
        found = self.setting.sensitivity(self.mechanism.cast_to_float32())
        return {
            "sensitivity": found.value,
            **replace_one(self.setting, found.value),
            "sensitivity_exact": found.exact,
            "sensitivity_rule": found.rule,
        }

    def described(self) -> dict[str, Any]:
        """Returns the setting of the guarantee."""
        return described(self.setting)

    def charge(self, noise_multiplier: float) -> dict[str, Any]:
        """Returns the grid and what its integers cost, which is part of every figure; nothing for real numbers."""
        found, grid = self.setting.charge(self.mechanism, noise_multiplier, **self.on_grid), self.on_grid["grid"]
        if found is None or grid is None:
            return {}
        return {
            "grid_bits": grid.bits,
            "dimension": self.on_grid["dimension"],
            "grid_mu": found.mu,
            "grid_tail": found.tail,
        }

    def errors(self, noise_multiplier: float) -> dict[str, Any]:
        """Returns the standard deviation of the noise in the rows of the workload, in clip norms, if one was given."""
        if not self.says_workload:
            return {}
        error = self.setting.errors(self.mechanism)
        assert self.setting.workload is not None
        return {
            "workload": repr(self.setting.workload),
            "rms_error": noise_multiplier * error.rms,
            "max_error": noise_multiplier * error.max,
        }

    def amplified(self, noise_multiplier: float, delta: float) -> dict[str, Any]:
        """Returns ε with amplification, in its own entries, if the sampling amplifies where cohorts are secret."""
        if not self.drawn.is_secret:
            return {}
        found = amplification.in_secret(
            self.mechanism,
            self.setting.rounds,
            self.drawn,
            population=self.cohorts["population"],
            clients_per_round=self.cohorts["clients_per_round"],
            noise_multiplier=noise_multiplier,
            delta=delta,
            **self.on_grid,
        )
        return {
            "amplified_epsilon": found.epsilon,
            "amplified_bound": found.level.theorem,
            "amplified_failure": found.level.failure,
            "amplified_statement": found.statement,
        }

    def calibrated(self, epsilon: float, delta: float, population: int | None) -> dict[str, Any]:
        """Returns the noise multiplier of a target with its guarantee, and the amplified one in its own entries."""
        multiplier = self.setting.noise_multiplier(self.mechanism, epsilon=epsilon, delta=delta, **self.on_grid)
        run = self.guarantee(multiplier)
        return {
            **self.charge(multiplier),
            "noise_multiplier": multiplier,
            "effective_noise_multiplier": run.effective_noise_multiplier,
            "mu": run.mu,
            "zcdp_rho": run.zcdp_rho,
            "epsilon": run.epsilon(delta),
            "delta": delta,
            **self.errors(multiplier),
            **self._calibrated_amplified(epsilon, delta),
            "claim": statements.facts(statements.of_setting(self.setting, run, delta=delta, population=population)),
        }

    def _calibrated_amplified(self, epsilon: float, delta: float) -> dict[str, Any]:
        """Returns the noise multiplier with amplification, and its ε with and without, if the sampling amplifies."""
        if not self.drawn.is_secret:
            return {}
        multiplier = tff_mf.calibrate_noise_multiplier(
            self.mechanism,
            self.setting.rounds,
            self.drawn.drawn_by(
                population=self.cohorts["population"], clients_per_round=self.cohorts["clients_per_round"]
            ),
            epsilon=epsilon,
            delta=delta,
            **self.on_grid,
        )
        known = self.guarantee(multiplier).epsilon(delta)
        return {
            "amplified_noise_multiplier": multiplier,
            **self.amplified(multiplier, delta),
            "epsilon_if_cohorts_are_known": known,
        }

    def report(self, result: Mapping[str, Any], *, as_json: bool) -> None:
        """Prints a result; in text, its statements are paragraphs."""
        words: dict[str, Any] = {
            "mechanism": title(self.name, self.mechanism),
            "sensitivity_exact": None,
            "sensitivity_rule": exactness(result),
            **in_words(self.setting),
            **unstated(result),
            **dict.fromkeys(STATED),
        }
        if not self.says_workload:
            words["workload"] = None
        _screens.report(stated(result) if as_json else result, as_json=as_json, words=words, below=said(result))


def check_amplified(drawn: SamplingSettings, *, adjacency: str, restart_every: int | None) -> None:
    """Refuses what no theorem here amplifies."""
    for flag, given in (("--adjacency replace-one", adjacency != "zero-out"), ("--restart-every", restart_every)):
        if given:
            raise click.UsageError(
                f"--sampling {drawn.sampling} does not go with {flag}: no theorem here covers both; leave one out."
            )


def found(file: str, flags: Flags) -> Found:
    """Returns the mechanism and the setting that flags name; participation is never guessed."""
    assert flags.rounds is not None
    drawn, setting = flags.drawn(), flags.setting()
    if drawn.is_secret:
        check_amplified(drawn, adjacency=flags.adjacency, restart_every=flags.restart_every)
    cohorts = {"population": flags.population, "clients_per_round": flags.clients_per_round}
    for name, value in cohorts.items():
        if value is not None:
            validation.whole(name, value)
    return Found(
        name=file,
        mechanism=flags.named(file, setting),
        setting=setting,
        drawn=drawn,
        cohorts=cohorts,
        says_workload=flags.workload is not None,
        on_grid=flags.on_grid(),
    )


def title(name: str, mechanism: tff_mf.Mechanism) -> str:
    """Returns the name of a mechanism, with its kind unless the name contains it."""
    kind = mechanism.kind.replace("_", "-")
    return name if name.startswith(kind) else f"{name}, {kind}"


def described(setting: MechanismSetting) -> dict[str, Any]:
    """Returns a setting as entries of a result."""
    schema = setting.participation
    return {
        "rounds": setting.rounds,
        "participation": type(schema).__name__,
        "min_sep": schema.min_sep,
        "max_participations": schema.max_participations,
        "restart_every": setting.restart_every,
        "adjacency": setting.adjacency,
    }


def in_words(setting: MechanismSetting) -> dict[str, Any]:
    """Returns a setting as text, in place of the entries of `described`."""
    workload = tff_mf.PrefixSum() if setting.workload is None else setting.workload
    schema = setting.participation
    return {
        "participation": "each client at most once"
        if schema.max_participations == 1
        else str(statements.bound_in(setting)),
        "min_sep": None,
        "max_participations": None,
        "restart_every": None,
        "workload": _screens.workload(workload),
    }


def replace_one(setting: MechanismSetting, sensitivity: float) -> dict[str, float]:
    """Returns the sensitivity for replace-one if that is the adjacency; `sensitivity` is for zero-out."""
    return {"sensitivity_replace_one": 2 * sensitivity} if setting.adjacency == "replace-one" else {}


def said(result: Mapping[str, Any]) -> list[str]:
    """Returns the guarantee of a result in a line, and the amplified one if it has one."""
    amplified = [result["amplified_statement"]] if "amplified_statement" in result else []
    return [*([statements.line(result["claim"])] if "claim" in result else []), *amplified]


def stated(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a result as JSON, without any ε if its claim is refused."""
    return statements.without_epsilon(result) if unstated(result) else result


def unstated(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns the text in place of each finite ε if the claim is refused."""
    if result.get("claim", {}).get("state") != statements.REFUSED:
        return {}
    names = [name for name in result if name.removeprefix("amplified_").startswith("epsilon")]
    return {name: "not stated" for name in names if math.isfinite(result[name])}


def exactness(result: Mapping[str, Any]) -> str:
    """Returns the rule of a sensitivity, and whether it is exact, in words."""
    rule = result["sensitivity_rule"]
    if result["sensitivity_exact"]:
        return f"exact; {rule}"
    return rule if "upper bound" in rule else f"an upper bound; {rule}"
