"""What the figures of a report's page show: ε over δ and over rounds, errors, participation, accuracy."""

import collections
import dataclasses
import pathlib
from typing import Any

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.sensitivities.losses import round_errors

from ..runs.curves import Points, block_ends, of_some_rounds, over_delta, over_rounds
from ..runs.metrics import ACCURACY, ROUND, Metrics
from ..runs.run_record import RunRecord, read_record
from . import _figures
from ._evidence import Case, Evidence, gather
from ._figures import Figures
from ._judgement import judge
from .questions import read_answers


def curves(folder: pathlib.Path, *, realised: bool) -> dict[str, Any]:
    """Returns what the figures of a report's page show, from the files that the report is computed from.

    Formal guarantee: each ε comes from `build`'s figures at another δ, or from the first rounds of the run with the
    sensitivity of those rounds and everything else of the whole run, and never smaller than for fewer rounds. The
    last round and the report's δ have the ε of the report. `None` is no finite ε.

    Args:
        folder: The run's folder.
        realised: Whether the report is the final one; else the planned one.

    Returns:
        `epsilon_over_delta` and `epsilon_over_rounds`, each with points of the plan and of the run as it ran;
        `error_over_rounds`, the standard deviation of the noise in a parameter of the sum of all updates so far, in
        units of the released updates; `clients_by_participations`; `cohorts`; and `accuracy_over_rounds`.

    Raises:
        InputValueError: If `run.json` is missing or damaged, or `answers.json` is damaged.
    """
    record, evidence = read_record(folder), gather(folder, realised=realised)
    case = Case(record=record, evidence=evidence, answers=read_answers(folder), realised=realised)
    found = judge(folder, case, audited=False, summarised=False)
    times = collections.Counter(map(len, evidence.rounds_by_client.values()))
    return {
        "epsilon_over_delta": {
            run: [] if each is None else over_delta(each.guarantee, record.delta)
            for run, each in (("planned", found.planned), ("realised", found.seen))
        },
        "epsilon_over_rounds": {
            "planned": _planned_over_rounds(record, evidence.mechanism, found.planned),
            "realised": _realised_over_rounds(record, evidence, found.seen),
        },
        "error_over_rounds": _errors(record, evidence.mechanism),
        "clients_by_participations": sorted(times.items()),
        "cohorts": [(number, len(clients)) for number, clients in sorted(evidence.cohorts.items())],
        "accuracy_over_rounds": _accuracies(evidence.metrics),
    }


def _planned_over_rounds(record: RunRecord, mechanism: tff_mf.Mechanism | None, planned: Figures | None) -> Points:
    if mechanism is None or planned is None:
        return []
    run, schema = mechanism.cast_to_float32(), record.schema

    def guarantee(rounds: int) -> tff_mf.Guarantee:
        fits = schema
        if isinstance(schema, tff_mf.MinSep | tff_mf.FixedEpoch):
            most = min(schema.max_participations, -(-rounds // schema.min_sep))
            fits = type(schema)(min_sep=schema.min_sep, max_participations=most)
        every = min(record.restart_every or rounds, rounds)
        found = tff_mf.restart_sensitivity(run, rounds, fits, restart_every=every)
        return _figures.guarantee_of(record, found.value, schema, planned.charge)

    return over_rounds(block_ends(record.rounds, schema.min_sep), guarantee, planned.guarantee, record.delta)


def _realised_over_rounds(record: RunRecord, evidence: Evidence, seen: Figures | None) -> Points:
    mechanism = evidence.mechanism
    if mechanism is None or seen is None:
        return []
    schema = _figures.observed_schema(evidence)

    def guarantee(rounds: int) -> tff_mf.Guarantee | None:
        attempts = {key: clients for key, clients in evidence.attempts.items() if key[0] <= rounds}
        so_far = dataclasses.replace(evidence, attempts=attempts, ledger=None)
        if not so_far.patterns:
            return None
        sensitivity, _ = _figures.observed_sensitivity(record, so_far, mechanism)
        return _figures.guarantee_of(record, sensitivity.value, schema, seen.charge)

    return over_rounds(block_ends(evidence.rounds, record.min_sep), guarantee, seen.guarantee, record.delta)


def _errors(record: RunRecord, mechanism: tff_mf.Mechanism | None) -> Points:
    """Returns the noise in the sum of all updates so far, of some of the rounds; none if C cannot have so many."""
    if mechanism is None:
        return []
    rounds = min(record.rounds, mechanism.max_rounds or record.rounds)
    try:
        found = round_errors(mechanism, rounds, restart_every=min(record.restart_every or rounds, rounds))
    except InputError:
        return []
    scale = record.noise_multiplier * record.clients_per_round / record.cohort * record.clip_norm
    scale /= record.rules.divisor
    return of_some_rounds(found, scale)


def _accuracies(metrics: Metrics) -> Points:
    """Returns round and accuracy of each evaluation; none if one is no number."""
    try:
        return [(int(row[ROUND]), float(row[ACCURACY])) for row in metrics.rows if row.get(ACCURACY)]
    except ValueError:
        return []
