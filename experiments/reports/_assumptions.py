"""What the guarantee of a run rests on, and whether it held: one function an assumption."""

from collections.abc import Callable, Mapping
from typing import Any

import tff_mf

from ..run_folder.ledger import cohort_digest
from ..run_folder.run_json import Configuration
from ._evidence import HARMLESS, Evidence
from ._findings import ASSUMED, HOLDS, VIOLATED, Assumption
from .questions import QUESTIONS

_Judged = tuple[str, str]


def assess(
    configuration: Configuration, evidence: Evidence, answers: Mapping[str, Any], *, realised: bool
) -> list[Assumption]:
    """Returns every assumption with its state, from the configuration and, if the run is over, from its logs."""
    judges: dict[str, Callable[[], _Judged]] = {
        "participation": lambda: _participation(configuration, evidence, realised),
        "sampler": lambda: _sampler(configuration, evidence, realised),
        "log": lambda: _log(configuration, evidence, realised),
        "one release a round": lambda: _releases(evidence, realised),
        "mechanism": lambda: _mechanism(configuration, evidence),
        "randomness": lambda: _randomness(configuration),
        "released without noise": lambda: _without_noise(configuration, evidence, answers),
        "divisor": lambda: _divisor(configuration, evidence, realised),
        "cohort": lambda: _cohort(configuration),
        "clipping": lambda: _clipping(configuration, evidence, realised),
        "restarts": lambda: _restarts(configuration, evidence, realised),
    }
    found = [
        Assumption(name=name, state=state, text=text) for name, judge in judges.items() for state, text in [judge()]
    ]
    for question in QUESTIONS:
        answer = answers[question.name]
        voided = "" if answer is None else question.voids(answer)
        if voided and question.name != "other_releases":
            found.append(Assumption(name=question.name, state=VIOLATED, text=voided))
    for name, text in (
        ("participation_depends_on_data", "who takes part when does not depend on the clients' data"),
        ("state_is_secret", "the server's state, with keys and noise rows, is seen by nobody but those trusted"),
    ):
        if name not in {each.name for each in found}:
            found.append(Assumption(name=name, state=ASSUMED, text=f"{text}; nobody can check that here"))
    return found


def _participation(configuration: Configuration, evidence: Evidence, realised: bool) -> _Judged:
    b, k = configuration.min_sep, configuration.max_participations
    claimed = f"{configuration.participation}: rounds of a client at least {b} apart, at most {k}"
    if isinstance(configuration.schema, tff_mf.FixedEpoch):
        claimed += f", in the same place of {k} epochs that follow each other"
    if not realised:
        return ASSUMED, f"{claimed}; the log will tell"
    apart = "nobody twice" if evidence.min_sep is None else f"{evidence.min_sep} apart"
    seen = f"observed: {apart}, at most {evidence.max_participations}"
    if evidence.repeated:
        return VIOLATED, f"{claimed}; a client is listed twice in round {evidence.repeated[0]}"
    if evidence.min_sep is not None and configuration.max_participations > 1 and evidence.min_sep < b:
        return VIOLATED, f"{claimed}; {seen}: a client came back too soon"
    if evidence.max_participations > k:
        return VIOLATED, f"{claimed}; {seen}: a client came too often"
    # Some schemas say more than how often and how far apart: what counts is the whole pattern.
    # Rounds as they are counted in the log, which is where somebody may have written a round 0.
    patterns = ([each + 1 for each in pattern] for pattern in evidence.patterns)
    outside = next((each for each in patterns if not configuration.schema.allows(each)), None)
    if outside is not None:
        rounds = ", ".join(map(str, outside))
        return VIOLATED, f"{claimed}; a client took part in rounds {rounds}, which the schema does not have"
    return HOLDS, f"{claimed}; {seen}"


def _sampler(configuration: Configuration, evidence: Evidence, realised: bool) -> _Judged:
    name = configuration.sampler
    if not configuration.cohorts:
        return ASSUMED, f"cohorts by {name}; none were planned that a log could be compared with"
    if not realised:
        return ASSUMED, f"cohorts as planned by {name}; the log will tell"
    planned = dict(enumerate(configuration.cohorts, start=1))
    for (number, _), clients in sorted(evidence.attempts.items()):
        if planned.get(number) != cohort_digest(clients):
            return VIOLATED, f"cohorts as planned by {name}; round {number} had another: the sampler was changed"
    return HOLDS, f"cohorts as planned by {name}"


def _log(configuration: Configuration, evidence: Evidence, realised: bool) -> _Judged:
    if not realised:
        return ASSUMED, "every round will be in the log before it runs"
    problems = [text for field, text in evidence.problems if field == "log"]
    ledger = evidence.ledger
    if ledger is not None and not problems:
        problems += _other_cohorts(evidence)
        if sorted(ledger.attempts) != list(range(1, len(ledger.attempts) + 1)):
            problems.append("rounds are missing in ledger.jsonl")
        if evidence.metrics_rounds > evidence.rounds:
            problems.append(f"metrics.csv has round {evidence.metrics_rounds}, the logs end at {evidence.rounds}")
        if evidence.metrics_evaluated > ledger.sequence.released:
            problems.append(
                f"metrics.csv has what was computed from the model of round {evidence.metrics_evaluated}, and "
                f"ledger.jsonl has releases to round {ledger.sequence.released}"
            )
        if not ledger.ended:
            problems.append("ledger.jsonl does not say that the run ended: later rounds may be missing")
        if evidence.rounds > configuration.rounds:
            problems.append(f"{evidence.rounds} rounds ran, {configuration.rounds} were accounted for")
    if problems:
        return VIOLATED, "; ".join(problems)
    return HOLDS, f"all {evidence.rounds} rounds are in the log, with every attempt, in two files that agree"


def _other_cohorts(evidence: Evidence) -> list[str]:
    """Returns where the two files of the log differ, at the first attempt of a round."""
    begun = {(each.round_number, each.attempt): each for each in evidence.ledger.begun} if evidence.ledger else {}
    if set(begun) != set(evidence.attempts):
        number, attempt = min(set(begun) ^ set(evidence.attempts))
        where = f"round {number}" if attempt == 1 else f"attempt {attempt} of round {number}"
        return [f"{where} is in one of ledger.jsonl and participation.csv only: one is truncated"]
    for (number, attempt), clients in sorted(evidence.attempts.items()):
        each = begun[number, attempt]
        if each.cohort != cohort_digest(clients) or each.clients != len(clients):
            return [f"participation.csv has other clients than ledger.jsonl in round {number}, attempt {attempt}"]
    return []


def _releases(evidence: Evidence, realised: bool) -> _Judged:
    if not realised or evidence.ledger is None:
        return ASSUMED, "each round is released once"
    twice = [number for number, times in evidence.ledger.released.items() if times > 1]
    if twice:
        return VIOLATED, f"round {twice[0]} was released more than once: two results of a round are two releases"
    if evidence.impossible:
        return VIOLATED, f"{evidence.impossible[0]}: no run has such a ledger"
    again = [number for number, times in evidence.ledger.attempts.items() if times > 1]
    more = f"; {len(again)} were computed again before any result was released" if again else ""
    return HOLDS, f"each round was released once at most, in order, by its newest attempt{more}"


def _mechanism(configuration: Configuration, evidence: Evidence) -> _Judged:
    problems = [text for field, text in evidence.problems if field == "mechanism"]
    if problems:
        return VIOLATED, problems[0]
    if evidence.mechanism_sha256 != configuration.mechanism_sha256:
        return VIOLATED, "the artifact beside the configuration is another than the run's: its hash differs"
    return HOLDS, f"artifact with SHA-256 {configuration.mechanism_sha256[:16]}…, its sensitivity recomputed"


def _randomness(configuration: Configuration) -> _Judged:
    if configuration.insecure_seed is not None:
        return VIOLATED, "TEST ONLY: the noise has a fixed seed, so that everybody can take it off"
    return HOLDS, "each round's noise has a fresh key of 128 bits from the operating system"


def _without_noise(configuration: Configuration, evidence: Evidence, answers: Mapping[str, Any]) -> _Judged:
    leaks = [each for each in configuration.released_without_noise if each.get("of") != "clients that do not train"]
    if leaks:
        return VIOLATED, f"{leaks[0].get('name')}, of {leaks[0].get('of')}, is released without noise"
    unknown = sorted(set(evidence.metrics) - HARMLESS - set(configuration.evaluation_columns))
    if unknown:
        return VIOLATED, f"metrics.csv has {unknown[0]}, which the configuration does not name: released without noise"
    problems = [text for field, text in evidence.problems if field == "released without noise"]
    if problems:
        return VIOLATED, problems[0]
    other = answers["other_releases"]
    if other is not None and other.strip().lower() != "none":
        return VIOLATED, f"released without noise: {other}"
    state = ASSUMED if other is None else HOLDS
    return state, "nothing of the training clients leaves without noise; evaluation is on clients that do not train"


def _divisor(configuration: Configuration, evidence: Evidence, realised: bool) -> _Judged:
    if configuration.divisor is None:
        return VIOLATED, "what sums are divided by is not stated; the number of clients that reported is no constant"
    divisors = evidence.ledger.divisors if realised and evidence.ledger else []
    if divisors and divisors != [configuration.divisor]:
        return VIOLATED, (
            f"sums were divided by {', '.join(map(str, divisors[:3]))}, not by the constant {configuration.divisor}: "
            "a divisor that follows the number of clients changes the sensitivity"
        )
    return (HOLDS if divisors else ASSUMED), f"noised sums are divided by the constant {configuration.divisor}"


def _cohort(configuration: Configuration) -> _Judged:
    cohort, clients = configuration.cohort, configuration.clients_per_round
    if cohort == clients:
        return HOLDS, f"the noise is that of the {clients} clients of a round"
    if cohort < clients or not configuration.simulation:
        return VIOLATED, (
            f"the noise was scaled for cohorts of {cohort}, and {clients} real clients train in a round: only a "
            "simulation, which no client depends on, may stand for a larger cohort"
        )
    return HOLDS, f"a simulation of cohorts of {cohort} by {clients} clients: see the ε of those"


def _clipping(configuration: Configuration, evidence: Evidence, realised: bool) -> _Judged:
    ledger = evidence.ledger if realised else None
    norms = ledger.clip_norms if ledger else []
    if configuration.adaptive_count_stddev is None:
        if norms and norms != [configuration.clip_norm]:
            return VIOLATED, (
                f"the clip norm was {norms[0]} to {norms[-1]}, and {configuration.clip_norm} was accounted for: "
                "adaptive clipping releases noised counts that are not counted"
            )
        text = f"every update is clipped to L2 norm {configuration.clip_norm}; one that is not finite counts as zero"
        return HOLDS, text
    last = {each.round_number: each.clip_norm for each in ledger.begun} if ledger else {}
    changed = [number for number, norm in last.items() if last.get(number - 1, norm) != norm]
    without = sorted(set(changed) - set(ledger.restarts if ledger else ()))
    if without:
        return VIOLATED, (
            f"the clip norm changed in round {without[0]}, without a restart: correlated noise of two clip norms does "
            "not cancel"
        )
    return (
        HOLDS if norms else ASSUMED
    ), "the clip norm adapts, restarts come with it, and its counts are accounted for"


def _restarts(configuration: Configuration, evidence: Evidence, realised: bool) -> _Judged:
    every = configuration.restart_every
    text = "noise runs without restart" if every is None else f"noise starts anew every {every} rounds"
    if not realised or evidence.ledger is None:
        return ASSUMED, text
    planned = [] if every is None else list(range(every + 1, evidence.rounds + 1, every))
    if evidence.ledger.restarts != planned:
        where = next(iter(sorted(set(evidence.ledger.restarts) ^ set(planned))), evidence.ledger.restarts[:1])
        return VIOLATED, f"{text}, was accounted for, and round {where} did otherwise: restarts are not counted"
    return HOLDS, text
