"""`tff-mf plan`: all mechanisms for a deployment, and the recommended one."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import rich_click as click

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.base.strict_json import finite
from tff_mf.numerics import digits
from tff_mf.planning import MechanismSetting, compare
from tff_mf.planning.compare import Option

from .. import signal_to_noise
from ..output import progress
from ..output.console import Block, Facts, Table
from ..runs import folders, statements
from ..runs.settings import AUTO, NONE, PAPERS_DIMENSION, grid_of
from ..sampling.settings import DEFAULT, SECRET, parameters_of
from . import _options, _screens, account
from ._flags import Flags
from ._screens import Answer

# Samplings that mechanisms are compared for.
_TAKEN = ("min-sep", "single", "fixed-epochs", "poisson", "cyclic-poisson", "balls-in-bins")
# Rounds times squared bands of a search that takes seconds.
_PRODUCTS_OF_A_QUICK_SEARCH = 2.5e7
_CASES = {"half_min_sep": "b/2", "twice_min_sep": "2b", "half_as_many_rounds_again": "1.5n"}
_LOSSES = (
    "Losses compare mechanisms at equal privacy. The last three columns are ε if the estimates are wrong: clients come "
    "back after b/2 or 2b rounds, or the run has 1.5n."
)


@_options.command
@_options.options(
    *(*_options.COHORTS, *_options.SETTING, *_options.LEVEL, "grid", "dimension"),
    required=("population", "clients_per_round", "rounds", "delta"),
)
@click.option("--thorough", is_flag=True, help="Also optimize mechanisms that take minutes.")
@_options.option("out")
@_options.option("plot")
def plan(thorough: bool, out: str | None, plot: str | None, **given: Any) -> Answer:
    """Compare all mechanisms before a run, and recommend one.

    If not given, --min-sep is as large as the population allows, and --max-participations follows from it. Losses are
    comparable at equal privacy. The last columns are ε at the same noise if clients take part after half or twice as
    many rounds, as often as possible, or if the run is longer; ∞ if the mechanism cannot continue.

    With --sampling poisson, cyclic-poisson or balls-in-bins, mechanisms are compared with amplification too, which
    holds only if cohorts are drawn at random and remain secret. If not given, groups (--set) is found too, or as large
    as the population allows.

    --out writes the plan of the recommended mechanism to a folder, which `tff_mf.Plan.load` reads, for
    `private_fed_avg`, Flower and Keras. --plot draws each mechanism's loss over its memory, and ε if estimates are
    wrong.
    """
    flags = Flags.of(given)
    _check(flags)
    apart, planned = _planned(flags)
    setting = MechanismSetting(
        rounds=planned.rounds,
        participation=planned.participation,
        restart_every=planned.restart_every,
        adjacency=flags.adjacency,
        workload=flags.chosen_workload(planned.rounds),
        grid=planned.grid,
        dimension=planned.dimension,
    )
    _options.check_plot(plot)
    if out is not None:
        _check_saved(out, flags)
    with progress.bar("plan", None) as advance:
        options = compare.options(
            setting,
            delta=planned.delta,
            epsilon=flags.epsilon,
            noise_multiplier=flags.noise_multiplier,
            objective=flags.loss,
            dimension=flags.dimension,
            min_sep=apart,
            thorough=thorough,
            progress=lambda name: advance(1, name),
        )
    chosen, why = compare.recommend(options, flags.loss)
    assert chosen.mechanism is not None
    sigma = chosen.figures["noise_multiplier"]
    planned = dataclasses.replace(planned, mechanism=chosen.mechanism, noise_multiplier=sigma, why=why)
    comparison = Comparison(
        flags=flags,
        setting=setting,
        min_sep=apart,
        options=options,
        chosen=chosen,
        plan=planned,
        claim=account.Asked(mechanism=chosen.mechanism, setting=setting, flags=flags).claim(sigma, planned.delta),
        amplified=_amplified(flags, setting, planned, apart, thorough=thorough) if flags.sampling in SECRET else None,
    )
    if out is not None:
        planned.save(out)
    if plot is not None:
        from .. import plots

        title = plots.setting(setting.rounds, setting.participation)
        plots.draw_comparison(options, chosen.name, flags.loss, comparison.least_loss, plot, title=title)
    if comparison.signal is not None and comparison.signal.hopeless:
        click.echo(signal_to_noise.warning(comparison.signal), err=True)
    return Answer(comparison.facts(), comparison.words(written=", ".join(filter(None, (out, plot)))))


def _check(flags: Flags) -> None:
    """Refuses samplings that nothing is compared for, and what does not go with them."""
    word = flags.sampling or DEFAULT
    if word not in _TAKEN:
        raise InputValueError(f"sampling={word!r} is none of {', '.join(_TAKEN)}; `tff-mf account` accepts others.")
    # What is not given follows from the population; the rest is checked.
    flags.drawn(**dict.fromkeys(parameters_of(word), 1))
    if word in SECRET:
        flags.check_amplified()
        flags.check_prefix_sums()
        if flags.epsilon is None:
            raise click.UsageError(f"--epsilon is missing: with --sampling {word}, mechanisms are made for an ε.")


def _planned(flags: Flags) -> tuple[int, tff_mf.Plan]:
    """Returns min-sep, and the plan without its mechanism and σ: it refuses what the population does not allow.

    Clients come as far apart and as often as they can, unless something is given. A client that comes once has a
    min-sep too, from which the cases of wrong estimates start.
    """
    rounds, population, cohort, delta = flags.rounds, flags.population, flags.clients_per_round, flags.delta
    assert rounds is not None
    assert population is not None
    assert cohort is not None
    assert delta is not None
    compare.widest(population, clients_per_round=cohort, rounds=rounds)
    name, most_apart = "groups" if flags.sampling == "balls-in-bins" else "min_sep", population // cohort
    apart = flags.parameters.get(name, most_apart)
    if apart > most_apart:
        raise InputValueError(
            f"{name}={apart} with clients_per_round={cohort} needs {apart * cohort} clients, and "
            f"population={population}: take at most {name}={most_apart}."
        )
    apart = min(apart, rounds)
    as_often = compare.participations(rounds, apart)
    most = 1 if flags.sampling == "single" else flags.max_participations or as_often
    kind = tff_mf.FixedEpoch if flags.sampling == "fixed-epochs" else tff_mf.MinSep
    dimension = PAPERS_DIMENSION if flags.dimension is None else flags.dimension
    grid = grid_of(AUTO if flags.grid is None else flags.grid, dimension=dimension, cohort=cohort)
    return apart, tff_mf.Plan(
        mechanism=tff_mf.Identity(),
        rounds=rounds,
        sampling=compare.schema(apart, min(most, as_often), kind=kind),
        noise_multiplier=1.0,
        delta=delta,
        clients_per_round=cohort,
        cohort=cohort,
        population=population,
        restart_every=flags.restart_every,
        grid=grid,
        dimension=None if grid is None else dimension,
        target_epsilon=flags.epsilon,
    )


def _check_saved(out: str, flags: Flags) -> None:
    """Refuses a plan that no file can hold, whose noise would not be the run's, or in a folder that has something."""
    if flags.sampling in SECRET:
        raise InputValueError(f"out={out!r} does not go with sampling={flags.sampling!r}: a saved plan is for min-sep.")
    for name, saved in (("adjacency", "zero-out"), ("workload", "prefix-sum")):
        if getattr(flags, name) not in (None, saved):
            raise InputValueError(
                f"out={out!r} does not go with {name}={getattr(flags, name)!r}: a saved plan is for {saved!r}."
            )
    if flags.dimension is None and flags.grid != NONE:
        raise InputValueError(
            f"out={out!r} needs dimension, the number of the model's parameters, on which the noise of a grid depends; "
            "or grid='none'."
        )
    folders.check_new(pathlib.Path(out))


def _amplified(
    flags: Flags, setting: MechanismSetting, planned: tff_mf.Plan, apart: int, *, thorough: bool
) -> dict[str, Any]:
    """Returns the plan with amplification; groups that are not given are found, or as many as the population fits."""
    level: dict[str, Any] = {"rounds": planned.rounds, "epsilon": flags.epsilon, "delta": planned.delta}
    groups = {"groups": apart} if flags.sampling == "balls-in-bins" else {}
    if flags.sampling == "cyclic-poisson" and flags.groups is None:
        numbers = [2**power for power in range(apart.bit_length())]
        quick = [bands for bands in numbers if thorough or planned.rounds * bands**2 <= _PRODUCTS_OF_A_QUICK_SEARCH]
        groups = {"groups": tff_mf.amplified_bands(**flags.cohorts, **level, bands=quick)[0].bands}
    drawn, on_grid = flags.drawn(**groups), {"grid": planned.grid, "dimension": planned.dimension}
    sampling = drawn.drawn_by(**flags.cohorts)
    secret = tff_mf.plan(**level, **flags.cohorts, **on_grid, sampling=sampling, secret_cohorts=True)
    asked = account.Asked(mechanism=secret.mechanism, setting=setting, flags=flags, drawn=drawn)
    sigma = secret.noise_multiplier
    return {
        "why": secret.why,
        "sampling": str(sampling),
        "amplified_noise_multiplier": sigma,
        **asked.amplified(sigma, planned.delta),
        "epsilon_if_cohorts_are_known": asked.question.guarantee(sigma).epsilon(planned.delta),
        "rms_error": sigma * setting.errors(secret.mechanism).rms,
        "instead": [str(other) for other in secret.alternatives],
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `plan` found.

    Attributes:
        flags: What was given.
        setting: The setting of the run.
        min_sep: b; of clients that come once too, of whose schema it is no part.
        options: Every mechanism, the one with the least loss first.
        chosen: The recommended mechanism.
        plan: Its plan.
        claim: Its claim.
        amplified: The plan with amplification, if a sampling in secret was asked for.
    """

    flags: Flags
    setting: MechanismSetting
    min_sep: int
    options: Sequence[Option]
    chosen: Option
    plan: tff_mf.Plan
    claim: statements.Claim
    amplified: dict[str, Any] | None

    @functools.cached_property
    def signal(self) -> signal_to_noise.Signal | None:
        """Signal and noise, if the size of the model is known."""
        return None if self.flags.dimension is None else signal_to_noise.of_plan(self.plan, self.flags.dimension)

    @functools.cached_property
    def least_loss(self) -> float | None:
        """What no mechanism's loss is below; `None` where no bound is known."""
        if self.setting.workload not in (None, tff_mf.PrefixSum()):
            return None
        return tff_mf.least_loss(self.plan.rounds, self.plan.participation, self.flags.loss) or None

    def facts(self) -> dict[str, Any]:
        """Returns the comparison with all digits."""
        plan, setting, loss = self.plan, self.setting, self.flags.loss
        charge = setting.question(plan.mechanism).charge(plan.noise_multiplier)
        cost = {} if charge is None else {"mu": charge.mu, "tail": charge.tail}
        grid = None if setting.grid is None else dataclasses.asdict(setting.grid)
        facts = {
            **self.flags.cohorts,
            **account.described(setting),
            "min_sep": self.min_sep,
            "delta": plan.delta,
            "workload": repr(account.workload_of(setting)),
            "objective": loss,
            "recommended": self.chosen.name,
            "claim": statements.facts(self.claim),
            "signal": {
                "largest_dimension": signal_to_noise.largest_dimension(plan),
                **({"hopeless": False} if self.signal is None else dataclasses.asdict(self.signal)),
            },
            "numbers": {"grid": grid, "dimension": setting.dimension, **cost},
            "mechanisms": [
                {
                    "name": option.name,
                    "note": option.note,
                    **finite(option.figures),
                    "epsilon_if_wrong": finite(option.if_wrong),
                    f"{loss}_loss_if_wrong": finite(option.loss_if_wrong),
                }
                for option in self.options
            ],
            "least_loss": self.least_loss,
        }
        if self.amplified is not None:
            facts["amplified"] = self.amplified
        return statements.without_epsilon(facts) if self.refused else facts

    @property
    def refused(self) -> bool:
        """Whether no ε is stated."""
        return self.claim.state == statements.REFUSED

    def words(self, *, written: str) -> list[Block]:
        """Returns the comparison in words, with the folder that the plan was written to."""
        plan, often = self.plan, statements.participation(self.setting)
        clients = f"{plan.clients_per_round:,} of {plan.population:,} clients a round, {plan.rounds:,} rounds, {often}"
        headline, only = self.chosen.name, ""
        if self.amplified is not None:
            # The claim is not for the cohorts of the sampling that was asked for.
            headline = f"{headline}, for known cohorts with {often}, in place of {self.flags.sampling} sampling"
            only = ", or only the amplified figures hold"
        bound = ""
        if self.least_loss is not None:
            bound = f" No mechanism's {self.flags.loss.capitalize()}Loss is below {digits.downwards(self.least_loss)}."
        rests_on = (f"something enforces the participation, {often}{only}", *self.claim.not_checked)
        rows = [
            ("setting", f"{clients}; {account.workload(self.setting)}"),
            ("why", plan.why.removeprefix(f"{self.chosen.name}: ")),
            ("learns", self._learns()),
            ("numbers", self._numbers()),
            ("note", statements.uncustomary_delta(plan.delta, plan.population) or ""),
            ("written", written),
        ]
        return [
            "# Plan",
            f"{headline}: {statements.line(self.claim)}",
            Facts(rows),
            "## Mechanisms",
            self._table(),
            f"{_LOSSES}{bound}",
            "\n".join(f"- {option.name}: {option.note}." for option in self.options if option.note),
            *self._amplified(),
            *(["## What it rests on", "\n".join(f"- {text}" for text in rests_on)] if self.claim.not_checked else []),
        ]

    def _learns(self) -> str:
        if self.signal is not None:
            return signal_to_noise.warning(self.signal)
        largest = signal_to_noise.largest_dimension(self.plan)
        if largest is None:
            return ""
        about = f"{float(f'{largest:.1e}'):,.0f}"
        return f"models of up to about {about} parameters; --dimension judges a model of your size"

    def _numbers(self) -> str:
        grid = self.setting.grid
        if grid is None:
            return "floats; figures hold for real numbers only, and --grid auto closes that gap"
        assumed = " (--dimension)" if self.flags.dimension is None else ""
        return (
            f"integers of {grid.bits} bits, for {self.setting.dimension:,} parameters{assumed}: figures include their "
            "cost"
        )

    def _table(self) -> Table:
        """Returns the table of mechanisms; without a stated guarantee, no column has an ε."""
        of_epsilon, in_bytes = self.flags.epsilon is not None, self.flags.dimension is not None
        rows = []
        for option in self.options:
            if option.mechanism is None:
                continue
            figures = option.figures
            epsilons = (figures["epsilon"], *(option.if_wrong[case] for case in _CASES))
            epsilon, *if_wrong = ("–" if self.refused else digits.upwards(value) for value in epsilons)
            memory = f"{digits.nearest(figures['memory_bytes'] / 1e6, 3)} MB" if in_bytes else figures["memory_rows"]
            rows.append(
                [
                    option.name,
                    digits.nearest(figures["rms_loss"]),
                    digits.nearest(figures["max_loss"]),
                    digits.upwards(figures["noise_multiplier"]) if of_epsilon else epsilon,
                    str(memory),
                    *if_wrong,
                ]
            )
        header = ["", "RmsLoss", "MaxLoss", "σ" if of_epsilon else "ε", "memory" if in_bytes else "copies"]
        return Table([*header, *(f"ε: {case}" for case in _CASES.values())], rows)

    def _amplified(self) -> list[Block]:
        found = self.amplified
        if found is None:
            return []
        figures = _screens.figures({name: found[name] for name in ("amplified_noise_multiplier", "rms_error")}).rows
        known = [] if self.refused else [("if known", f"ε of {digits.upwards(found['epsilon_if_cohorts_are_known'])}")]
        instead = [("instead", other) for other in found["instead"]]
        rows = Facts([("why", found["why"]), *figures, *known, *instead])
        return ["## With secret cohorts", found["amplified_statement"], rows]
