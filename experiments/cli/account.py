"""`tff-mf account`, and what other commands say of a mechanism in the setting of the flags."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import rich_click as click

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.planning import MechanismSetting
from tff_mf.sensitivities import SensitivityResult

from ..runs import amplification, statements
from ..sampling.settings import SamplingSettings
from . import _options
from ._flags import Flags
from ._screens import Answer, figures

LOSSES = ("rms_loss", "max_loss")
AT_EQUAL_PRIVACY = (
    "RmsLoss and MaxLoss are errors times sensitivity: they compare mechanisms at equal privacy, for the same rounds, "
    "participation and workload."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A mechanism in a setting.

    Attributes:
        mechanism: The mechanism.
        setting: Its setting, with the grid whose cost is in every figure.
        flags: The flags, with the cohorts.
        drawn: How cohorts are drawn; `None` if that was assumed, or does not matter.
    """

    mechanism: tff_mf.Mechanism
    setting: MechanismSetting
    flags: Flags
    drawn: SamplingSettings | None = None

    def described(self) -> dict[str, Any]:
        """Returns the kind of the mechanism and its setting."""
        return {"mechanism": self.mechanism.kind, **described(self.setting)}

    def sensitivity(self) -> dict[str, Any]:
        """Returns the sensitivity of C as it runs, and the rule that gave it."""
        found = self.setting.sensitivity(self.mechanism.cast_to_float32())
        return {"sensitivity": found.value, **self._rule(found, found.value)}

    def losses(self) -> dict[str, Any]:
        """Returns the sensitivity of C as stored and as it runs, and the losses for the workload."""
        found, error = self.setting.sensitivity(self.mechanism), self.setting.errors(self.mechanism)
        # The sensitivity of the parameters in float32, with which the noise runs: the accounting uses it.
        as_float32 = self.setting.sensitivity(self.mechanism.cast_to_float32()).value
        return {
            "workload": repr(workload_of(self.setting)),
            "sensitivity": found.value,
            "sensitivity_as_run": as_float32,
            **self._rule(found, as_float32),
            "rms_loss": found.value * error.rms,
            "max_loss": found.value * error.max,
        }

    def noised(self, noise_multiplier: float, delta: float) -> dict[str, Any]:
        """Returns the guarantee of σ for whoever knows the cohorts, with what a grid costs, and the error."""
        run = self._guarantee(noise_multiplier)
        return {
            **self._charge(noise_multiplier),
            "noise_multiplier": noise_multiplier,
            "effective_noise_multiplier": run.effective_noise_multiplier,
            **self._errors(noise_multiplier),
            "mu": run.mu,
            "zcdp_rho": run.zcdp_rho,
            "delta": delta,
            "epsilon": run.epsilon(delta),
            "claim": statements.facts(self.claim(noise_multiplier, delta)),
        }

    def claim(self, noise_multiplier: float, delta: float) -> statements.Claim:
        """Returns the claim of σ for whoever knows the cohorts."""
        guarantee = self._guarantee(noise_multiplier)
        return statements.of_setting(self.setting, guarantee, delta=delta, **self.flags.cohorts)

    def _guarantee(self, noise_multiplier: float) -> tff_mf.Guarantee:
        return self.setting.guarantee(self.mechanism, noise_multiplier)

    def compared(self, noise_multiplier: float, delta: float) -> dict[str, Any]:
        """Returns ε as others compute it."""
        run = self._guarantee(noise_multiplier)
        return {"epsilon_by_pld": run.epsilon_by_pld(delta), "epsilon_from_zcdp": run.epsilon_from_zcdp(delta)}

    def amplified(self, noise_multiplier: float, delta: float) -> dict[str, Any]:
        """Returns ε with amplification, in its own entries, if the sampling amplifies where cohorts are secret."""
        if self.drawn is None or not self.drawn.is_secret:
            return {}
        rounds, cohorts = self.setting.rounds, self.flags.cohorts
        level = tff_mf.guarantee(
            self.mechanism,
            rounds,
            self.drawn.drawn_by(**cohorts),
            noise_multiplier=noise_multiplier,
            grid=self.setting.grid,
            dimension=self.setting.dimension,
        ).at(delta=delta)
        return {
            "amplified_epsilon": level.epsilon,
            "amplified_bound": level.theorem,
            "amplified_failure": level.failure,
            "amplified_statement": amplification.statement(
                level, self.drawn, rounds=rounds, **cohorts, grid=self.setting.grid
            ),
        }

    def calibrated(self, epsilon: float, delta: float) -> dict[str, Any]:
        """Returns the noise multiplier of a target with its guarantee, and the amplified one in its own entries."""
        target = {"epsilon": epsilon, "delta": delta}
        found = self.noised(self.setting.noise_multiplier(self.mechanism, **target), delta)
        if self.drawn is None or not self.drawn.is_secret:
            return found
        multiplier = tff_mf.calibrate_noise_multiplier(
            self.mechanism,
            self.setting.rounds,
            self.drawn.drawn_by(**self.flags.cohorts),
            **target,
            grid=self.setting.grid,
            dimension=self.setting.dimension,
        )
        return {
            **found,
            "amplified_noise_multiplier": multiplier,
            **self.amplified(multiplier, delta),
            "epsilon_if_cohorts_are_known": self._guarantee(multiplier).epsilon(delta),
        }

    def answer(
        self,
        facts: Mapping[str, Any],
        words: Mapping[str, str | None] | None = None,
        *,
        claim: statements.Claim | None = None,
        first: Sequence[str] = (),
        below: Sequence[str] = (),
    ) -> Answer:
        """Returns an answer: what was asked for and its guarantee first; without any ε, and failed, if that is refused.

        `words` stand in place of some facts on a screen, `claim` is of the noise if there is any, `first` names those
        that were asked for, and paragraphs of `below` come last.
        """
        refused = claim is not None and claim.state == statements.REFUSED
        names = [name for name in facts if name.removeprefix("amplified_").startswith("epsilon")] if refused else []
        shown: dict[str, str | None] = {
            "mechanism": self.mechanism.kind.replace("_", "-"),
            **_in_words(self.setting),
            **dict.fromkeys(("claim", "amplified_statement", "sensitivity_exact")),
            "sensitivity_rule": exactness(facts) if "sensitivity_rule" in facts else None,
            **{name: "not stated" for name in names if math.isfinite(facts[name])},
            **(words or {}),
        }
        if "workload" not in facts:
            del shown["workload"]
        asked = figures({name: facts[name] for name in first if name in facts and not refused})
        headline = [", ".join(map(" ".join, asked.rows)), "" if claim is None else statements.line(claim)]
        blocks = [
            ": ".join(filter(None, headline)),
            figures(facts, shown),
            facts.get("amplified_statement", ""),
            *below,
            f"Not checked: {'; '.join(claim.not_checked)}." if claim is not None and claim.not_checked else "",
        ]
        return Answer(statements.without_epsilon(facts) if refused else facts, blocks, failed=refused)

    def _charge(self, noise_multiplier: float) -> dict[str, Any]:
        """Returns the grid and what its integers cost, which is part of every figure; nothing for real numbers."""
        found, grid = self.setting.charge(self.mechanism, noise_multiplier), self.setting.grid
        if found is None or grid is None:
            return {}
        dimension = self.setting.dimension
        return {"grid_bits": grid.bits, "dimension": dimension, "grid_mu": found.mu, "grid_tail": found.tail}

    def _errors(self, noise_multiplier: float) -> dict[str, Any]:
        """Returns the standard deviation of the noise in the rows of the workload, in clip norms, if one was given."""
        if self.flags.workload is None:
            return {}
        error = self.setting.errors(self.mechanism)
        return {
            "workload": repr(self.setting.workload),
            "rms_error": noise_multiplier * error.rms,
            "max_error": noise_multiplier * error.max,
        }

    def _rule(self, found: SensitivityResult, as_run: float) -> dict[str, Any]:
        """Returns the rule of a sensitivity, which is for zero-out, and the value for replace-one if that is asked."""
        other = {"sensitivity_replace_one": 2 * as_run} if self.setting.adjacency == "replace-one" else {}
        return {**other, "sensitivity_exact": found.exact, "sensitivity_rule": found.rule}


def found(file: str, flags: Flags) -> Found:
    """Returns the mechanism and the setting that flags name; participation is never guessed."""
    drawn, setting = flags.drawn(), flags.setting()
    # Before a search.
    flags.check_amplified()
    return Found(mechanism=flags.named(file, setting), setting=setting, flags=flags, drawn=drawn)


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


def workload(setting: MechanismSetting) -> str:
    """Returns the workload of a setting in words.

    Example:
        >>> schema = tff_mf.SingleParticipation()
        >>> momentum = tff_mf.Momentum(momentum=0.9)
        >>> workload(MechanismSetting(rounds=4, participation=schema, workload=momentum))
        'prefix sums with momentum 0.9'
    """
    value, parts = workload_of(setting), []
    if isinstance(value, tff_mf.Momentum | tff_mf.MomentumWithRates):
        parts.append(f"momentum {value.momentum}")
    if isinstance(value, tff_mf.LearningRates):
        rates = value.rates
        if isinstance(rates, tff_mf.LinearSchedule):
            how = f"that rise for {rates.warmup_rounds} rounds and fall for {rates.cooldown_rounds}"
        else:
            how = f"of {len(rates)} rounds"
        parts.append(f"learning rates {how}")
    return f"prefix sums with {' and '.join(parts)}" if parts else "prefix sums"


def exactness(result: Mapping[str, Any]) -> str:
    """Returns the rule of a sensitivity, and whether it is exact, in words."""
    rule = result["sensitivity_rule"]
    if result["sensitivity_exact"]:
        return f"exact; {rule}"
    return rule if "upper bound" in rule else f"an upper bound; {rule}"


def workload_of(setting: MechanismSetting) -> tff_mf.Workload:
    """Returns the workload that losses are for."""
    return tff_mf.PrefixSum() if setting.workload is None else setting.workload


def _in_words(setting: MechanismSetting) -> dict[str, str | None]:
    """Returns a setting as text, in place of the entries of `described`."""
    return {
        "participation": statements.participation(setting),
        **dict.fromkeys(("min_sep", "max_participations", "restart_every")),
        "workload": workload(setting),
    }


@_options.command()
@_options.mechanism
@_options.option("noise_multiplier")
@_options.option("epsilon")
@_options.setting(*_options.GUARANTEE, required=("rounds",))
@_options.option("delta", required=True)
def account(file: str, noise_multiplier: float | None, epsilon: float | None, flags: Flags, delta: float) -> Answer:
    """Print the guarantee of a run for each client, in one line and in figures.

    With --epsilon in place of --noise-multiplier, it is of the smallest noise multiplier with which a run stays within
    (ε, δ). With --sampling, amplified figures are added to the others: they hold only if cohorts are drawn at random
    and remain secret. With --workload, the error of the released values is added, in clip norms.
    """
    if (noise_multiplier is None) == (epsilon is None):
        raise click.UsageError("give either --noise-multiplier, or --epsilon for the smallest that reaches it.")
    if noise_multiplier == 0:
        raise InputValueError(
            f"noise_multiplier={noise_multiplier!r}: {statements.NO_EPSILON}, there is no noise: give a σ above 0."
        )
    asked = found(file, flags)
    facts, words = {**asked.described(), **asked.sensitivity()}, {"mechanism": title(file, asked.mechanism)}
    if noise_multiplier is None:
        assert epsilon is not None
        calibrated = asked.calibrated(epsilon, delta)
        claim = asked.claim(calibrated["noise_multiplier"], delta)
        return asked.answer({**facts, **calibrated}, words, claim=claim, first=["noise_multiplier"])
    noise = (noise_multiplier, delta)
    facts |= {**asked.noised(*noise), **asked.compared(*noise), **asked.amplified(*noise)}
    return asked.answer(facts, words, claim=asked.claim(*noise))
