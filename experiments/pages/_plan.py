"""The page of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..output import digits
from ._charts import Chart, Curve, figure, scrolled, styled
from ._document import document
from ._markup import Markup, element, together
from ._parts import bullets, checklist, facts, figures, lines, paragraphs, section, table
from ._scales import Axis

_NOT_BETWEEN = (
    "Every position of the sliders is a point that tff-mf computed: the mechanism was optimized for its rounds and "
    "separation, and its noise follows from its accountant. Nothing lies between positions, nothing is interpolated, "
    "and ε, ρ and σ are rounded up."
)
_SAFE = "Between computed points the larger value is drawn."
_SECRET_STATE = "only those who are trusted see the server's state, with its keys and noise rows"


def plan_page(
    plan: Mapping[str, Any], curves: Mapping[str, Any], explored: Mapping[str, Any] | None, *, text: Sequence[str]
) -> str:
    """Returns the page of a plan.

    Args:
        plan: The plan, as `tff-mf plan --json` prints it.
        curves: What its figures show, as `planning.curves.curves` returns it.
        explored: The points around it, as `planning.explored.explored` returns them; `None` if no ε is stated.
        text: The lines of the plan as the command prints it, for the end of the page.
    """
    refused = explored is None
    title = f"Plan: {plan['clients_per_round']:,} of {plan['population']:,} clients a round, {plan['rounds']:,} rounds"
    return document(
        title,
        element("div", element("p", plan["statement"]), class_="headline refused" if refused else "headline"),
        paragraphs(plan["why"], plan["signal"]["line"], plan["numbers"]["line"], *plan["notes"]),
        section("Try other numbers", _explorer(explored), name="explorer"),
        section("Mechanisms", _mechanisms(plan, refused=refused), name="mechanisms"),
        section("Figures", figures(*map(figure, _charts(plan, curves))), name="figures"),
        section(
            "What it rests on",
            element("p", "Tick what you have made sure of. Ticks are kept in this page alone."),
            checklist(_assumptions(plan), name="assumptions"),
            name="assumptions",
        ),
        section("The setting", _setting(plan), name="setting"),
        section("The whole plan", lines("All of it, as tff-mf plan prints it", text), name="plan"),
        data=explored,
        explorer=explored is not None,
    )


def _explorer(explored: Mapping[str, Any] | None) -> Markup:
    """Returns the sliders, and the table of the planned point, which can be read without scripts too."""
    if explored is None:
        return element("p", "Not here: no ε can be stated at these numbers, see the first line.")
    planned = 0
    for axis in explored["axes"]:
        planned = planned * len(axis["values"]) + axis["planned"]
    point = explored["points"][planned]
    head = element("thead", element("tr", *(element("th", each, scope="col") for each in explored["header"])))
    rows = [
        element("tr", element("th", first, scope="row"), *(element("td", each) for each in rest))
        for first, *rest in point["rows"]
    ]
    shown = element("table", head, element("tbody", *rows, id="point-rows"))
    return together(
        element("p", _NOT_BETWEEN),
        element("div", *map(_slider, explored["axes"]), class_="sliders"),
        element("p", element("button", "Back to the plan", type="button", id="planned")),
        element("noscript", element("p", "Without scripts, the table shows the plan alone.")),
        element("p", point["about"], id="point-about", aria_live="polite"),
        scrolled(shown, "figures at the chosen numbers"),
        element(
            "p",
            "Noise of the mean: standard deviation of the noise in a parameter of the sum of all mean updates so far, "
            "root mean square over the rounds, in clip norms. All figures are those of real numbers; "
            "what integers cost is in the line on numbers above.",
            class_="note",
        ),
    )


def _slider(axis: Mapping[str, Any]) -> Markup:
    name, values = axis["name"], axis["values"]
    shown = element("output", values[axis["planned"]], id=f"value-{name}", for_=f"slider-{name}")
    slider = element(
        "input",
        type="range",
        id=f"slider-{name}",
        min=0,
        max=len(values) - 1,
        step=1,
        value=axis["planned"],
        autocomplete="off",
        aria_valuetext=values[axis["planned"]],
    )
    return element("div", element("label", f"{axis['label']}: ", for_=f"slider-{name}"), shown, slider)


def _mechanisms(plan: Mapping[str, Any], *, refused: bool) -> Markup:
    cases = {"half_min_sep": "b/2", "twice_min_sep": "2b", "half_as_many_rounds_again": "1.5n"}
    header = ["", "RmsLoss", "MaxLoss", "σ", "ε", "ρ", "copies of the model", "search"]
    header += [f"ε: {case}" for case in cases.values()]
    rows, left_out = [], []
    for each in plan["mechanisms"]:
        if "rms_loss" not in each:
            left_out.append(f"{each['name']}: {each['note']}")
            continue
        wrong = each["epsilon_if_wrong"]
        epsilons = ["–" if refused else _up(value) for value in (each["epsilon"], *(wrong[case] for case in cases))]
        rows.append(
            [
                f"{each['name']} (recommended)" if each["name"] == plan["recommended"] else each["name"],
                digits.nearest(each["rms_loss"]),
                digits.nearest(each["max_loss"]),
                digits.upwards(each["noise_multiplier"]),
                epsilons[0],
                _up(each["zcdp_rho"]),
                f"{each['memory_rows']:,}",
                f"{each['seconds']:.1f} s",
                *epsilons[1:],
            ]
        )
    note = (
        "Losses compare mechanisms at equal privacy. The last three columns are ε at the same noise if the estimates "
        "are wrong: clients come back after b/2 or 2b rounds, or the run has 1.5n."
    )
    found = together(element("p", note), table(header, rows, name="mechanisms"))
    return together(found, bullets(left_out)) if left_out else found


def _charts(plan: Mapping[str, Any], curves: Mapping[str, Any]) -> list[Chart]:
    noise = styled([Curve(name=name, points=points) for name, points in curves["error_over_rounds"].items()])
    spent = styled(
        [Curve(name=name, points=points, drawn="steps") for name, points in curves["epsilon_over_rounds"].items()]
    )
    return [
        Chart(
            name="epsilon-over-delta",
            title="ε over δ",
            note=f"Of {plan['recommended']} at its planned noise; the plan is at δ = {plan['delta']}. {_SAFE}",
            x=Axis(label="δ", log=True),
            y=Axis(label="ε", from_zero=True),
            curves=[Curve(name="ε", points=curves["epsilon_over_delta"], drawn="steps")],
            value=digits.upwards,
        ),
        Chart(
            name="epsilon-over-rounds",
            title="ε over rounds",
            note=f"Of the first rounds alone, if their number is fixed in advance, at the planned noise. {_SAFE}",
            x=Axis(label="round", from_zero=True),
            y=Axis(label="ε", from_zero=True),
            curves=spent,
            value=digits.upwards,
        ),
        Chart(
            name="error-over-rounds",
            title="Error of each round",
            note="Standard deviation of the noise in a parameter of the sum of all mean updates so far.",
            x=Axis(label="round", from_zero=True),
            y=Axis(label="clip norms", from_zero=True),
            curves=noise,
            value=digits.nearest,
        ),
    ]


def _assumptions(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    b, k, cohort = plan["min_sep"], plan["max_participations"], plan["clients_per_round"]
    found = [
        (
            "participation",
            f"no client takes part more than {k:,} times, or twice within {b:,} rounds; something enforces it",
        ),
        ("who takes part when", "it does not depend on the clients' data"),
        ("population", f"at least {plan['population']:,} clients can take part, and δ = {plan['delta']} suits them"),
        ("cohort", f"the noise is calibrated for {cohort:,} clients a round, and the divisor is a constant"),
        ("one client", "is one person, or ε is that of a client and not of a person"),
        ("clipping", "every update is clipped to the clip norm before it is added up"),
        ("secrecy of the state", _SECRET_STATE),
        ("choice of settings", "no setting was chosen by repeated training on private clients, or that is counted too"),
        ("one run", f"at most {plan['rounds']:,} rounds are released, and each once"),
    ]
    if "amplified" in plan:
        text = (
            f"cohorts are drawn at random by {plan['sampling']} sampling and stay secret, or no amplified figure holds"
        )
        found.append(("sampling", text))
    return found


def _setting(plan: Mapping[str, Any]) -> Markup:
    return facts(
        [
            ("participation", plan["participation"]),
            ("separation b", f"{plan['min_sep']:,}"),
            ("participations k", f"{plan['max_participations']:,}"),
            ("restarts", None if plan["restart_every"] is None else f"every {plan['restart_every']:,} rounds"),
            ("adjacency", plan["adjacency"]),
            ("workload", plan["workload"]),
            ("objective", plan["objective"]),
        ]
    )


def _up(value: float | None) -> str:
    return "∞" if value is None else digits.upwards(value)
