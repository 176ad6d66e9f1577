"""`tff-mf account`, and what other commands say of a mechanism in the setting of the flags."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import rich_click as click

import tff_mf
from tff_mf.accounting import Question
from tff_mf.base import validation
from tff_mf.planning import MechanismSetting

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


@_options.command
@_options.mechanism
@_options.options(
    *(*_options.LEVEL, *_options.SETTING, *_options.COHORTS, "grid", "dimension"),
    required=("rounds", "delta"),
    more=(*_options.MORE, "bands", "buffers"),
)
def account(file: str, **given: Any) -> Answer:
    """Print the guarantee of a run for each client, in one line and in figures.

    With --epsilon in place of --noise-multiplier, it is of the smallest noise multiplier with which a run stays within
    (ε, δ). With --sampling, amplified figures are added to the others: they hold only if cohorts are drawn at random
    and remain secret. With --workload, the error of the released values is added, in clip norms.
    """
    flags = Flags.of(given)
    sigma, epsilon, delta = flags.noise_multiplier, flags.epsilon, flags.delta
    if (sigma is None) == (epsilon is None):
        raise click.UsageError("give either --noise-multiplier, or --epsilon for the smallest that reaches it.")
    assert delta is not None
    # All of it before a search; participation is never guessed.
    flags.check_amplified()
    drawn, setting = flags.drawn(), flags.setting()
    if sigma is not None:
        validation.positive("noise_multiplier", sigma)
    asked = Asked(mechanism=flags.named(file, setting), setting=setting, flags=flags, drawn=drawn)
    facts = {**asked.described(), **asked.sensitivity()}
    if epsilon is not None:
        facts |= asked.calibrated(epsilon, delta)
    elif sigma is not None:
        facts |= {**asked.noised(sigma, delta), **asked.compared(sigma, delta), **asked.amplified(sigma, delta)}
    words = {"mechanism": title(file, asked.mechanism)}
    claim = asked.claim(facts["noise_multiplier"], delta)
    return asked.answer(facts, words, claim=claim, first=[] if epsilon is None else ["noise_multiplier"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A mechanism in a setting, of which figures are asked.

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

    @functools.cached_property
    def question(self) -> Question:
        """The question about a run whose cohorts are known."""
        return self.setting.question(self.mechanism)

    @functools.cached_property
    def secret(self) -> Question | None:
        """The question about a run with secret cohorts; `None` if the sampling amplifies nothing."""
        if self.drawn is None or not self.drawn.is_secret:
            return None
        return dataclasses.replace(self.question, sampling=self.drawn.drawn_by(**self.flags.cohorts))

    def described(self) -> dict[str, Any]:
        """Returns the kind of the mechanism and its setting."""
        return {"mechanism": self.mechanism.kind, **described(self.setting)}

    def sensitivity(self) -> dict[str, Any]:
        """Returns the sensitivity of C as it runs, in float32, and the rule that gave it."""
        as_run = self.question.sensitivity
        other = {"sensitivity_replace_one": 2 * as_run.value} if self.setting.adjacency == "replace-one" else {}
        return {
            "sensitivity": as_run.value,
            **other,
            "sensitivity_exact": as_run.exact,
            "sensitivity_rule": as_run.rule,
        }

    def losses(self) -> dict[str, Any]:
        """Returns the sensitivity of C as stored and as it runs, and the losses for the workload."""
        stored, error = self.setting.sensitivity(self.mechanism), self.setting.errors(self.mechanism)
        as_run = self.sensitivity()
        return {
            "workload": repr(workload_of(self.setting)),
            "sensitivity": stored.value,
            "sensitivity_as_run": as_run.pop("sensitivity"),
            **as_run,
            "rms_loss": stored.value * error.rms,
            "max_loss": stored.value * error.max,
        }

    def noised(self, noise_multiplier: float, delta: float) -> dict[str, Any]:
        """Returns the guarantee of σ for whoever knows the cohorts, with what a grid costs, and the error."""
        run, charge, grid = self.question.guarantee(noise_multiplier), self.question.charge(noise_multiplier), {}
        if charge is not None and self.setting.grid is not None:
            grid = {"grid_bits": self.setting.grid.bits, "dimension": self.setting.dimension}
            grid |= {"grid_mu": charge.mu, "grid_tail": charge.tail}
        return {
            **grid,
            "noise_multiplier": noise_multiplier,
            "effective_noise_multiplier": run.effective_noise_multiplier,
            **self._errors(noise_multiplier),
            "mu": run.mu,
            "zcdp_rho": run.zcdp_rho,
            "delta": delta,
            "epsilon": run.epsilon(delta),
            "claim": statements.facts(self.claim(noise_multiplier, delta)),
        }

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

    def claim(self, noise_multiplier: float, delta: float) -> statements.Claim:
        """Returns the claim of σ for whoever knows the cohorts."""
        guarantee = self.question.guarantee(noise_multiplier)
        return statements.of_setting(self.setting, guarantee, delta=delta, **self.flags.cohorts)

    def compared(self, noise_multiplier: float, delta: float) -> dict[str, Any]:
        """Returns ε as others compute it."""
        run = self.question.guarantee(noise_multiplier)
        return {"epsilon_by_pld": run.epsilon_by_pld(delta), "epsilon_from_zcdp": run.epsilon_from_zcdp(delta)}

    def amplified(self, noise_multiplier: float, delta: float) -> dict[str, Any]:
        """Returns ε with amplification, in its own entries, if the sampling amplifies where cohorts are secret."""
        if self.secret is None or self.drawn is None:
            return {}
        level, rounds = self.secret.guarantee(noise_multiplier).at(delta=delta), self.setting.rounds
        return {
            "amplified_epsilon": level.epsilon,
            "amplified_bound": level.theorem,
            "amplified_failure": level.failure,
            "amplified_statement": amplification.statement(
                level, self.drawn, rounds=rounds, **self.flags.cohorts, grid=self.setting.grid
            ),
        }

    def calibrated(self, epsilon: float, delta: float) -> dict[str, Any]:
        """Returns the noise multiplier of a target with its guarantee, and the amplified one in its own entries."""
        facts = self.noised(self.question.noise_multiplier(epsilon=epsilon, delta=delta), delta)
        if self.secret is None:
            return facts
        sigma = self.secret.noise_multiplier(epsilon=epsilon, delta=delta)
        return {
            **facts,
            "amplified_noise_multiplier": sigma,
            **self.amplified(sigma, delta),
            "epsilon_if_cohorts_are_known": self.question.guarantee(sigma).epsilon(delta),
        }

    def answer(
        self,
        facts: Mapping[str, Any],
        words: Mapping[str, str | None],
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
            "participation": statements.participation(self.setting),
            **dict.fromkeys(("min_sep", "max_participations", "restart_every")),
            **({"workload": workload(self.setting)} if "workload" in facts else {}),
            **dict.fromkeys(("claim", "amplified_statement", "sensitivity_exact")),
            "sensitivity_rule": exactness(facts),
            **{name: "not stated" for name in names if math.isfinite(facts[name])},
            **words,
        }
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


def workload_of(setting: MechanismSetting) -> tff_mf.Workload:
    """Returns the workload that losses are for."""
    return tff_mf.PrefixSum() if setting.workload is None else setting.workload


def workload(setting: MechanismSetting) -> str:
    """Returns the workload of a setting in words.

    Example:
        >>> schema = tff_mf.SingleParticipation()
        >>> workload(MechanismSetting(rounds=4, participation=schema, workload=tff_mf.Momentum(momentum=0.9)))
        'prefix sums with Momentum(momentum=0.9)'
    """
    usual = isinstance(workload_of(setting), tff_mf.PrefixSum)
    return "prefix sums" if usual else f"prefix sums with {setting.workload}"


def exactness(facts: Mapping[str, Any]) -> str:
    """Returns the rule of a sensitivity, and whether it is exact, in words."""
    rule = facts["sensitivity_rule"]
    if facts["sensitivity_exact"]:
        return f"exact; {rule}"
    return rule if "upper bound" in rule else f"an upper bound; {rule}"
