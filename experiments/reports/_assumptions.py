"""The assumptions of a run's guarantee, and whether each of them holds: one function for each."""

from collections.abc import Callable, Mapping

import tff_mf
from tff_mf.base.errors import InputError

from ..privacy import statements
from ..run_folder import initial_model
from ..run_folder.initial_model import InitialModel
from ..run_folder.ledger import cohort_digest
from ..run_folder.metrics import ALSO_TRAINING, HARMLESS, NOT_TRAINING
from ..run_folder.names import INITIAL_MODEL, LEDGER, METRICS, PARTICIPATION, RUN_JSON
from ..run_folder.run_record import RunRecord
from ..sampling import settings as samplings
from . import _arithmetic
from ._evidence import ASSUMED, HOLDS, VIOLATED, Assumption, Case, Evidence, Judged
from .questions import QUESTIONS


def mechanism(case: Case) -> Judged:
    """Returns whether the artifact agrees with `run.json`."""
    record, evidence = case.record, case.evidence
    problems = [text for field, text in evidence.problems if field == "mechanism"]
    if problems:
        return VIOLATED, problems[0]
    if evidence.mechanism_sha256 != record.mechanism_sha256:
        return VIOLATED, f"the artifact is not the one of {RUN_JSON}: its hash differs"
    return HOLDS, f"artifact with SHA-256 {record.mechanism_sha256[:16]}…, its sensitivity recomputed"


def randomness(case: Case) -> Judged:
    """Returns whether the noise has fresh keys."""
    record = case.record
    if record.insecure_seed is not None:
        return VIOLATED, "TEST ONLY: the noise has a fixed seed, so that anybody can remove it"
    return HOLDS, "each round's noise has a fresh key of 128 bits from the operating system"


def without_noise(case: Case) -> Judged:
    """Returns whether anything of the training clients is released without noise."""
    record, evidence = case.record, case.evidence
    leaks = [each for each in record.released_without_noise if each.get("of") not in (NOT_TRAINING, ALSO_TRAINING)]
    if leaks:
        return VIOLATED, f"{leaks[0].get('name')}, of {leaks[0].get('of')}, is released without noise"
    unknown = sorted(set(evidence.metrics.columns) - HARMLESS - set(record.evaluation_columns))
    if unknown:
        return VIOLATED, f"{METRICS} has {unknown[0]}, which {RUN_JSON} does not name: released without noise"
    problems = [text for field, text in evidence.problems if field == "released without noise"]
    if problems:
        return VIOLATED, problems[0]
    other = case.answers["other_releases"]
    if other is not None and other.strip().lower() != "none":
        return VIOLATED, f"released without noise: {other}"
    if any(each.get("of") == ALSO_TRAINING for each in record.released_without_noise):
        return ASSUMED, f"nothing that clients train on leaves without noise; evaluation is on {ALSO_TRAINING}"
    state = ASSUMED if other is None else HOLDS
    return state, "nothing of the training clients leaves without noise; evaluation is on clients that do not train"


def divisor(case: Case) -> Judged:
    """Returns whether the noised sums were divided by a constant."""
    record, evidence = case.record, case.evidence
    if record.divisor is None:
        text = "the divisor of the sums is not stated, and the number of clients that reported is not constant"
        return VIOLATED, text
    divisors = evidence.ledger.divisors if case.realised and evidence.ledger else []
    if divisors and divisors != [record.divisor]:
        return VIOLATED, (
            f"sums were divided by {', '.join(map(str, divisors[:3]))}, not by the constant {record.divisor}: "
            "a divisor that follows the number of clients changes the sensitivity"
        )
    return (HOLDS if divisors else ASSUMED), f"noised sums are divided by the constant {record.divisor}"


def cohort(case: Case) -> Judged:
    """Returns whether the noise was scaled for the clients that train."""
    record = case.record
    cohort, clients = record.cohort, record.clients_per_round
    if cohort == clients:
        return HOLDS, f"the noise is that of the {clients} clients of a round"
    if cohort < clients or not record.simulation:
        return VIOLATED, (
            f"the noise was scaled for cohorts of {cohort}, and {clients} real clients train in a round: only a "
            "simulation, which no client depends on, may stand for a larger cohort"
        )
    return HOLDS, f"a simulation of cohorts of {cohort} by {clients} clients: see the ε of those"


def choice_of_settings(case: Case) -> Judged:
    """Returns how the settings were chosen, as far as the operator says so: no log of a run shows earlier runs."""
    runs = case.answers["tuning_runs"]
    told = {None: "how many such runs there were is not answered", 0: "by the answers there were no such runs"}
    of_runs = told.get(runs, f"by the answers there were {runs} such runs, which are not counted")
    return ASSUMED, f"{statements.CHOICE_OF_SETTINGS}; {of_runs}"


def clipping(case: Case) -> Judged:
    """Returns whether the clip norm is the one in `run.json`."""
    record, evidence = case.record, case.evidence
    ledger = evidence.ledger if case.realised else None
    norms = ledger.clip_norms if ledger else []
    if record.adaptive_count_stddev is None:
        if norms and norms != [record.clip_norm]:
            return VIOLATED, (
                f"the clip norm was {norms[0]} to {norms[-1]}, and {record.clip_norm} was accounted for: "
                "adaptive clipping releases noised counts that are not counted"
            )
        text = f"every update is clipped to L2 norm {record.clip_norm}; one that is not finite counts as zero"
        return HOLDS, text
    last = {each.round: each.clip_norm for each in ledger.begun} if ledger else {}
    changed = [number for number, norm in last.items() if last.get(number - 1, norm) != norm]
    without = sorted(set(changed) - set(ledger.restarts if ledger else ()))
    if without:
        return VIOLATED, (
            f"the clip norm changed in round {without[0]}, without a restart: correlated noise of two clip norms does "
            "not cancel"
        )
    text = "the clip norm adapts, restarts come with it, and its counts are accounted for"
    return (HOLDS if norms else ASSUMED), text


def starts_from(case: Case, given: InitialModel | None) -> Judged:
    """Returns whether the guarantee of the run alone can be stated of clients, although its initial model was given.

    Formal guarantee: the guarantee of a run is for an initial model that does not depend on its clients. For one that
    was trained on them, the μ of both runs compose to √(μ₁² + μ₂²), and no ε of one run alone is stated.
    """
    if given is None:
        return VIOLATED, f"the run has {INITIAL_MODEL}, and {RUN_JSON} names no initial model: one of them was changed"
    name = f"the initial model with SHA-256 {given.sha256[:16]}…"
    if case.realised and case.evidence.initial_model_sha256 != given.sha256:
        return VIOLATED, f"{INITIAL_MODEL} is missing, or is not {name}"
    if given.same_data:
        return VIOLATED, (
            f"{name} is of a run on the same data set: a client may be in both runs, whose guarantees compose, and the "
            "ε of one of them alone is too small"
        )
    if case.answers["pretraining"] == "none":
        return VIOLATED, f"{name} was given, and the answer on pretraining says that there was none"
    return ASSUMED, f"{name} is public, or its training on these clients is accounted for; this cannot be checked here"


def participation(case: Case) -> Judged:
    """Returns whether each client's rounds follow the schema."""
    record, evidence = case.record, case.evidence
    b, k = record.min_sep, record.max_participations
    claimed = f"{record.participation}: rounds of a client at least {b} apart, at most {k}"
    if isinstance(record.schema, tff_mf.FixedEpoch):
        claimed += f", in the same place of {k} epochs that follow each other"
    if other := _other_schema(record):
        return VIOLATED, f"{claimed}; {other}"
    if record.is_secret:
        return ASSUMED, f"{claimed}; by the sampler, as cohorts are secret and no log has them"
    if not case.realised:
        return ASSUMED, f"{claimed}; to be checked in the log"
    apart = "nobody twice" if evidence.min_sep is None else f"{evidence.min_sep} apart"
    seen = f"observed: {apart}, at most {evidence.max_participations}"
    if evidence.repeated:
        return VIOLATED, f"{claimed}; a client is listed twice in round {evidence.repeated[0]}"
    if evidence.min_sep is not None and record.max_participations > 1 and evidence.min_sep < b:
        return VIOLATED, f"{claimed}; {seen}: a client came back too soon"
    if evidence.max_participations > k:
        return VIOLATED, f"{claimed}; {seen}: a client came too often"
    # Some schemas restrict more than the number and distance of rounds, so whole patterns are checked.
    # They are counted from 1, as in the log.
    patterns = ([each + 1 for each in pattern] for pattern in evidence.patterns)
    outside = next((each for each in patterns if not record.schema.allows(each)), None)
    if outside is not None:
        rounds = ", ".join(map(str, outside))
        return VIOLATED, f"{claimed}; a client took part in rounds {rounds}, which the schema does not allow"
    return HOLDS, f"{claimed}; {seen}"


def _other_schema(record: RunRecord) -> str:
    """Returns that the sampling of a run of `tff-mf train` keeps another schema than the claim's; else an empty text.

    A log cannot show it of rounds that were planned and did not run, nor of clients that came once by chance.
    """
    drawn = samplings.of_run(record.settings)
    if drawn is None:
        return ""
    try:
        schema = drawn.schema(record.rounds)
    except InputError as error:
        return str(error)
    if schema != record.schema:
        return f"sampling={drawn.sampling!r} of its settings keeps another schema: clients may come otherwise"
    if drawn.sampler != record.sampler:
        return f"sampling={drawn.sampling!r} of its settings is not the sampler, {record.sampler}"
    return ""


def sampler(case: Case) -> Judged:
    """Returns whether the cohorts in the log are the planned ones."""
    record, evidence = case.record, case.evidence
    name = record.sampler
    if record.is_secret != (record.settings.get("secret_cohorts") is True):
        return VIOLATED, f"cohorts by {name}, and {RUN_JSON} contradicts itself on whether they are secret"
    if record.is_secret:
        if any(evidence.attempts.values()):
            return VIOLATED, f"cohorts by {name} are claimed to be secret, and {PARTICIPATION} lists clients"
        return ASSUMED, (
            f"cohorts by {name} from the system's randomness; nobody learns who took part, how many did, or anything "
            "that depends on it but the noised sums, such as how long a round took"
        )
    if not record.cohorts:
        return ASSUMED, f"cohorts by {name}; no planned cohorts to compare the log with"
    if not case.realised:
        return ASSUMED, f"cohorts as planned by {name}; to be checked in the log"
    planned = dict(enumerate(record.cohorts, start=1))
    for (number, _), clients in sorted(evidence.attempts.items()):
        if planned.get(number) != cohort_digest(clients):
            return VIOLATED, f"cohorts as planned by {name}; round {number} had another: the sampler was changed"
    return HOLDS, f"cohorts as planned by {name}"


def log(case: Case) -> Judged:
    """Returns whether the log is complete, and its two files agree."""
    record, evidence = case.record, case.evidence
    if not case.realised:
        return ASSUMED, "every round will be in the log before it runs"
    problems = [text for field, text in evidence.problems if field == "log"]
    ledger = evidence.ledger
    if ledger is not None and not problems:
        problems += _other_cohorts(evidence)
        if sorted(ledger.attempts) != list(range(1, len(ledger.attempts) + 1)):
            problems.append(f"rounds are missing in {LEDGER}")
        if evidence.metrics.last_round > evidence.rounds:
            problems.append(f"{METRICS} has round {evidence.metrics.last_round}, the logs end at {evidence.rounds}")
        if evidence.metrics.last_evaluated > ledger.sequence.released:
            problems.append(
                f"{METRICS} has an evaluation of round {evidence.metrics.last_evaluated}, and "
                f"{LEDGER} has releases up to round {ledger.sequence.released}"
            )
        if not ledger.ended:
            problems.append(f"{LEDGER} does not say that the run ended: later rounds may be missing")
        if evidence.rounds > record.rounds:
            problems.append(f"{evidence.rounds} rounds ran, {record.rounds} were accounted for")
    if problems:
        return VIOLATED, "; ".join(problems)
    return HOLDS, f"all {evidence.rounds} rounds are in the log, with every attempt, in two files that agree"


def _other_cohorts(evidence: Evidence) -> list[str]:
    """Returns where the two files of the log differ, at the first attempt of a round."""
    begun = {(each.round, each.attempt): each for each in evidence.ledger.begun} if evidence.ledger else {}
    if set(begun) != set(evidence.attempts):
        number, attempt = min(set(begun) ^ set(evidence.attempts))
        where = f"round {number}" if attempt == 1 else f"attempt {attempt} of round {number}"
        return [f"{where} is in one of {LEDGER} and {PARTICIPATION} only: one is truncated"]
    for (number, attempt), clients in sorted(evidence.attempts.items()):
        each = begun[number, attempt]
        if each.cohort != cohort_digest(clients) or each.clients != len(clients):
            return [f"{PARTICIPATION} has other clients than {LEDGER} in round {number}, attempt {attempt}"]
    return []


def releases(case: Case) -> Judged:
    """Returns whether each round was released at most once."""
    evidence = case.evidence
    if not case.realised or evidence.ledger is None:
        return ASSUMED, "each round is released once"
    twice = [number for number, times in evidence.ledger.released.items() if times > 1]
    if twice:
        return VIOLATED, f"round {twice[0]} was released more than once: two results of a round are two releases"
    if evidence.impossible:
        return VIOLATED, f"{evidence.impossible[0]}: no run has such a ledger"
    again = [number for number, times in evidence.ledger.attempts.items() if times > 1]
    more = f"; {len(again)} were computed again before any result was released" if again else ""
    return HOLDS, f"each round was released at most once, in order, by its newest attempt{more}"


def restarts(case: Case) -> Judged:
    """Returns whether the noise started anew in the planned rounds."""
    record, evidence = case.record, case.evidence
    every = record.restart_every
    text = "noise runs without restart" if every is None else f"noise starts anew every {every} rounds"
    if not case.realised or evidence.ledger is None:
        return ASSUMED, text
    planned = [number for number in range(1, evidence.rounds + 1) if record.rules.restarts_in(number)]
    if evidence.ledger.restarts != planned:
        where = next(iter(sorted(set(evidence.ledger.restarts) ^ set(planned))), evidence.ledger.restarts[:1])
        return VIOLATED, f"{text}, was accounted for, and round {where} differs"
    return HOLDS, text


_JUDGES: Mapping[str, Callable[[Case], Judged]] = {
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
    _arithmetic.ARITHMETIC: _arithmetic.judged,
    "choice of settings": choice_of_settings,
}
# Assumed unless the answer to the question of this name voids them.
_NOT_CHECKED = {
    "participation_depends_on_data": "who takes part when does not depend on the clients' data",
    "state_is_secret": "only those who are trusted see the server's state, with its keys and noise rows",
}


def assess(case: Case) -> list[Assumption]:
    """Returns each assumption with its state, from `run.json`, the answers and, in a final report, the logs."""
    found = []
    for name, judge in _JUDGES.items():
        state, text = judge(case)
        found.append(Assumption(name=name, state=state, text=text))
    given = initial_model.of_settings(case.record.settings)
    if given or case.evidence.initial_model_sha256:
        state, text = starts_from(case, given)
        found.append(Assumption(name="initial model", state=state, text=text))
    voided = dict(_voided(case))
    found += [Assumption(name=name, state=VIOLATED, text=text) for name, text in voided.items()]
    return found + [
        Assumption(name=name, state=ASSUMED, text=f"{text}; this cannot be checked here")
        for name, text in _NOT_CHECKED.items()
        if name not in voided
    ]


def _voided(case: Case) -> list[tuple[str, str]]:
    """Returns the questions with an answer that voids the guarantee, and why it does."""
    answered = [(each, case.answers[each.name]) for each in QUESTIONS if each.name != "other_releases"]
    found = [(each.name, "" if answer is None else each.voids(answer)) for each, answer in answered]
    return [(name, text) for name, text in found if text]
