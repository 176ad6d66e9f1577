"""A claim: whether an ε may be stated, its figures, and the one line that states it. No other module states an ε.

A training that no ε could be stated for is refused here, before it begins.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.base.strict_json import finite

from ..output.console import up
from ..output.typed import Count, CountOrZero, Number, OpenUnit, Record
from ..sampling import SamplingSettings

STATED, REFUSED = "stated", "refused"
NO_EPSILON = "NO ε CAN BE STATED"
TEST_ONLY = "TEST ONLY, NO PRIVACY"
CHOICE_OF_SETTINGS = (
    "ε is of one run: choosing learning rates, or any other setting, by repeated training on private clients is not "
    "covered by it"
)
# Above the rounding of a factor of μ, and of the product.
_ROUNDED_UP = 1 + 2.0**-50

# How much larger than computed the ε of a run with secret cohorts is stated, so that whoever computes it again, on
# another machine or with other samples, finds no larger one.
_MARGIN, _MARGIN_BY_SAMPLES = 1e-6, 0.02


class Reason(Record, kw_only=True):
    """Why no ε is stated.

    Attributes:
        field: What it is about.
        text: The reason in words.
    """

    field: str
    text: str


class Claim(Record, kw_only=True):
    """What is claimed of a run, as files have it; a figure that is not bounded, or may not be stated, is `None`.

    Attributes:
        state: "stated" or "refused".
        test_only: Whether the noise is repeatable.
        reasons: Why no ε is stated; empty if one is.
        not_checked: What a stated ε rests on, and nothing here can check: at most eight lines.
        participation: The schema, or the observed participation, that the guarantee is bound to, in words.
        delta: δ.
        rounds: Number of rounds n.
        population: Number of clients that can take part, if known.
        cohort: Clients that a round stands for.
        clients_per_round: Clients that train in a round.
        clients_per_person: The most clients that one person can have.
        simulation: Whether clients are simulated.
        adjacency: "zero-out" or "replace-one".
        epsilon: For the cohort that a round stands for, if nothing forbids it.
        epsilon_of_a_person: ε of all clients of one person together; `None` if a person has one client.
        epsilon_as_run: ε of the clients that really train: a simulation's noise is in proportion to their number.
        search: Mean number of runs of the search that selected this one; `None` without a search.
        zcdp_rho: ρ; `None` too of an amplified ε, and of a search.
        mu: μ; likewise.
        tail: Total variation that δ includes; likewise.
        runs_before: Runs on these clients before this one that are counted, none with less noise.
        epsilon_with_runs_before: ε of a client, or a person, from all of them and this run; `None` without them.
    """

    state: Literal["stated", "refused"] = REFUSED
    test_only: bool = False
    reasons: Sequence[Reason]
    not_checked: Sequence[str]
    participation: str
    delta: OpenUnit
    rounds: int
    population: int | None = None
    cohort: int = 1
    clients_per_round: int = 1
    clients_per_person: Count = 1
    simulation: bool = False
    adjacency: str = "zero-out"
    epsilon: Number | None = None
    epsilon_of_a_person: Number | None = None
    epsilon_as_run: Number | None = None
    search: Number | None = None
    zcdp_rho: Number | None = None
    mu: Number | None = None
    tail: Number | None = None
    runs_before: CountOrZero = 0
    epsilon_with_runs_before: Number | None = None


def claim(
    guarantee: tff_mf.Guarantee | None,
    *,
    reasons: Sequence[Reason] = (),
    amplified: float | None = None,
    grid: bool = True,
    earlier: tff_mf.Guarantee | None = None,
    **about: Any,
) -> Claim:
    """Returns a claim, with everything that may forbid it.

    Formal guarantee: if it is refused, it has no figure. Otherwise ε is finite, δ is below 1 / population if that is
    known, the noise is random, and no reason was handed over. Setting g clients of one person to zero is g steps to
    a neighbour: a sum of g has at most g times the norm of one.

    Args:
        guarantee: The guarantee for the cohort that a round stands for, if one is known.
        reasons: What voids it.
        amplified: ε by the secrecy of the cohorts, which has no μ, in its place.
        grid: Whether sums and noise are integers.
        earlier: The guarantee of each of `runs_before`.
        about: `participation`, `delta`, `rounds`, and other fields of `Claim` that are no figure.
    """
    adjacency = "zero-out" if guarantee is None else guarantee.adjacency
    refused = Claim(**about, adjacency=adjacency, reasons=[], not_checked=[])
    against = list(reasons)
    if guarantee is None and amplified is None and not against:
        against.append(Reason(field="accountant", text="no sensitivity can be computed"))
    epsilon = amplified
    if epsilon is None:
        epsilon = math.inf if guarantee is None else guarantee.epsilon(refused.delta)
    gaussian = guarantee if amplified is None else None
    against += violations(0.0 if against else epsilon, refused.delta, refused.population, gaussian)
    if against or refused.test_only:
        unique = [reason for index, reason in enumerate(against) if reason not in against[:index]]
        return msgspec.structs.replace(refused, reasons=unique)

    persons, before, with_before = refused.clients_per_person, refused.runs_before, None
    if before and (guarantee is None or guarantee.search is not None or amplified is not None):
        raise InputValueError(
            f"runs_before={before} needs a run whose guarantee has a μ, and neither secret cohorts nor a search have "
            "one: leave it out."
        )

    def of_several(clients: float, guarantee: tff_mf.Guarantee | None = guarantee) -> float | None:
        if guarantee is None:
            return None
        return finite(dataclasses.replace(guarantee, mu=guarantee.mu * clients * _ROUNDED_UP).epsilon(refused.delta))

    if before and guarantee is not None and earlier is not None:
        # μ² of independent noise adds up, as ρ does, and tails do.
        mu, tail = earlier.mu * math.sqrt(before) * _ROUNDED_UP, min(1.0, earlier.tail * before * _ROUNDED_UP)
        all_of_them = dataclasses.replace(earlier, mu=mu, tail=tail)
        with_before = of_several(persons, tff_mf.compose_guarantees(guarantee, all_of_them))
    search = None if guarantee is None else guarantee.search
    gaussian = None if search is not None else guarantee
    if search is not None:
        refused = msgspec.structs.replace(refused, search=search.mean)
    return msgspec.structs.replace(
        refused,
        state=STATED,
        not_checked=_not_checked(refused, grid=grid, secret=amplified is not None),
        epsilon=epsilon,
        epsilon_of_a_person=None if persons == 1 else of_several(persons),
        epsilon_as_run=of_several(refused.cohort / refused.clients_per_round),
        zcdp_rho=None if gaussian is None else gaussian.zcdp_rho,
        mu=None if gaussian is None else gaussian.mu,
        tail=None if gaussian is None else gaussian.tail,
        epsilon_with_runs_before=with_before,
    )


def _not_checked(claim: Claim, *, grid: bool, secret: bool) -> list[str]:
    persons, population = claim.clients_per_person, claim.population
    clients = f"more than {1 / claim.delta:,.0f}" if population is None else f"at least {population:,}"
    drawn = "cohorts are drawn at random, and nobody ever learns who took part, how many did, or what depends on it"
    independent = "who takes part when does not depend on the clients' data"
    chosen = "no earlier run on these clients chose the settings: such runs are not counted"
    if claim.search is not None:
        chosen = (
            "nothing of the search's other runs is ever published, nor how many there were; settings were drawn "
            "independently; and the score is of clients that never train"
        )
    elif claim.runs_before:
        chosen = f"{claim.runs_before} runs on these clients came before it, each planned for no less noise"
    return [
        "only those who are trusted see raw updates and the server's state, with its keys and rows of noise",
        drawn if secret else independent,
        f"{clients} clients can take part",
        "one client is one person" if persons == 1 else f"one person has at most {persons:,} clients",
        "nothing else of these clients leaves the server without noise, such as metrics, counts or durations",
        "the initial model and the vocabulary come from data of others",
        chosen,
        "the words of the noise's generator are random"
        if grid
        else "adversaries read no low bits: the guarantee is about real numbers, and floats are released "
        "(--grid auto closes that)",
    ]


def violations(
    epsilon: float, delta: float, population: int | None, guarantee: tff_mf.Guarantee | None = None
) -> list[Reason]:
    """Returns why an ε may not be stated, whatever the run did; `None` is a guarantee that is amplified or unknown.

    Example:
        >>> [each.field for each in violations(8.0, 0.5, 1000)], violations(8.0, 1e-6, 1000)
        (['delta'], [])
        >>> violations(float("inf"), 1e-10, None, tff_mf.Guarantee(mu=6.0, tail=1e-24))[0].text[:24]
        'too little for a grid: o'
    """
    against = []
    if math.isinf(epsilon):
        text = "there is no noise, or too little for this δ"
        if guarantee and guarantee.tail and math.isfinite(dataclasses.replace(guarantee, tail=0.0).epsilon(delta)):
            text = (
                "too little for a grid: of real numbers there would be an ε, but the noise of a grid has a tail, "
                f"beyond which nothing is bounded, and no ε follows at δ = {delta}. Take more noise or a larger δ"
            )
        against.append(Reason(field="noise", text=text))
    if population is not None and delta >= 1 / population:
        text = (
            f"δ = {delta} is no smaller than 1 / {population}: a mechanism that publishes one client at random would "
            "satisfy it"
        )
        against.append(Reason(field="delta", text=text))
    return against


def uncustomary_delta(delta: float, population: int | None) -> str:
    """Returns that δ is larger than customary for a population, N^-1.1; an empty text if it is not.

    Example:
        >>> uncustomary_delta(5e-4, 1000), uncustomary_delta(6e-4, 1000)[:20]
        ('', 'δ = 0.0006 is above ')
    """
    # Powers differ in their last bits between machines, and a warning must not.
    if population is None or delta < population**-1.1 * (1 + 1e-9):
        return ""
    return (
        f"δ = {delta} is above {population**-1.1:.2g} = N^-1.1, the customary bound for a population of N = "
        f"{population}"
    )


def without_epsilon(value: Any) -> Any:
    """Returns JSON with `None` in place of each ε, by its name: where a claim is refused, none is shown.

    Example:
        >>> without_epsilon({"mu": 1.0, "amplified_epsilon": 2.0, "at": [{"epsilon": 3.0}]})
        {'mu': 1.0, 'amplified_epsilon': None, 'at': [{'epsilon': None}]}
    """
    if isinstance(value, Mapping):
        return {
            name: (dict.fromkeys(field) if isinstance(field, Mapping) else None)
            if "epsilon" in name
            else without_epsilon(field)
            for name, field in value.items()
        }
    return [without_epsilon(element) for element in value] if isinstance(value, list | tuple) else value


def line(claim: Claim) -> str:
    """Returns the guarantee in one line, or the reason why no ε is stated.

    Formal guarantee: no figure is smaller than the true one; a line with a figure names adjacency, δ, rounds and
    participation, and, where a round stands for more clients than train in it, ε of those that do. If a person can
    have several clients, their ε comes first.

    Example:
        >>> import functools
        >>> made = functools.partial(claim, tff_mf.Guarantee(mu=0.5), rounds=100, participation=seen(None, 1))
        >>> line(made(delta=1e-6))[:72]
        'ε≤2.255 at δ=1e-06 per client (central DP, zero-out), all 100 models; ob'
        >>> line(made(delta=0.5, population=3))[:38]
        'NO ε CAN BE STATED: delta: δ = 0.5 is '
    """
    if claim.state == REFUSED:
        return _refused(claim)
    parts = []
    if claim.clients_per_person > 1:
        parts.append(f"ε≤{up(claim.epsilon_of_a_person)} of a person with {claim.clients_per_person} clients")
    about = {"delta": claim.delta, "adjacency": claim.adjacency, "rounds": claim.rounds}
    parts.append(f"{'Simulated: ' if claim.simulation else ''}{stated(claim.epsilon, 'client', **about)}")
    parts.append(claim.participation)
    if claim.mu is not None:
        parts.append(f"ρ={up(claim.zcdp_rho)} zCDP (μ={up(claim.mu)})")
    if claim.cohort != claim.clients_per_round:
        as_run = claim.epsilon_as_run
        real = "" if as_run is None else f" (of the clients that really train: ε≤{up(as_run)})"
        less = f"{claim.cohort / claim.clients_per_round:.3g} times less noise"
        parts.append(f"for cohorts of {claim.cohort}, simulated by {claim.clients_per_round} with {less}{real}")
    if claim.population is None:
        parts.append("if δ is below 1 / population")
    if claim.runs_before:
        of_all = f"ε≤{up(claim.epsilon_with_runs_before)}"
        return f"{'; '.join(parts)}; {of_all} with the {claim.runs_before} runs before it, which are counted."
    if claim.search is not None:
        return f"{'; '.join(parts)}; the best of a search of {claim.search:g} runs on average, which is covered."
    return f"{'; '.join(parts)}; tuning not covered."


def stated(epsilon: float | None, whose: str, *, delta: float, adjacency: str, rounds: int) -> str:
    """Returns an ε, rounded up, with what it is about."""
    return f"ε≤{up(epsilon)} at δ={delta} per {whose} (central DP, {adjacency}), all {rounds} models"


def _refused(claim: Claim) -> str:
    if claim.test_only:
        return f"{TEST_ONLY}: the noise has a fixed seed."
    against = [f"{reason.field}: {reason.text}" for reason in claim.reasons]
    more = f" (and {len(against) - 1} more)" if len(against) > 1 else ""
    # A reason may quote a damaged file: a line without a guarantee must not contain an ε from there.
    return f"{NO_EPSILON}: {''.join(against[:1])}".replace("ε≤", "ε ") + more


def of_plan(plan: tff_mf.Plan, **of_run: Any) -> Claim:
    """Returns the claim of a plan whose cohorts are known, or of its run, by the arguments of `claim` that it gives."""
    if "guarantee" not in of_run:
        assert not plan.secret_cohorts, "the claim of a run states the guarantee of secret cohorts"
        of_run["guarantee"] = None if plan.insecure else plan.guarantee
    counts = ", counts of adaptive clipping included" if plan.adaptive_count_stddev is not None else ""
    about: dict[str, Any] = {
        **{name: getattr(plan, name) for name in ("delta", "rounds", "cohort", "clients_per_round")},
        "participation": bound_to(plan.participation, plan.restart_every) + counts,
        "test_only": plan.insecure,
        "grid": plan.grid is not None,
    }
    return claim(**{**about, **of_run})


def check_asked(*, noise_multiplier: float | None, insecure_seed: int | None) -> None:
    """Raises if there is no noise, or repeatable noise: this is known before a mechanism is optimized.

    A `noise_multiplier` of `None` is one that is calibrated.
    """
    if insecure_seed is not None:
        raise _untrained(f"insecure_seed={insecure_seed}", f"{TEST_ONLY}: leave it out")
    if noise_multiplier == 0:
        raise _untrained(f"noise_multiplier={noise_multiplier!r}", f"{NO_EPSILON}, there is no noise: give a σ above 0")


def check_statable(privacy: tff_mf.Plan, *, population: int | None = None) -> None:
    """Raises if no ε can be stated for a run, whatever happens while it trains.

    Formal guarantee: it raises wherever the claim of the plan is refused.

    Args:
        privacy: The mechanism and its noise.
        population: Number of clients that the report will compare δ with, once the data are known.
    """
    check_asked(noise_multiplier=privacy.noise_multiplier, insecure_seed=privacy.insecure_seed)
    if privacy.secret_cohorts:
        # What holds for those who know the cohorts is refused first.
        privacy = dataclasses.replace(privacy, sampling=privacy.participation, secret_cohorts=False)
    made = of_plan(privacy, population=population)
    if made.state != REFUSED:
        return
    text = line(made)
    if population is not None and privacy.delta >= 1 / population:
        raise _untrained(f"delta={privacy.delta!r}", f"{text}; take a delta below 1/{population}")
    raise _untrained(f"noise_multiplier={privacy.noise_multiplier!r}", f"{text.rstrip('.')}; give a larger σ")


def _untrained(field: str, text: str) -> InputValueError:
    return InputValueError(f"{field}: {text}, or train with without_epsilon.")


def bound_to(schema: tff_mf.Participation, restart_every: int | None = None) -> str:
    """Returns the participation schema that a guarantee is bound to.

    Example:
        >>> bound_to(tff_mf.MinSep(min_sep=3, max_participations=2), 6)
        'min-sep b≥3, k≤2, noise restarted every 6 rounds'
        >>> bound_to(tff_mf.FixedEpoch(min_sep=3, max_participations=2))
        'in the same place of epochs of b=3, k≤2 in a row'
    """
    b, k = schema.min_sep, schema.max_participations
    if k == 1:
        text = "each client at most once"
    elif isinstance(schema, tff_mf.FixedEpoch):
        text = f"in the same place of epochs of b={b}, k≤{k} in a row"
    else:
        text = f"min-sep b≥{b}, k≤{k}"
    return text if restart_every is None else f"{text}, noise restarted every {restart_every} rounds"


def seen(min_sep: int | None, max_participations: int) -> str:
    """Returns the observed participation of clients.

    Example:
        >>> seen(None, 1), seen(0, 2)
        ('observed nobody twice, at most 1 participation', 'observed min-sep 0, at most 2 participations')
    """
    apart = "nobody twice" if min_sep is None else f"min-sep {min_sep}"
    return f"observed {apart}, at most {max_participations} participation{'' if max_participations == 1 else 's'}"


def level(name: str, value: float) -> str:
    """Returns the level of noise that several runs share, with all digits: a label of a table, not a guarantee.

    Example:
        >>> level("epsilon", 2.0), level("noise_multiplier", 0.1)
        ('ε = 2', 'σ = 0.1')
    """
    sign = {"epsilon": "ε", "noise_multiplier": "σ"}[name]
    return f"{sign} = {repr(value).removesuffix('.0')}"


def amplified_level(privacy: tff_mf.Plan, sampling: SamplingSettings | None, population: int | None) -> tff_mf.Level:
    """Returns the amplified ε of a run whose own cohorts are secret, with the bound that it comes from.

    Formal guarantee: as for a `tff_mf.Plan` with `secret_cohorts`: if cohorts are drawn by the sampling with a secret
    of this run alone, and nobody ever learns one, its size, or what depends on it; for one client.
    """
    if sampling is None or not sampling.is_secret or sampling.schema(privacy.rounds) != privacy.participation:
        raise InputValueError(f"sampling={sampling!r} has no amplified ε for {privacy.participation}.")
    drawn_by = sampling.drawn_by(population=population, clients_per_round=privacy.clients_per_round)
    plan = dataclasses.replace(privacy, sampling=drawn_by, population=None, secret_cohorts=True)
    level = plan.guarantee.at(delta=plan.delta) if plan.noise_multiplier else None
    if level is None or math.isinf(level.epsilon):
        raise InputValueError(
            f"noise_multiplier={plan.noise_multiplier!r} leaves no finite ε at delta={plan.delta!r}: take more."
        )
    return level


def stated_epsilon(level: tff_mf.Level) -> float:
    """Returns the ε that a run with secret cohorts states."""
    return level.epsilon * (1 + (_MARGIN_BY_SAMPLES if level.bound == "certified" else _MARGIN))


def amplified_line(
    level: tff_mf.Level,
    sampling: SamplingSettings,
    *,
    rounds: int,
    population: int | None,
    clients_per_round: int | None,
    grid: tff_mf.Grid | None = None,
) -> str:
    """Returns the amplified ε of a deployment in one line, with the condition that its cohorts stay secret.

    `population` and `clients_per_round` are `None` if the sampling, one of `sampling.settings.SECRET`, need not know.

    Example:
        >>> poisson, cohorts = SamplingSettings(sampling="poisson"), {"population": 1000, "clients_per_round": 10}
        >>> run = tff_mf.guarantee(tff_mf.Identity(), 100, poisson.drawn_by(**cohorts), noise_multiplier=1.0)
        >>> amplified_line(run.at(delta=1e-6), poisson, rounds=100, **cohorts)[:64]
        'only if cohorts are drawn at random and in secret, and nobody ev'
    """
    numbers = "real numbers and not the integers of a grid" if grid is None else f"integers of {grid.bits} bits"
    stated = claim(
        None,
        amplified=level.epsilon,
        delta=level.delta,
        rounds=rounds,
        participation=f"{drawn_in_secret(sampling)}, {numbers}",
        population=population,
        cohort=clients_per_round or 1,
        clients_per_round=clients_per_round or 1,
        grid=grid is not None,
    )
    most = population
    if clients_per_round is not None and sampling.sampling == "balls-in-bins":
        # Of more clients, some would have to be left out, or cohorts would be larger than the room of a sum on a grid.
        groups = (sampling.groups or 1) * clients_per_round
        most = groups if population is None else min(population, groups)
    clients = "" if most is None else f", from {most} clients"
    return (
        f"only if cohorts are drawn at random and in secret, and nobody ever learns them{clients}, with amplification "
        f"by sampling: {line(stated)}"
    )


def drawn_in_secret(sampling: SamplingSettings) -> str:
    """Returns how secret cohorts are drawn, in words."""
    listed = ", ".join(f"{name}={value}" for name, value in sampling.parameters.items())
    return f"cohorts by {sampling.sampling} sampling{f' ({listed})' if listed else ''} that nobody knows"
