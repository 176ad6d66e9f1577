"""What the folder of a run supports: its files, the figures that follow, and the rules that a claim rests on."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import safetensors

import tff_mf
from tff_mf.base import strict_json
from tff_mf.base.errors import InputError, InputValueError

from ..output.files import file_hash
from ..output.typed import Record
from ..runs import names, results, statements
from ..runs.folders import RunRecord, read_evaluated, read_record
from ..runs.ledger import LedgerRecord, Rules, cohort_digest, read_ledger
from ..runs.results import ALSO_TRAINING, HARMLESS, NOT_TRAINING, Metrics, read_metrics
from ..runs.statements import Claim, Reason
from ..sampling import ObservedParticipation

# Above the rounding of two sensitivities, or two values of μ, that are compared.
ROUNDING = 1e-9
# Up to this number of rounds the pattern of every client is evaluated, with a matrix of as many rows: in seconds.
_MOST_ROUNDS_BY_PATTERN = 4096
# Largest difference of the two accountants, relative where ε is above 1.
_ACCOUNTANTS_APART = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computed:
    """A guarantee that holds if every rule does, and the sensitivity that it follows from.

    Attributes:
        reached: A sensitivity that a client in the log attains; 0 if none is known.
    """

    guarantee: tff_mf.Guarantee
    sensitivity: tff_mf.SensitivityResult
    reached: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """The content of a run's folder, as far as it is intact, and the figures that follow from it.

    Attributes:
        realised: Whether the log counts, for the final report; without it, the report is about the plan.
        ledger: The log, as far as it can be read; empty before the run.
        wrong_log: What is wrong with the files of the log.
        runs_before: Runs on the same clients before this one.
    """

    folder: pathlib.Path
    realised: bool
    record: RunRecord
    ledger: LedgerRecord
    metrics: Metrics
    wrong_log: Sequence[str]
    runs_before: int = 0

    @property
    def plan(self) -> tff_mf.Plan:
        """The plan of the run."""
        return self.record.plan

    @property
    def rounds(self) -> int:
        """The last round that began."""
        return max(self.ledger.attempts, default=0)

    @property
    def last_round(self) -> int:
        """The last released round that has clients, or, of secret cohorts, may have."""
        released = self.ledger.last_released
        if self.record.is_secret:
            return released
        return max((number for number, size in self.ledger.sizes.items() if size and number <= released), default=0)

    @functools.cached_property
    def rounds_by_client(self) -> Mapping[str, Sequence[int]]:
        """The rounds of each client, counted from 1, in order.

        Formal guarantee: a client in several attempts of a round took part in it once, since at most one attempt is
        released; one in an abandoned attempt took part all the same.
        """
        rounds: dict[str, set[int]] = {}
        for line in self.ledger.begun:
            for client in line.clients:
                rounds.setdefault(client, set()).add(line.round)
        return {client: sorted(numbers) for client, numbers in rounds.items()}

    @functools.cached_property
    def observed(self) -> ObservedParticipation:
        """How often, and how far apart, clients took part."""
        return ObservedParticipation.of(self.rounds_by_client.values())

    @property
    def population(self) -> int | None:
        """The number of clients: as in `run.json` or as observed in the log, whichever is larger.

        δ is compared with 1 / population, so a smaller number than the log shows would let a δ pass that is too large.
        If clients stand for a larger cohort, the number comes from `deployed_population`.
        """
        deployed = self.plan.deployed_population(len(self.rounds_by_client))
        return max(deployed, self.record.population or 0) or None

    @functools.cached_property
    def planned(self) -> Computed:
        """The figures for the schema of the claim."""
        return _computed(self.record, self.plan.participation, rounds=self.plan.rounds)

    @functools.cached_property
    def seen(self) -> Computed | None:
        """The figures for the observed rounds of the clients; `None` if they cannot be computed.

        Formal guarantee: the sensitivity is the largest over the clients in the log, or an upper bound: the smaller one
        of the sensitivities of the observed patterns and of a schema that has all of them: the `MinSep` of the observed
        b and k, or, of a run in fixed epochs, the `FixedEpoch` of the observed steps. There are no figures of a ledger
        that no run can have written, such as one that lists a client twice in a round.
        """
        if not self.rounds or self.ledger.impossible:
            return None
        if self.record.is_secret:
            # No log has them: all that is known is what the sampling keeps.
            return self.planned
        try:
            return _seen(self)
        except InputError:
            return None

    @functools.cached_property
    def stated(self) -> Computed | None:
        """The figures that a report states: the observed ones, or the planned ones before the run.

        Formal guarantee: at least the figures of the observed participation. If the run was stopped early, at least the
        planned figures too: the decision to stop may depend on released results, and then the guarantee follows from
        the run that could have continued. So do those of a search, whose other runs may have reached the planned ones.
        """
        planned, seen = self.planned, self.seen
        if not self.realised:
            return planned
        if seen is None or (self.last_round >= self.plan.rounds and self.plan.search is None):
            return seen
        if planned.guarantee.mu < seen.guarantee.mu * (1 - ROUNDING):
            return seen
        # Where both are equal but for rounding, every machine names the same sensitivity.
        larger = max(planned.guarantee, seen.guarantee, key=lambda guarantee: guarantee.mu)
        return dataclasses.replace(planned, guarantee=larger)


def gather(folder: pathlib.Path, *, realised: bool, runs_before: int = 0) -> Evidence:
    """Returns what a run's folder contains; what is wrong with files but those of its record is collected."""
    record = read_record(folder)
    ledger, metrics, wrong_log = LedgerRecord(), Metrics(), []
    if realised:
        try:
            ledger = read_ledger(folder / names.LEDGER)
            wrong_log += [f"{names.LEDGER}: {problem}" for problem in ledger.problems]
            if ledger.bound_to not in (None, file_hash(folder / names.RUN_JSON)):
                wrong_log.append(f"{names.RUN_JSON} was edited after the run began")
            metrics = read_metrics(folder / names.METRICS)
        except InputError as error:
            wrong_log.append(str(error))
    return Evidence(
        folder=folder,
        realised=realised,
        record=record,
        ledger=ledger,
        metrics=metrics,
        wrong_log=wrong_log,
        runs_before=runs_before,
    )


def _seen(evidence: Evidence) -> Computed:
    """Returns the figures of the observed participation: see `Evidence.seen`."""
    plan, rounds, came = evidence.plan, evidence.rounds, evidence.observed
    every = min(plan.restart_every or rounds, rounds)
    run, reached = plan.mechanism.cast_to_float32(), 0.0
    # The narrowest that has all observed patterns.
    schema = tff_mf.MinSep(min_sep=came.min_sep or rounds, max_participations=max(1, came.max_participations))
    schemas: list[tff_mf.Participation] = [schema]
    if isinstance(plan.participation, tff_mf.FixedEpoch) and came.common_step and came.span is not None:
        # The same of those that the run claims.
        most = came.span // came.common_step + 1
        schemas.append(tff_mf.FixedEpoch(min_sep=came.common_step, max_participations=most))
    bounds = [tff_mf.restart_sensitivity(run, rounds, kind, restart_every=every) for kind in schemas]
    if rounds <= _MOST_ROUNDS_BY_PATTERN:
        # Rounds are counted from 0 there.
        patterns = [tuple(number - 1 for number in numbers) for numbers in evidence.rounds_by_client.values()]
        exact = tff_mf.pattern_sensitivity(run, rounds, patterns, restart_every=every)
        reached = exact.value if exact.exact else 0.0
        bounds.insert(0, exact)
    # The first of those that are equal but for rounding, so that every machine takes the same.
    smallest = min(bound.value for bound in bounds)
    sensitivity = next(bound for bound in bounds if bound.value <= smallest * (1 + ROUNDING))
    # A log of more rounds than were planned, which voids the claim, has their cost too.
    return _computed(evidence.record, schema, rounds=max(plan.rounds, rounds), sensitivity=sensitivity, reached=reached)


def _computed(
    record: RunRecord,
    schema: tff_mf.Participation,
    *,
    rounds: int,
    sensitivity: tff_mf.SensitivityResult | None = None,
    reached: float = 0.0,
) -> Computed:
    """Returns the figures of a schema, with a sensitivity that is known to be smaller than the schema's, if one is."""
    plan, guarantee = record.plan, tff_mf.Guarantee(mu=math.inf, adjacency=record.adjacency)
    question = dataclasses.replace(plan.question, rounds=rounds, sampling=schema, adjacency=record.adjacency)
    sensitivity = sensitivity or question.sensitivity
    if plan.insecure_seed is None and plan.noise_multiplier:
        guarantee = question.guarantee(plan.noise_multiplier, sensitivity)
    return Computed(guarantee=guarantee, sensitivity=sensitivity, reached=reached)


class Check(Record, kw_only=True):
    """A rule that a guarantee rests on, and that the files keep.

    Attributes:
        name: Name of the rule.
        text: What was checked.
    """

    name: str
    text: str


class _RuleError(InputValueError):
    """A rule that is violated, as its text says."""


def judged(evidence: Evidence) -> tuple[list[Check], Claim]:
    """Returns what was checked, and what the files of a run support.

    Formal guarantee: an ε is stated only if no rule is violated.
    """
    checked, reasons = [], []
    for name, rule in _RULES.items():
        try:
            if text := rule(evidence):
                checked.append(Check(name=name, text=text))
        except InputError as error:
            reasons.append(Reason(field=name, text=str(error)))
    record, stated, came = evidence.record, evidence.stated, evidence.observed
    about: dict[str, Any] = {"guarantee": None if stated is None else stated.guarantee}
    if evidence.realised:
        seen = statements.seen(came.min_sep, came.max_participations)
        about |= {"rounds": evidence.ledger.last_released, "participation": seen}
    # No theorem here is about several clients in groups of their own.
    if record.is_secret and record.clients_per_person == 1 and record.drawn is not None and stated is not None:
        own = {"guarantee": None, "amplified": record.amplified_epsilon}
        about |= {**own, "participation": statements.drawn_in_secret(record.drawn)}
    elif record.is_secret:
        about["participation"] = statements.bound_to(evidence.plan.participation)
    claim = statements.of_plan(
        evidence.plan,
        **about,
        population=evidence.population,
        clients_per_person=record.clients_per_person,
        simulation=record.simulation,
        reasons=reasons,
        runs_before=evidence.runs_before,
        earlier=evidence.planned.guarantee if evidence.runs_before else None,
    )
    return checked, claim


def _participation(evidence: Evidence) -> str:
    """The rounds of each client are a pattern of the schema, which is that of the sampling."""
    record, plan, came = evidence.record, evidence.plan, evidence.observed
    drawn = record.drawn
    if drawn is not None:
        # A log cannot show it of rounds that were planned and did not run, nor of clients that came once by chance.
        if drawn.schema(plan.rounds) != plan.participation:
            raise _RuleError(
                f"sampling={drawn.sampling!r} of its settings keeps another schema: clients may come otherwise"
            )
        # Others name the sampler of a deployment in words of their own.
        if drawn.sampler != record.sampler and (record.is_secret or record.sampler.startswith("tff_mf.")):
            raise _RuleError(f"sampling={drawn.sampling!r} of its settings is not the sampler, {record.sampler}")
    if record.is_secret or not evidence.realised:
        return ""
    for rounds in evidence.rounds_by_client.values():
        if not plan.participation.allows(rounds):
            raise _RuleError(
                f"a client took part in rounds {', '.join(map(str, rounds))}, which the schema does not allow: "
                f"{statements.bound_to(plan.participation)}"
            )
    logged = statements.seen(came.min_sep, came.max_participations)
    return f"{logged}; allowed: {statements.bound_to(plan.participation)}"


def _sampler(evidence: Evidence) -> str:
    """The cohorts in the log are the planned ones, and secret cohorts are not in it."""
    record = evidence.record
    asked = record.plan if record.settings is None else record.settings
    if record.is_secret != asked.secret_cohorts:
        raise _RuleError(f"{names.RUN_JSON} contradicts itself on whether cohorts are secret")
    if record.is_secret:
        if evidence.rounds_by_client:
            raise _RuleError("cohorts are claimed to be secret, and the log lists clients")
        return ""
    if not record.cohorts or not evidence.realised:
        return ""
    planned = dict(enumerate(record.cohorts, start=1))
    for line in sorted(evidence.ledger.begun, key=lambda line: line.round):
        if planned.get(line.round) != cohort_digest(line.clients):
            raise _RuleError(f"round {line.round} had another cohort than planned: the sampler was changed")
    return f"cohorts by {record.sampler}, as planned"


def _log(evidence: Evidence) -> str:
    """The log is complete."""
    if not evidence.realised:
        return ""
    ledger, rounds, metrics = evidence.ledger, evidence.rounds, evidence.metrics
    against = [*evidence.wrong_log]
    if not against:
        if len(ledger.attempts) != rounds:
            against.append(f"rounds are missing in {names.LEDGER}")
        if metrics.last_round > rounds:
            against.append(f"{names.METRICS} has round {metrics.last_round}, the log ends at {rounds}")
        if metrics.last_evaluated > ledger.last_released:
            against.append(
                f"{names.METRICS} has an evaluation of round {metrics.last_evaluated}, and {names.LEDGER} has releases "
                f"up to round {ledger.last_released}"
            )
        if not ledger.ended:
            against.append(f"{names.LEDGER} does not say that the run ended: go on with it, or end it")
        if rounds > evidence.plan.rounds:
            against.append(f"{rounds} rounds ran, {evidence.plan.rounds} were accounted for")
    if against:
        raise _RuleError("; ".join(against))
    return f"all {rounds} rounds are in it, with every attempt"


def _releases(evidence: Evidence) -> str:
    """Each round was released at most once, in order."""
    ledger = evidence.ledger
    if ledger.impossible:
        raise _RuleError(f"{ledger.impossible[0]}: no run has such a ledger")
    return "in order, of its newest attempt" if ledger.released else ""


def _plan(evidence: Evidence) -> str:
    """The plan is the one that the run began with."""
    if file_hash(evidence.folder / names.PLAN) != evidence.record.plan_sha256:
        raise _RuleError(f"{names.PLAN} was edited after the run began: its hash is not the one in {names.RUN_JSON}")
    return "its hash is right"


def _artifact(evidence: Evidence) -> str:
    """The artifact is the one in `run.json`."""
    if file_hash(evidence.folder / names.MECHANISM) != evidence.record.mechanism_sha256:
        raise _RuleError(f"the artifact is not the one of {names.RUN_JSON}: its hash differs")
    return "its hash is right, and its sensitivity was computed again"


def _without_noise(evidence: Evidence) -> str:
    """Nothing of the training clients is released without noise, as far as files show it."""
    record = evidence.record
    for release in record.released_without_noise:
        if release.get("of") not in (NOT_TRAINING, ALSO_TRAINING):
            raise _RuleError(f"{release.get('name')}, of {release.get('of')}")
    if not evidence.realised:
        return ""
    if unknown := sorted(set(evidence.metrics.columns) - HARMLESS - set(record.evaluation_columns)):
        raise _RuleError(f"{names.METRICS} has {unknown[0]}, which {names.RUN_JSON} does not name")
    # Nothing says on whose data the columns of other tables were computed.
    for path in sorted(evidence.folder.iterdir()):
        if path.suffix.lower() == ".csv" and path.name != names.METRICS:
            raise _RuleError(f"{path.name!a} is not a file of a run, and nothing says on whose data it was computed")
    if both := len(read_evaluated(evidence.folder) & evidence.rounds_by_client.keys()):
        raise _RuleError(f"{names.EVALUATED} has {both} of the clients in the log: metrics on clients that train")
    if not evidence.metrics.columns:
        return "no table of metrics is here, and who was evaluated did not train"
    return f"{names.METRICS} has the columns of the evaluation alone"


def _divisor(evidence: Evidence) -> str:
    """The noised sums were divided by a constant."""
    divisor, logged = evidence.plan.clients_per_round, evidence.ledger.divisors
    if logged and logged != [divisor]:
        listed = ", ".join(map(str, logged[:3]))
        raise _RuleError(f"sums were divided by {listed}, not by the constant {divisor}: that changes the sensitivity")
    return f"sums were divided by the constant {divisor}" if logged else ""


def _cohort(evidence: Evidence) -> str:
    """The noise was scaled for the clients that train."""
    cohort, clients = evidence.plan.cohort, evidence.plan.clients_per_round
    if cohort == clients:
        return f"the noise is that of the {clients} clients of a round"
    if cohort < clients or not evidence.record.simulation:
        raise _RuleError(
            f"the noise was scaled for cohorts of {cohort}, and {clients} real clients train in a round: only a "
            "simulation, which no client depends on, may stand for a larger cohort"
        )
    return f"a simulation of cohorts of {cohort} by {clients} clients"


def _clipping(evidence: Evidence) -> str:
    """Every update was clipped to the norm in `run.json`, which changes with a restart only."""
    plan, ledger = evidence.plan, evidence.ledger
    norms = ledger.clip_norms
    if plan.adaptive_count_stddev is None:
        if norms and norms != [plan.clip_norm]:
            raise _RuleError(f"the clip norm was {norms[0]} to {norms[-1]}, and {plan.clip_norm} was accounted for")
        return f"updates to L2 norm {plan.clip_norm}" if norms else ""
    last = {line.round: line.clip_norm for line in ledger.begun}
    changed = {number for number, norm in last.items() if last.get(number - 1, norm) != norm}
    if without := sorted(changed - set(ledger.restarts)):
        raise _RuleError(
            f"the clip norm changed in round {without[0]}, without a restart: noise of two norms does not cancel"
        )
    return "the norm adapts with the restarts, and its counts are accounted for" if norms else ""


def _restarts(evidence: Evidence) -> str:
    """The noise started anew in the planned rounds."""
    plan, ledger = evidence.plan, evidence.ledger
    every = plan.restart_every
    noise = "the noise runs without restart" if every is None else f"the noise starts anew every {every} rounds"
    planned = {number for number in range(1, evidence.rounds + 1) if Rules.of(plan).restarts_in(number)}
    if other := sorted(planned ^ set(ledger.restarts)):
        raise _RuleError(f"{noise}, was accounted for, and round {other[0]} differs")
    return noise if evidence.rounds else ""


def _arithmetic(evidence: Evidence) -> str:
    """The guarantee is about the numbers that are released, if the model has no more than were accounted for."""
    dimension = evidence.plan.dimension
    if evidence.plan.grid is None or dimension is None:
        return ""
    parameters = parameters_of(evidence) if evidence.realised else dimension
    if parameters is None:
        return ""
    if parameters > dimension:
        raise _RuleError(
            f"the model has {parameters} parameters, and what the grid costs was accounted for {dimension}"
        )
    return "sums and noise are integers, and what that costs is in ε"


def parameters_of(evidence: Evidence) -> int | None:
    """Returns the number of the trainable parameters of a run's model, which alone are noised; `None` without one."""
    try:
        with safetensors.safe_open(evidence.folder / names.MODEL, "np") as model:
            trainable, _ = results.model_names(model.metadata(), model.keys())
            return sum(math.prod(model.get_slice(name).get_shape()) for name in trainable)
    except (OSError, safetensors.SafetensorError, ValueError, TypeError):
        return None


def _secrecy(evidence: Evidence) -> str:
    """The ε of secret cohorts is no smaller than the one that follows from the settings."""
    record = evidence.record
    if record.amplified_epsilon is None:
        return ""
    level = statements.amplified_level(record.plan, record.drawn, record.population)
    if level.epsilon > record.amplified_epsilon:
        raise _RuleError(f"a larger ε than that of {names.RUN_JSON} follows from its settings")
    return "the amplified ε follows from the settings"


def _randomness(evidence: Evidence) -> str:
    """The noise has fresh keys."""
    if evidence.plan.insecure_seed is not None:
        raise _RuleError("TEST ONLY: the noise has a fixed seed, so that anybody can remove it")
    return f"{names.RUN_JSON} has no seed: every round draws a fresh key of 128 bits from the system"


def _accountant(evidence: Evidence) -> str:
    """There are figures, the log refutes none, and two accountants agree on them."""
    plan, stated, planned, seen = evidence.plan, evidence.stated, evidence.planned, evidence.seen
    if stated is None:
        raise _RuleError("no sensitivity can be computed from the files")
    larger = seen is not None and seen.reached > planned.sensitivity.value * (1 + ROUNDING)
    patterns = evidence.rounds_by_client.values()
    if larger and evidence.rounds <= plan.rounds and all(map(plan.participation.allows, patterns)):
        raise _RuleError("clients that follow the schema attain a larger sensitivity than the planned one")
    of_run = dataclasses.replace(stated.guarantee, search=None)
    epsilon, by_pld = of_run.epsilon(plan.delta), of_run.epsilon_by_pld(plan.delta)
    if math.isfinite(epsilon) and abs(epsilon - by_pld) > _ACCOUNTANTS_APART * max(1.0, epsilon):
        raise _RuleError("the closed form of ε and privacy loss distributions disagree")
    return "two ways to compute ε agree"


def _model(evidence: Evidence) -> str:
    """The model is the one of the run's summary, and the folder was not mixed from two runs."""
    stated = summary_of(evidence).get("model_sha256")
    if stated is None:
        return ""
    model = evidence.folder / names.MODEL
    if model.is_file() and file_hash(model) == stated:
        return f"its hash is the one in {names.SUMMARY}"
    raise _RuleError(f"{names.MODEL} is missing, or its hash is not the one in {names.SUMMARY}")


def summary_of(evidence: Evidence) -> dict[str, Any]:
    """Returns the content of `summary.json` of a run; nothing before the run, or if it cannot be read."""
    try:
        summary = strict_json.read(evidence.folder / names.SUMMARY, "summary") if evidence.realised else {}
    except (InputError, OSError):
        return {}
    return summary if isinstance(summary, dict) else {}


# Every rule that a guarantee rests on: it raises if it is violated, and returns what was checked, if anything was.
_RULES: Mapping[str, Callable[[Evidence], str]] = {
    "participation": _participation,
    "sampler": _sampler,
    "log": _log,
    "one release a round": _releases,
    "plan": _plan,
    "mechanism": _artifact,
    "randomness": _randomness,
    "released without noise": _without_noise,
    "divisor": _divisor,
    "cohort": _cohort,
    "clipping": _clipping,
    "restarts": _restarts,
    "finite precision": _arithmetic,
    "secrecy": _secrecy,
    "accountant": _accountant,
    "model": _model,
}
