"""Assumptions that are checked in the settings of a run, and in what was released: one function for each."""

from ..privacy import statements
from ..run_folder.initial_model import InitialModel
from ..run_folder.metrics import ALSO_TRAINING, HARMLESS, NOT_TRAINING
from ..run_folder.names import INITIAL_MODEL, METRICS, RUN_JSON
from ._case import Case
from ._findings import ASSUMED, HOLDS, VIOLATED, Judged


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
