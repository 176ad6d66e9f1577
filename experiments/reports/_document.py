"""A report as a document: the one place where its facts become words, for every medium."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_mf.numerics.digits import percent, upwards

from ..output.present import Block, Callout, Code, Document, Facts, Figure, Item, Listing, Paragraph, Section, Table
from ..output.text import seen, spaced, up, words
from ..runs import statements
from ..runs.metrics import ALSO_TRAINING
from ..runs.names import PLANNED_TEXT, REPORT_TEXT
from ..runs.words import text
from ._curves import charts
from ._facts import SECTIONS
from ._judgement import STOPPED_EARLY, TUNED, UNANSWERED
from ._other_files import DEVICE_REPORTS
from .questions import ASKED, QUESTIONS

_WIDTH = 79
_RUNS = {"planned": "planned", "realised": "as it ran"}
# What voids the guarantee comes first.
_STATES = {
    "violated": "Violated",
    "assumed": "Assumed, since nothing here can check it",
    "holds": "Checked, and holds",
}
_CAVEATS = (
    "This says how much anybody can learn about one client from everything that the training published, whatever else "
    "they know. A small number means: very little more than if the client had stayed away. It does not say that the "
    "model is fair or right, and it protects nobody from conclusions that hold for people like them. It holds only if "
    "what is assumed below is true, and only for this run: every further run on the same clients adds to it."
)
_CHECK_FIRST = (
    "Anybody can edit a page. Before you rely on this one, run `{command}` beside the folder of the run: it computes "
    "every figure again from the files, and says what does not follow from them."
)
_COVERED = "every noised sum, every intermediate model and the final model of this one run"
_NOT_COVERED = (
    "the choice of settings, and any tuning",
    "the vocabulary, and anything else that was made from the clients' data before the run",
    "clients that evaluate, as far as their metrics give them away",
)
_IN_SECRET = (
    "an amplified ε: sampling={kind!r} amplifies only where the rounds of a client are drawn independently of those of "
    "others, once for the run, and stay secret; here they follow from a seed, and the cohorts are logged"
)
_OF_DEVICES = (
    "Exact counts, without noise and outside the guarantee: whether an update was scaled or zeroed depends on a "
    "device's data. For the operator's eyes: report.md and tff-mf export-model leave them out."
)
_LABELS = {
    "mu": "μ_c that these errors cost",
    "log_ratio": "error η of a normal, as a logarithm of probabilities",
    "error": "error e of the recursion, in units",
    "tail": "total variation that δ includes",
    "added_sensitivity": "sensitivity that errors add",
    "stddev_of_z_in_the_sum": "standard deviation in a sum of updates",
    "stddev_of_z_in_the_mean": "standard deviation in their mean",
    "noise_multiplier": "noise multiplier σ",
    "clip_norm": "clip norm ζ",
}


def headline(report: Mapping[str, Any]) -> str:
    """Returns the guarantee that a report states in one line, or why it states none."""
    claim = statements.of_facts(report["claim"])
    line = statements.line(claim)
    return line if claim.state == statements.REFUSED or report["kind"] == "realised" else f"Planned: {line}"


def document(report: Mapping[str, Any], curves: Mapping[str, Any] | None = None, *, run: str = "RUN") -> Document:
    """Returns a report as a document, with figures if it is given `curves`."""
    claim = statements.of_facts(report["claim"])
    blocks = [
        Callout(headline(report), bad=claim.state == statements.REFUSED),
        Facts(_about(report)),
        None
        if curves is None
        else Paragraph(_CHECK_FIRST.format(command=shlex.join(["tff-mf", "report", run, "--check"]))),
        Paragraph(_CAVEATS),
        Section("ε, if every assumption holds", _epsilons(report)),
        Section("What it rests on", [*_assumptions(report["assumptions"])]),
        _findings(report, run),
        None if curves is None else Section("Figures", [Figure(each) for each in charts(report, curves)]),
        Section("Appendix: formal statement", [Paragraph(_statement(claim, realised=report["kind"] == "realised"))]),
        Section("Appendix: what is covered, and what is not", [Listing(_covered(report))]),
        Section("Appendix: what only the operator knows", [Listing(_answers(report["answers"]))]),
        Section("Appendix: quality of the model", [Paragraph(_quality(report["utility"]))]),
        Section("Appendix: random numbers and arithmetic", [Listing([*map(Item, _random_numbers(report))])]),
        *_details(report),
        Section("Appendix: settings", [_facts(report["settings"]) or Paragraph("None are known.")]),
        Section("Appendix: command", [Code(_command(report["command"]))]),
        Section("Appendix: files, by SHA-256", [Facts([*_files(report)])]),
    ]
    return Document(f"Privacy report ({report['kind']})" + ("" if curves is None else f": {run}"), blocks)


def screen(report: Mapping[str, Any], run: str = "RUN") -> Document:
    """Returns a report as a terminal shows it: the guarantee at a glance, and no appendix."""
    claim, planned = statements.of_facts(report["claim"]), report["kind"] == "planned"
    refused = claim.state == statements.REFUSED
    glance = f"{'Planned: ' if planned and not refused else ''}{statements.at_a_glance(claim)}"
    asked = f"tff-mf report {run} --answer" if claim.open_questions and not refused else ""
    whole = f"{PLANNED_TEXT if planned else REPORT_TEXT} in the folder of the run"
    about = [("Open questions", asked), *_about(report), ("The whole report", whole)]
    open_ones = [each for each in report["assumptions"] if each["state"] != "holds"]
    checked = ", ".join(spaced(each["name"]) for each in report["assumptions"] if each["state"] == "holds")
    blocks = [
        Callout(glance, bad=refused),
        Facts(about),
        _findings(report, run),
        Section("ε, if every assumption holds", _epsilons(report)),
        Section("What it rests on", [*_assumptions(open_ones), Facts([("Checked, and holds", checked)])]),
    ]
    return Document(f"Privacy report ({report['kind']})", blocks)


def _findings(report: Mapping[str, Any], run: str) -> Section:
    sound = [Item("None: nothing contradicts what is stated.")]
    return Section("Findings", [Listing(finding_items(report["findings"], run) or sound)])


def finding_items(findings: Iterable[Mapping[str, Any]], run: str = "RUN") -> list[Item]:
    """Returns findings in words, by severity, with all open questions in one entry."""
    findings = list(findings)
    unanswered = [spaced(each["field"]) for each in findings if each["code"] == UNANSWERED]
    found = []
    for severity in ("critical", "warning", "note"):
        found += [
            Item(text(each["code"], each["values"]), f"{severity.capitalize()}, {spaced(each['field'])}", severity)
            for each in findings
            if each["severity"] == severity and each["code"] != UNANSWERED
        ]
        if severity == "critical" and unanswered:
            asks = f"`tff-mf report {run} --answer` asks for it."
            found.append(Item(f"{', '.join(unanswered)}. {asks}", "Not answered yet, and ε is provisional", "warning"))
    return found


def verdict(findings: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Returns the state of a claim that a check found, and why it is that, from the findings of the check."""
    findings = list(findings)
    if any(each["severity"] == "critical" for each in findings):
        return statements.REFUSED, "no ε is stated"
    questions = [each["field"] for each in findings if each["code"] == UNANSWERED]
    runs = next((each["values"]["runs"] for each in findings if each["code"] == TUNED), None)
    state = statements.PROVISIONAL if questions else statements.QUALIFIED if runs else statements.STATED
    return state, ", ".join([state, *statements.caveats(questions, runs)])


def _about(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    about, answers = report["about"], report["answers"]
    data, took = about["data_set"], "" if about["seconds"] is None else f", {about['seconds']} seconds"
    of_data = [data["name"], *(f"{data[name]} {name}" for name in ("clients", "examples") if data[name] is not None)]
    of_data += [] if data["sha256"] is None else [f"SHA-256 {data['sha256']}"]
    someone = any(answers[each.name] is not None for each in QUESTIONS)
    time = "" if about["started"] is None else f"{about['started']} to {about['ended'] or 'no recorded end'}{took}"
    rows = {
        "Data set": ", ".join(each for each in of_data if each is not None),
        "Time": time,
        "Questions answered by": answers["answered_by"] or ("a person who is not named" if someone else "nobody yet"),
        "Report by": report["accountant"]["version"],
        "Run with": ", ".join(f"{name} {words(each)}" for name, each in report["versions"].items()),
    }
    return [(label, found or "not known") for label, found in rows.items()]


def _epsilons(report: Mapping[str, Any]) -> list[Block | None]:
    """Returns the table of ε; the ε of a person with several clients comes first."""
    accountant, claim = report["accountant"], statements.of_facts(report["claim"])
    columns = {name: accountant[name] for name in _RUNS if accountant[name] is not None}
    if not columns:
        return [Paragraph("None: no ε can be stated.")]
    first, several = next(iter(columns.values())), claim.clients_of_one_person
    lines = []
    if several is None:
        lines.append("ε of a person can be stated once it is answered how many clients one person can have.")
    elif several > 1:
        person = up(claim.epsilon_of_a_person)
        lines.append(f"ε of one person with {several} clients, who are all taken away at once: {person}.")
    rows = [[f"ε at δ = {first['delta']}", *(up(each["epsilon"]) for each in columns.values())]]
    for index, row in enumerate(first["epsilon_at"]):
        if row["delta"] != first["delta"]:
            values = (each["epsilon_at"][index : index + 1] for each in columns.values())
            rows.append([f"ε at δ = {row['delta']}", *(up(each[0]["epsilon"]) if each else "" for each in values)])
    rows += [
        [label, *(up(each[name]) for each in columns.values())]
        for name, label in (
            ("zcdp_rho", "ρ (zCDP)"),
            ("mu", "μ (GDP)"),
            ("epsilon_by_pld", "ε by PLD, a check"),
            ("epsilon_from_zcdp", "ε from ρ alone"),
        )
    ]
    table = Table(["", *(_RUNS[name] for name in columns)], rows, "figures of the guarantee")
    return [
        Listing([*map(Item, lines)]) if lines else None,
        table,
        Listing([Item(each) for each in _about_epsilons(report, several_columns=len(columns) > 1)]),
    ]


def _about_epsilons(report: Mapping[str, Any], *, several_columns: bool) -> Iterable[str]:
    claim = statements.of_facts(report["claim"])
    yield "Every figure is rounded up in its last digit, so that none is smaller than it is."
    if several_columns:
        stopped = any(each["code"] == STOPPED_EARLY for each in report["findings"])
        of = "larger one, since the run was stopped early" if stopped else "run as it ran"
        yield (
            "Planned is for any client that keeps to the participation schema, as it ran for those in the log, by the "
            f"rounds that each took part in. The headline is about the {of}."
        )
    if (tier := statements.tier(claim)) is not None:
        yield f"In words: {tier}, by {statements.TIERS_SOURCE}."
    if claim.cohort != claim.clients_per_round:
        yield (
            f"These are the figures of cohorts of {claim.cohort}. ε of the {claim.clients_per_round} clients a "
            f"round that really trained, at the same δ: {up(claim.epsilon_as_run)}."
        )


def _assumptions(assumptions: Sequence[Mapping[str, Any]]) -> Iterable[Section]:
    """Yields the assumptions of the guarantee by state."""
    for state, title in _STATES.items():
        items = [
            Item(text(each["code"], each["values"]), spaced(each["name"]), state)
            for each in assumptions
            if each["state"] == state
        ]
        if items:
            yield Section(title, [Listing(items)])


def _statement(claim: statements.Claim, *, realised: bool) -> str:
    """Returns the formal statement under all assumptions, or why none can be made."""
    if claim.state == statements.REFUSED:
        return f"No formal statement can be made. {statements.line(claim)}"
    adjacent = (
        "one is the other with all updates of one client set to zero"
        if claim.adjacency == "zero-out"
        else "they differ in all updates of one client, which may be any within the clip norm"
    )
    if claim.mu is None:
        return (
            f"Two data sets are neighbours if {adjacent}. For each client, if all assumptions hold, the release of all "
            f"{claim.rounds} noised sums, also adaptively chosen, and of all that is computed from them is "
            f"(ε, δ)-DP with ε at most {up(claim.epsilon)} at δ = {claim.delta}, by the secrecy of who took "
            "part. To whoever knows the cohorts only the figures of the accountant apply."
        )
    who = "each client in the log" if realised else "each client whose rounds keep the participation schema"
    tail = (
        " This is of a release that differs from the one computed by at most "
        f"{upwards(claim.tail or 0.0, 3)} in total variation, for every data set; δ includes that."
    )
    return (
        f"Two data sets are neighbours if {adjacent}. For {who}, if all assumptions hold, the release of all "
        f"{claim.rounds} noised sums, also adaptively chosen, and of all that is computed from them is μ-GDP with μ "
        f"at most {up(claim.mu)}: no test can tell neighbours apart better than it can tell N(0, 1) from N(μ, 1). "
        f"ρ-zCDP and (ε, δ)-DP follow.{tail if claim.tail else ''}"
    )


def _covered(report: Mapping[str, Any]) -> list[Item]:
    runs, covered = report["answers"]["tuning_runs"], report["covered"]
    evaluated = ALSO_TRAINING if covered["evaluated_on_training"] else "clients that do not train"
    kind = covered["sampling_in_secret"]
    missing = [
        *_NOT_COVERED,
        f"evaluation, which is on {evaluated} and is released without noise",
        "an unknown number of earlier runs" if runs is None else f"{runs} earlier runs, which chose the settings",
        *([] if kind is None else [_IN_SECRET.format(kind=kind)]),
    ]
    return [Item(_COVERED, "Covered"), *(Item(each, "Not covered") for each in missing)]


def _answers(answers: Mapping[str, Any]) -> list[Item]:
    given = {each.text: answers[each.name] for each in ASKED}
    return [Item("NOT ANSWERED" if each is None else words(each), asked) for asked, each in given.items()]


def _quality(utility: Mapping[str, Any] | None) -> str:
    if utility is None:
        return "Nothing is known of it."
    accuracy = "none" if utility["accuracy"] is None else f"{percent(utility['accuracy'], None)} %"
    loss, number = utility["loss"], utility["test_sentences"]
    on = "as metrics.csv has it" if number is None else f"on {number:,} test sentences"
    return (
        f"Accuracy {accuracy}, loss {'none' if loss is None else format(loss, '.3f')}: claimed by summary.json, {on}; "
        "nothing here can evaluate the model again."
    )


def _details(report: Mapping[str, Any]) -> Iterable[Section]:
    """Yields every section of facts as it is, with all digits: a new fact is here without another line."""
    for name in (*SECTIONS, "grid", DEVICE_REPORTS):
        rows = _facts(report.get(name) or {})
        if rows is not None:
            remarks = [Paragraph(_OF_DEVICES)] if name == DEVICE_REPORTS else []
            yield Section(f"Appendix: {spaced(name)}", [rows, *remarks])


def _facts(values: Mapping[str, Any]) -> Facts | None:
    rows = [(_LABELS.get(name, spaced(name)), words(each)) for name, each in values.items() if each is not None]
    return Facts(rows) if rows else None


_TABLES, _BOX_MULLER = "tables and inverse transform, float64, with a proved error", "Box-Muller, float32"
# What draws the noise, by generator, in floating point and on a grid.
_DRAWN = {
    "tensorflow graph": "Philox 4x32-10 (TensorFlow stateless random)",
    "aes": "AES-128 in counter mode",
    "philox": "Philox 4x64-10 (NumPy)",
    "tensorflow": "Philox 4x32-10 (TensorFlow's, in NumPy)",
}
_FLOAT32 = ("tensorflow graph", "tensorflow")


def _random_numbers(report: Mapping[str, Any]) -> Iterable[str]:
    """Yields, in words, where random numbers come from, and in which arithmetic noise and figures are computed."""
    drawn, grid = report["randomness"], report["grid"]
    generator, seed = drawn["generator"], drawn["insecure_seed"]
    in_float32 = generator in _FLOAT32 and grid is None
    yield f"Random numbers: {_DRAWN.get(generator, generator)}, {_BOX_MULLER if in_float32 else _TABLES}."
    yield (
        "Keys: 128 bits of the operating system's generator for every round, drawn when the round runs."
        if seed is None
        else f"TEST ONLY: every key follows from the seed {seed}."
    )
    if grid is None:
        yield "Noise: float32, continuous Gaussian; the standard deviation is rounded up."
        yield "Accounting: float64 for the parameters as cast to float32; every figure is rounded up."
        return
    yield "Noise: integers in units of the grid: normals are rounded inside the recursion, and added to exact sums."
    yield (
        "Accounting: float64 for the parameters as cast to float32; every figure is rounded up. What the errors of the "
        "noise cost is part of μ twice, and what lies beyond its tail is part of δ. The proof takes the words of the "
        "generator for random ones."
    )


def _command(command: Sequence[str]) -> list[str]:
    """Returns a command to copy, with line breaks between its words."""
    if not command:
        return ["It is not known."]
    lines = [""]
    for word in map(seen, map(shlex.quote, command)):
        if lines[-1] and len(f"    {lines[-1]} {word} \\") > _WIDTH:
            lines.append("  ")
        lines[-1] += f"{' ' if lines[-1].strip() else ''}{word}"
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _files(report: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    files = report["files"]
    yield from ((words(name), each if isinstance(each, str) else json.dumps(each)) for name, each in files.items())
    if report["mechanism"]["sha256"] not in files.values():
        yield "the mechanism that the run was set to have", report["mechanism"]["sha256"]
