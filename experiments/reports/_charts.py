"""The figures of a report, from the curves of its run."""

from collections.abc import Mapping
from typing import Any

from tff_mf.numerics import digits

from ..output.figures import Axis, Chart, Curve
from ..output.present.charts import of_epsilon, over_rounds
from ..runs import statements

_RUNS = {"planned": "planned", "realised": "as it ran"}
_IF_ALL_HOLDS = "It supposes that every assumption holds."
_MOST_BARS_NAMED = 8
_CLIENTS = Axis(label="clients", from_zero=True, whole=True)
_DEVIATION = Axis(label="standard deviation", from_zero=True)
_ACCURACY = Axis(label="accuracy, known words (%)", from_zero=True)


def charts(report: Mapping[str, Any], curves: Mapping[str, Any]) -> list[Chart]:
    """Returns the figures of a report; none of ε if it states none.

    Args:
        report: Its facts.
        curves: As `curves` returns them.
    """
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
    found.append(over_rounds("errors", "Error of each round", _DEVIATION, errors, note))
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
                y=_CLIENTS,
                curves=[Curve(name="clients", points=times, drawn="bars")],
            )
        )
    if curves["cohorts"]:
        note = f"Of all attempts of the round together. {exact}"
        cohorts = {"clients": curves["cohorts"]}
        found.append(over_rounds("cohorts", "Clients of each round", _CLIENTS, cohorts, note))
    if curves["accuracy_over_rounds"]:
        note = "On known words of the clients that the run evaluates on, as metrics.csv has it."
        percent = {"accuracy": [(at, 100 * value) for at, value in curves["accuracy_over_rounds"]]}
        found.append(over_rounds("accuracy", "Accuracy", _ACCURACY, percent, note))
    return found
