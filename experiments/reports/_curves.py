"""The figures of a report's page: the points of their curves, from the files of a run, and the charts."""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.numerics import digits
from tff_mf.sensitivities.losses import round_errors

from ..runs import statements
from ..runs.curves import Points, block_ends, of_some_rounds, over_delta, over_rounds
from . import _figures
from ._evidence import Evidence, gather
from ._figures import Figures
from ._judgement import judge


def curves(folder: pathlib.Path, *, realised: bool) -> dict[str, Any]:
    """Returns what the figures of a report's page show, from the files that the report is computed from.

    Formal guarantee: each ε comes from `build`'s figures at another δ, or from the first rounds of the run with the
    sensitivity of those rounds and everything else of the whole run, and never smaller than for fewer rounds. The last
    round and the report's δ have the ε of the report. `None` is no finite ε.

    `error_over_rounds` is the standard deviation of the noise in a parameter of the sum of all updates so far, in units
    of the released updates.
    """
    evidence = gather(folder, realised=realised)
    record, found = evidence.record, judge(evidence, summarised=False)
    times = collections.Counter(map(len, evidence.rounds_by_client.values()))
    return {
        "epsilon_over_delta": {
            run: [] if each is None else over_delta(each.guarantee, record.delta)
            for run, each in (("planned", found.planned), ("realised", found.seen))
        },
        "epsilon_over_rounds": {
            "planned": _planned_over_rounds(evidence, found.planned),
            "realised": _realised_over_rounds(evidence, found.seen),
        },
        "error_over_rounds": _errors(evidence),
        "clients_by_participations": sorted(times.items()),
        "cohorts": [(number, len(clients)) for number, clients in sorted(evidence.cohorts.items())],
        "accuracy_over_rounds": evidence.metrics.accuracies,
    }


def _planned_over_rounds(evidence: Evidence, planned: Figures | None) -> Points:
    record, mechanism = evidence.record, evidence.mechanism
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
        return _figures.guarantee_of(record, planned.question, found)

    return over_rounds(block_ends(record.rounds, schema.min_sep), guarantee, planned.guarantee, record.delta)


def _realised_over_rounds(evidence: Evidence, seen: Figures | None) -> Points:
    record, mechanism = evidence.record, evidence.mechanism
    if mechanism is None or seen is None:
        return []

    def guarantee(rounds: int) -> tff_mf.Guarantee | None:
        attempts = {key: clients for key, clients in evidence.attempts.items() if key[0] <= rounds}
        so_far = dataclasses.replace(evidence, attempts=attempts, ledger=None)
        if not so_far.patterns:
            return None
        sensitivity, _ = _figures.observed_sensitivity(so_far, mechanism)
        return _figures.guarantee_of(record, seen.question, sensitivity)

    return over_rounds(block_ends(evidence.rounds, record.min_sep), guarantee, seen.guarantee, record.delta)


def _errors(evidence: Evidence) -> Points:
    """Returns the noise in the sum of all updates so far, of some of the rounds; none if C cannot have so many."""
    record, mechanism = evidence.record, evidence.mechanism
    if mechanism is None:
        return []
    rounds = min(record.rounds, mechanism.max_rounds or record.rounds)
    try:
        found = round_errors(mechanism, rounds, restart_every=min(record.restart_every or rounds, rounds))
    except InputError:
        return []
    return of_some_rounds(found, record.stddev / record.rules.divisor)


_RUNS = {"planned": "planned", "realised": "as it ran"}
_IF_ALL_HOLDS = "It supposes that every assumption holds."
_MOST_BARS_NAMED = 8


def charts(report: Mapping[str, Any], curves: Mapping[str, Any]) -> list[Any]:
    """Returns the figures of a report; none of ε if it states none."""
    from ..output.figures import Axis, Chart, Curve
    from ..output.present.charts import of_epsilon, over_rounds

    clients = Axis(label="clients", from_zero=True, whole=True)
    deviation = Axis(label="standard deviation", from_zero=True)
    accuracy = Axis(label="accuracy, known words (%)", from_zero=True)
    planned, found = report["accountant"]["planned"], []
    if report["claim"]["state"] != statements.REFUSED:
        chosen = f"The report is at δ = {planned['delta']}. " if planned else ""
        over = ("epsilon_over_delta", "epsilon_over_rounds")
        found += of_epsilon(
            *({label: curves[each][run] for run, label in _RUNS.items()} for each in over),
            about=f"{chosen}{_IF_ALL_HOLDS}",
            fixed=f"Of the first rounds alone, if their number was fixed in advance. {_IF_ALL_HOLDS}",
            value=digits.rounded_up,
        )
    note = "Standard deviation of the noise in one parameter of the sum of all released updates so far."
    errors = {"noise": curves["error_over_rounds"]}
    found.append(over_rounds("errors", "Error of each round", deviation, errors, note))
    exact = "Counted in the log, without noise."
    # A log can have rounds without clients.
    if times := curves["clients_by_participations"]:
        named = [at for at, _ in times][:: -(-len(times) // _MOST_BARS_NAMED)]
        found.append(
            Chart(
                name="participations",
                title="Participation of clients",
                note=f"How many clients took part how often. {exact}",
                x=Axis(label="rounds of a client", ticks={at: f"{at:,}" for at in named}),
                y=clients,
                curves=[Curve(name="clients", points=times, drawn="bars")],
            )
        )
    if curves["cohorts"]:
        note = f"Of all attempts of the round together. {exact}"
        cohorts = {"clients": curves["cohorts"]}
        found.append(over_rounds("cohorts", "Clients of each round", clients, cohorts, note))
    if curves["accuracy_over_rounds"]:
        note = "On known words of the clients that the run evaluates on, as metrics.csv has it."
        percent = {"accuracy": [(at, 100 * value) for at, value in curves["accuracy_over_rounds"]]}
        found.append(over_rounds("accuracy", "Accuracy", accuracy, percent, note))
    return found
