"""Assumptions that are checked in the logs of a run: one function for each."""

from collections.abc import Mapping

import tff_mf

from ..run_folder.ledger import cohort_digest
from ..run_folder.names import LEDGER, METRICS, PARTICIPATION
from ..run_folder.run_record import RunRecord
from ..sampling.settings import FIXED_EPOCH_KINDS, SAMPLING_KINDS
from ._case import Case
from ._evidence import Evidence
from ._findings import ASSUMED, HOLDS, VIOLATED, Judged


def participation(case: Case) -> Judged:
    """Returns whether each client's rounds follow the schema."""
    record, evidence = case.record, case.evidence
    b, k = record.min_sep, record.max_participations
    claimed = f"{record.participation}: rounds of a client at least {b} apart, at most {k}"
    if isinstance(record.schema, tff_mf.FixedEpoch):
        claimed += f", in the same place of {k} epochs that follow each other"
        if other := _sampling_without_places(record):
            return VIOLATED, f"{claimed}; sampling={other!r} does not keep places: its clients may come anywhere"
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


def _sampling_without_places(record: RunRecord) -> str:
    """Returns the sampling of a run of `tff-mf train` if its clients change their places; else an empty text.

    A log cannot show it of rounds that were planned and did not run, nor of clients that came once by chance.
    """
    sampling = record.settings.get("sampling")
    kind = sampling.get("kind") if isinstance(sampling, Mapping) else None
    return kind if record.max_participations > 1 and kind in SAMPLING_KINDS and kind not in FIXED_EPOCH_KINDS else ""


def sampler(case: Case) -> Judged:
    """Returns whether the cohorts in the log are the planned ones."""
    record, evidence = case.record, case.evidence
    name = record.sampler
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
    planned = [number for number in range(1, evidence.rounds + 1) if record.restarts_in(number)]
    if evidence.ledger.restarts != planned:
        where = next(iter(sorted(set(evidence.ledger.restarts) ^ set(planned))), evidence.ledger.restarts[:1])
        return VIOLATED, f"{text}, was accounted for, and round {where} differs"
    return HOLDS, text
