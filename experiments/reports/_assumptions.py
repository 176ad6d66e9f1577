"""The assumptions of a run's guarantee, and whether each of them holds: one function for each."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tff_mf.base.errors import InputError

from ..runs.initial_model import InitialModel
from ..runs.ledger import cohort_digest
from ..runs.metrics import ALSO_TRAINING, HARMLESS, NOT_TRAINING
from ..runs.names import EVALUATED, INITIAL_MODEL, LEDGER, METRICS, RUN_JSON
from ..runs.run_record import RunRecord
from ..runs.words import Said
from ._evidence import ASSUMED, HOLDS, VIOLATED, Assumption, Evidence, State
from .questions import QUESTIONS

# A state, with the code and the values of what was found.
Judged = tuple[State, str, Mapping[str, Any]]


def _judged(state: State, code: str, **values: Any) -> Judged:
    return state, code, values


_holds, _assumed, _violated = (functools.partial(_judged, state) for state in (HOLDS, ASSUMED, VIOLATED))


def _problem(evidence: Evidence, field: str) -> Judged | None:
    """Returns what is wrong with the files that an assumption is about, if anything is."""
    found = next((each for each in evidence.problems if each.field == field), None)
    return None if found is None else _violated(found.code, **found.values)


def mechanism(evidence: Evidence) -> Judged:
    """Returns whether the artifact agrees with `run.json`."""
    record = evidence.record
    if problem := _problem(evidence, "mechanism"):
        return problem
    if evidence.mechanism_sha256 != record.mechanism_sha256:
        return _violated("artifact_other", file=RUN_JSON)
    return _holds("artifact_recomputed", sha256=record.mechanism_sha256)


def randomness(evidence: Evidence) -> Judged:
    """Returns whether the noise has fresh keys."""
    return _violated("fixed_seed") if evidence.record.insecure_seed is not None else _holds("fresh_keys")


def without_noise(evidence: Evidence) -> Judged:
    """Returns whether anything of the training clients is released without noise."""
    record = evidence.record
    leaks = [each for each in record.released_without_noise if each.get("of") not in (NOT_TRAINING, ALSO_TRAINING)]
    if leaks:
        return _violated("unnoised", name=leaks[0].get("name"), of=leaks[0].get("of"))
    unknown = sorted(set(evidence.metrics.columns) - HARMLESS - set(record.evaluation_columns))
    if unknown:
        return _violated("unnamed_column", file=METRICS, column=unknown[0], record=RUN_JSON)
    if problem := _problem(evidence, "released without noise"):
        return problem
    if both := sorted(evidence.evaluated & evidence.rounds_by_client.keys()):
        return _violated("evaluated_trained", file=EVALUATED, log=LEDGER, clients=len(both))
    other = evidence.answers["other_releases"]
    if other is not None and other.strip().lower() != "none":
        return _violated("other_release", answer=other)
    if any(each.get("of") == ALSO_TRAINING for each in record.released_without_noise):
        return _assumed("clean_on_training", of=ALSO_TRAINING)
    return _assumed("clean" if other is None else "clean_answered")


def divisor(evidence: Evidence) -> Judged:
    """Returns whether the noised sums were divided by a constant."""
    record = evidence.record
    if record.divisor is None:
        return _violated("divisor_unknown")
    divisors = evidence.ledger.divisors if evidence.realised and evidence.ledger else []
    if divisors and divisors != [record.divisor]:
        return _violated("divisor_other", divisors=divisors[:3], divisor=record.divisor)
    return (_holds if divisors else _assumed)("divisor_constant", divisor=record.divisor)


def cohort(evidence: Evidence) -> Judged:
    """Returns whether the noise was scaled for the clients that train."""
    cohort, clients = evidence.record.cohort, evidence.record.clients_per_round
    if cohort == clients:
        return _holds("cohort_own", clients=clients)
    if cohort < clients or not evidence.record.simulation:
        return _violated("cohort_foreign", cohort=cohort, clients=clients)
    return _holds("cohort_simulated", cohort=cohort, clients=clients)


def choice_of_settings(evidence: Evidence) -> Judged:
    """Returns how the settings were chosen, as far as the operator says so: no log of a run shows earlier runs."""
    return _assumed("choice_of_settings", runs=evidence.answers["tuning_runs"])


def clipping(evidence: Evidence) -> Judged:
    """Returns whether the clip norm is the one in `run.json`."""
    record, ledger = evidence.record, evidence.ledger if evidence.realised else None
    norms = ledger.clip_norms if ledger else []
    if record.adaptive_count_stddev is None:
        if norms and norms != [record.clip_norm]:
            return _violated("clip_norms_other", first=norms[0], last=norms[-1], clip_norm=record.clip_norm)
        return _holds("clip_norm_fixed", clip_norm=record.clip_norm)
    last = {each.round: each.clip_norm for each in ledger.begun} if ledger else {}
    changed = [number for number, norm in last.items() if last.get(number - 1, norm) != norm]
    without = sorted(set(changed) - set(ledger.restarts if ledger else ()))
    if without:
        return _violated("clip_norm_within", round=without[0])
    return (_holds if norms else _assumed)("clip_norm_adapts")


def starts_from(evidence: Evidence, given: InitialModel | None) -> Judged:
    """Returns whether the guarantee of the run alone can be stated of clients, although its initial model was given.

    Formal guarantee: the guarantee of a run is for an initial model that does not depend on its clients. For one that
    was trained on them, the μ of both runs compose to √(μ₁² + μ₂²), and no ε of one run alone is stated.
    """
    if given is None:
        return _violated("initial_unnamed", file=INITIAL_MODEL, record=RUN_JSON)
    if evidence.realised and evidence.initial_model_sha256 != given.sha256:
        return _violated("initial_other", file=INITIAL_MODEL, sha256=given.sha256)
    if given.same_data:
        return _violated("initial_same_data", sha256=given.sha256)
    if evidence.answers["pretraining"] == "none":
        return _violated("initial_denied", sha256=given.sha256)
    return _assumed("initial_public", sha256=given.sha256)


def participation(evidence: Evidence) -> Judged:
    """Returns whether each client's rounds follow the schema."""
    record, observed = evidence.record, evidence.observed
    b, k = record.min_sep, record.max_participations
    claimed = {"schema": record.participation, "min_sep": b, "max_participations": k}
    if (other := _other_sampling(record)) is not None:
        code, values = other
        return _violated(code, **claimed, **values)
    if record.is_secret:
        return _assumed("participation_secret", **claimed)
    if not evidence.realised:
        return _assumed("participation_planned", **claimed)
    seen = {"observed_min_sep": observed.min_sep, "observed_max_participations": observed.max_participations}
    if evidence.repeated:
        return _violated("participation_twice", round=evidence.repeated[0], **claimed, **seen)
    if observed.min_sep is not None and k > 1 and observed.min_sep < b:
        return _violated("participation_too_soon", **claimed, **seen)
    if observed.max_participations > k:
        return _violated("participation_too_often", **claimed, **seen)
    # Some schemas restrict more than the number and distance of rounds, so whole patterns are checked.
    # They are counted from 1, as in the log.
    patterns = ([each + 1 for each in pattern] for pattern in evidence.patterns)
    outside = next((each for each in patterns if not record.schema.allows(each)), None)
    if outside is not None:
        return _violated("participation_outside", rounds=outside, **claimed)
    return _holds("participation_kept", **claimed, **seen)


def _other_sampling(record: RunRecord) -> tuple[str, Mapping[str, Any]] | None:
    """Returns how the sampling of a run of `tff-mf train` differs from the claim's; `None` if it does not.

    A log cannot show it of rounds that were planned and did not run, nor of clients that came once by chance.
    """
    drawn = record.drawn
    if drawn is None:
        return None
    try:
        schema = drawn.schema(record.rounds)
    except InputError as error:
        return "participation_impossible", {"why": str(error)}
    if schema != record.schema:
        return "participation_other_schema", {"sampling": drawn.sampling}
    # Others name the sampler of a deployment in words of their own.
    if drawn.sampler != record.sampler and (record.is_secret or record.sampler.startswith("tff_mf.")):
        return "participation_other_sampler", {"sampling": drawn.sampling, "sampler": record.sampler}
    return None


def sampler(evidence: Evidence) -> Judged:
    """Returns whether the cohorts in the log are the planned ones."""
    record, name = evidence.record, evidence.record.sampler
    if record.is_secret != record.draws_in_secret:
        return _violated("sampler_contradicted", sampler=name, file=RUN_JSON)
    if record.is_secret and any(evidence.attempts.values()):
        return _violated("sampler_not_secret", sampler=name, file=LEDGER)
    if record.is_secret:
        return _assumed("sampler_secret", sampler=name)
    if not record.cohorts:
        return _assumed("sampler_unplanned", sampler=name)
    if not evidence.realised:
        return _assumed("sampler_planned", sampler=name)
    planned = dict(enumerate(record.cohorts, start=1))
    for (number, _), clients in sorted(evidence.attempts.items()):
        if planned.get(number) != cohort_digest(clients):
            return _violated("sampler_other", sampler=name, round=number)
    return _holds("sampler_kept", sampler=name)


def log(evidence: Evidence) -> Judged:
    """Returns whether the log is complete."""
    record, ledger = evidence.record, evidence.ledger
    if not evidence.realised:
        return _assumed("log_planned")
    rounds, metrics = evidence.rounds, evidence.metrics
    problems = [Said(code=each.code, values=each.values) for each in evidence.problems if each.field == "log"]
    if ledger is not None and not problems:
        released = ledger.last_released
        early = {"file": METRICS, "round": metrics.last_round, "rounds": rounds}
        evaluated = {"file": METRICS, "round": metrics.last_evaluated, "ledger": LEDGER, "released": released}
        wrong: list[tuple[bool, str, Mapping[str, Any]]] = [
            (sorted(ledger.attempts) != list(range(1, len(ledger.attempts) + 1)), "log_missing", {"file": LEDGER}),
            (metrics.last_round > rounds, "log_ends_early", early),
            (metrics.last_evaluated > released, "log_evaluated", evaluated),
            (not ledger.ended, "log_open", {"file": LEDGER}),
            (rounds > record.rounds, "log_longer", {"rounds": rounds, "planned": record.rounds}),
        ]
        problems = [Said(code=code, values=dict(values)) for is_wrong, code, values in wrong if is_wrong]
    if problems:
        return _violated("log_wrong", problems=[{"code": each.code, "values": each.values} for each in problems])
    return _holds("log_complete", rounds=rounds)


def releases(evidence: Evidence) -> Judged:
    """Returns whether each round was released at most once."""
    if not evidence.realised or evidence.ledger is None:
        return _assumed("release_planned")
    twice = [number for number, times in evidence.ledger.released.items() if times > 1]
    if twice:
        return _violated("release_twice", round=twice[0])
    if evidence.ledger.impossible:
        return _violated("release_impossible", why=evidence.ledger.impossible[0])
    return _holds("release_once", again=sum(times > 1 for times in evidence.ledger.attempts.values()))


def restarts(evidence: Evidence) -> Judged:
    """Returns whether the noise started anew in the planned rounds."""
    record, every = evidence.record, evidence.record.restart_every
    if not evidence.realised or evidence.ledger is None:
        return _assumed("restarts_planned", every=every)
    planned = [number for number in range(1, evidence.rounds + 1) if record.rules.restarts_in(number)]
    if evidence.ledger.restarts != planned:
        where = next(iter(sorted(set(evidence.ledger.restarts) ^ set(planned))), evidence.ledger.restarts[:1])
        return _violated("restarts_other", every=every, where=where)
    return _holds("restarts_kept", every=every)


def arithmetic(evidence: Evidence) -> Judged:
    """Returns whether the guarantee is about the numbers that are released, or about the real numbers behind floats."""
    grid, dimension, found = evidence.record.grid, evidence.record.dimension, evidence.parameters
    if grid is None or dimension is None:
        return _assumed("arithmetic_in_floats")
    if found is not None and found > dimension:
        return _violated("arithmetic_larger_model", parameters=found, dimension=dimension)
    if evidence.realised and found is None:
        return _assumed("arithmetic_of_model", dimension=dimension)
    return _holds("arithmetic_on_grid")


_JUDGES: Mapping[str, Callable[[Evidence], Judged]] = {
    "participation": participation,
    "sampler": sampler,
    "log": log,
    "one release a round": releases,
    "mechanism": mechanism,
    "randomness": randomness,
    "released without noise": without_noise,
    "divisor": divisor,
    "cohort": cohort,
    "clipping": clipping,
    "restarts": restarts,
    "arithmetic": arithmetic,
    "choice of settings": choice_of_settings,
}
# Assumed unless the answer to the question of this name voids them.
_NOT_CHECKED = {"participation_depends_on_data": "independence_assumed", "state_is_secret": "secrecy_assumed"}


def assess(evidence: Evidence) -> list[Assumption]:
    """Returns each assumption with its state, from `run.json`, the answers and, in a final report, the logs."""
    judged = {name: judge(evidence) for name, judge in _JUDGES.items()}
    given = evidence.record.initial_model
    if given or evidence.initial_model_sha256:
        judged["initial model"] = starts_from(evidence, given)
    # An answer on other releases is part of what is released without noise.
    answered = ((each, evidence.answers[each.name]) for each in QUESTIONS if each.name != "other_releases")
    voided = {each.name: each.voids(answer) for each, answer in answered if answer is not None}
    judged |= {name: _violated(code) for name, code in voided.items() if code}
    judged |= {name: _assumed(code) for name, code in _NOT_CHECKED.items() if name not in judged}
    return [
        Assumption(name=name, state=state, code=code, values=dict(values))
        for name, (state, code, values) in judged.items()
    ]
