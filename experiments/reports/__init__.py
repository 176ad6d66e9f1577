"""The privacy report of a run: what its files support, as JSON, Markdown and a web page, and the check of a stored one.

Everything follows from `run.json`, the artifact, the ledger, the metrics and the model in the folder of a run. Whoever
owns the folder is trusted: a check finds mistakes, and no forgery. Pipelines of others read and write `run.json` by the
names of this package.
"""

import base64
import dataclasses
import functools
import html as html_text
import io
import json
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jinja2
import markdown as python_markdown
import msgspec

import tff_mf
from tff_mf.base import checkpoint_files, required_packages, strict_json
from tff_mf.base import files as base_files
from tff_mf.base.errors import InputError
from tff_mf.base.strict_json import finite
from tff_mf.numerics import digits
from tff_mf.sensitivities.losses import round_errors

from ..output import typed
from ..output.console import seen as visible
from ..output.console import up
from ..output.files import FOLDER_LOCK, file_hash, write_atomically
from ..output.typed import Record
from ..runs import names, statements
from ..runs.folders import RunRecord as RunRecord
from ..runs.folders import check_fields as check_fields
from ..runs.folders import read_record as read_record
from ..runs.folders import write_record as write_record
from ..runs.ledger import LedgerRecord
from ..runs.settings import FILES
from ..runs.statements import REFUSED, Claim
from .evidence import Check, Computed, Evidence, parameters_of, summary_of
from .evidence import gather as gather
from .evidence import judged as judged

# By how much of itself a stored claim may be smaller than the recomputed one, and how far from it at all: last bits
# differ between processors.
TOO_SMALL, APART = 1e-9, 1e-6
# Numbers that are computed, in which a claim gets weaker as they grow. All others stand in the files as they are.
CLAIMS = (
    *("epsilon", "epsilon_as_run", "epsilon_of_a_person", "epsilon_with_runs_before"),
    *("mu", "zcdp_rho", "tail", "sensitivity"),
)
# What a check does not compare: words, which may change, and who wrote them.
_WORDS = frozenset({"text", "warnings", "not_checked", "made_by"})
# Part of a round's device reports above which bad ones are a warning.
_MANY = 0.1
_TEMPLATES = jinja2.FileSystemLoader(pathlib.Path(__file__).parent)
_PLANNED_FILES = (names.RUN_JSON, names.PLAN, names.MECHANISM)
_FINAL_FILES = (
    *(*_PLANNED_FILES, names.LEDGER, names.METRICS, names.SUMMARY, names.MODEL),
    *(names.EVALUATED, names.SETTINGS_TOML, names.VOCABULARY),
)
# What a run writes once it has begun.
_OF_A_RUN = (
    *(names.LEDGER, names.METRICS, names.SUMMARY, names.MODEL),
    *(names.REPORT, names.REPORT_TEXT, names.CHECKPOINTS, FOLDER_LOCK),
)


class Log(Record, kw_only=True):
    """What the ledger says of the rounds.

    Attributes:
        computed_again: Rounds with several attempts, at most one of which was released.
        started: By the clock of the machine, as `ended`, which is not written of secret cohorts; of a search, neither
            is written.
    """

    released: int
    computed_again: int
    started: str | None
    ended: str | None
    has_ended: bool


class Figures(Record, kw_only=True):
    """A guarantee in each privacy measure, with the sensitivity that it follows from; infinite values are `None`."""

    sensitivity: float
    epsilon: float | None
    zcdp_rho: float | None
    mu: float | None


class Report(Record, kw_only=True):
    """The content of `report.json`, and before the run of `planned.json`; `docs/report.md` describes it.

    As text it is the guarantee in one line, or how far a run is that has not ended.

    Attributes:
        report: Version of the format.
        kind: "realised", from the log of the run, or "planned".
        made_by: The release that wrote it.
        claim: What is stated, or why nothing is.
        sensitivity: The sensitivity of what is stated.
        planned: Figures for every client that keeps to the schema; `None` if no ε is stated.
        realised: Figures for the clients in the log; likewise, and of a search, whose other runs no log has.
        log: What the ledger says; `None` before the run, or if it cannot be read.
        checked: Every rule that the files keep.
        warnings: What a reader needs to know, and what voids nothing.
        mechanism: Its kind.
        accuracy: Test accuracy of the final model, if `summary.json` has it.
        plan: `plan.json`.
        run: `run.json`, without the planned cohorts, the command line and the folders of files: a report is published.
        files: SHA-256 of each file that the report follows from.
    """

    report: Literal[5]
    kind: Literal["planned", "realised"]
    made_by: str
    claim: Claim
    sensitivity: float | None
    planned: Figures | None
    realised: Figures | None
    log: Log | None
    checked: Sequence[Check]
    warnings: Sequence[str]
    mechanism: str
    accuracy: float | None
    plan: dict[str, Any]
    run: dict[str, Any]
    files: dict[str, str]

    def __str__(self) -> str:
        if self.log is None or self.log.has_ended:
            return self.headline
        return (
            f"{self.log.released} of {self.plan['rounds']} rounds are released, and the run has not ended: go "
            "on with training.cohorts(clients), or end it here with training.report(end=True), which states the ε."
        )

    @property
    def headline(self) -> str:
        """The guarantee that is stated in one line, or why none is."""
        planned = self.kind == "planned" and self.claim.state != REFUSED
        return f"{'Planned: ' if planned else ''}{statements.line(self.claim)}"

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `report.json`."""
        return msgspec.json.decode(msgspec.json.encode(self))

    def as_text(self) -> str:
        """Returns the text of `report.json`."""
        return json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"


def read(path: pathlib.Path) -> Report:
    """Returns the report in a file: `report.json`, or `planned.json`.

    Raises:
        InputValueError: If it is none; the message names the field.
    """
    return typed.read(path, Report, "report")


def build(folder: pathlib.Path, *, realised: bool, runs_before: int = 0) -> Report:
    """Returns the report of a run, computed from the files in its folder alone.

    Formal guarantee: the report contains a finite ε only if no rule is violated and nothing forbids its claim; the ε is
    rounded up in texts.

    Args:
        folder: The run's folder.
        realised: Whether to build the final report, from the logs of the run; else the planned report.
        runs_before: Runs on the same clients before this one, none planned for less noise, which ε counts too.
    """
    return _built(gather(folder, realised=realised, runs_before=runs_before))


def _built(evidence: Evidence) -> Report:
    folder, realised = evidence.folder, evidence.realised
    checked, claim = judged(evidence)
    ledger, stated, refused = evidence.ledger, evidence.stated, claim.state == REFUSED
    plan, run = _quoted(folder, names.PLAN), _quoted(folder, names.RUN_JSON, "cohorts", "command")
    log = Log(
        released=len(ledger.released),
        computed_again=sum(times > 1 for times in ledger.attempts.values()),
        # When a search's run began says how many came before it.
        started=ledger.started.isoformat() if ledger.started and not evidence.plan.search else None,
        ended=ledger.finished.isoformat() if ledger.finished and not evidence.plan.search else None,
        has_ended=ledger.ended,
    )
    report = Report(
        report=5,
        kind="realised" if realised else "planned",
        made_by=f"tff-mf {tff_mf.__version__}",
        claim=claim,
        sensitivity=stated.sensitivity.value if stated else None,
        planned=None if refused else _figures(evidence.planned, claim.delta),
        realised=None if refused or evidence.plan.search else _figures(evidence.seen, claim.delta),
        log=log if ledger.run else None,
        checked=checked,
        warnings=_warnings(evidence, claim),
        mechanism=evidence.plan.mechanism.kind,
        accuracy=summary_of(evidence).get("accuracy"),
        plan=statements.without_epsilon(plan) if refused else plan,
        run=statements.without_epsilon(run) if refused else run,
        files={
            name: file_hash(folder / name)
            for name in (_FINAL_FILES if realised else _PLANNED_FILES)
            if (folder / name).is_file()
        },
    )
    # As a file has it, each field of its type.
    return typed.convert(report.as_json(), Report, "report")


def _figures(computed: Computed | None, delta: float) -> Figures | None:
    if computed is None:
        return None
    guarantee = computed.guarantee
    return Figures(
        sensitivity=computed.sensitivity.value,
        epsilon=finite(guarantee.epsilon(delta)),
        zcdp_rho=finite(guarantee.zcdp_rho),
        mu=finite(guarantee.mu),
    )


def _quoted(folder: pathlib.Path, name: str, *left_out: str) -> dict[str, Any]:
    """Returns what a file of the plan says, without the folders of files, since a report is published."""
    content = strict_json.read(folder / name, name)
    quoted = {key: value for key, value in content.items() if value is not None and key not in left_out}
    for part in ("settings", "about"):
        if own := quoted.get(part):
            own = {key: value for key, value in own.items() if value is not None}
            files = {key: _without_folder(own[key]) for key in FILES if isinstance(own.get(key), str)}
            quoted[part] = {**own, **files}
    return quoted


def _without_folder(name: str) -> str:
    """Returns the name of a file without its folder; a word stays as it is.

    Example:
        >>> _without_folder("sqlite:/home/ann/data.sqlite")
        'sqlite:data.sqlite'
    """
    return re.sub("[^:/]*/", "", name)


def _warnings(evidence: Evidence, claim: Claim) -> list[str]:
    """Returns what a reader needs to know, and what voids nothing."""
    record, plan, warnings = evidence.record, evidence.plan, []
    if not evidence.realised:
        warnings.append("this is a plan: it is about the settings of the run, not about what it did")
    if all(reason.field != "delta" for reason in claim.reasons):
        warnings.append(statements.uncustomary_delta(plan.delta, claim.population))
    if evidence.ledger.run and evidence.last_round < plan.rounds:
        warnings.append(
            f"stopped after {evidence.last_round} of {plan.rounds} rounds, the last released round with clients: the "
            "larger of the planned and the final figures is stated, since the decision may depend on what was released"
        )
    clients = plan.clients_per_round
    other = [number for number, size in evidence.ledger.sizes.items() if size != clients]
    if other and not record.is_secret:
        warnings.append(f"{len(other)} rounds had other than {clients} clients, round {other[0]} first")
    drawn = record.drawn
    if drawn is not None and drawn.is_secret and not record.is_secret:
        warnings.append(
            f"sampling={drawn.sampling!r} amplifies only where cohorts stay secret; here they follow from a seed, and "
            "are logged: the ε is that of known cohorts"
        )
    if evidence.realised and plan.grid is not None and parameters_of(evidence) is None:
        warnings.append(f"no model is here: what the grid costs is for at most {plan.dimension} parameters")
    return [warning for warning in warnings if warning]


def _of_devices(ledger: LedgerRecord) -> list[str]:
    """Returns what to warn the operator of in the counts of the devices' reports, which no report has."""
    counts = sorted(ledger.reports.items())
    empty = [number for number, count in counts if count.counted == count.zeroed]
    bad = [number for number, count in counts if count.bad > _MANY * count.came]
    warnings = []
    if empty:
        warnings.append(f"{len(empty)} rounds have no update in them, round {empty[0]} first: noise alone")
    if bad:
        warnings.append(f"in {len(bad)} rounds, round {bad[0]} first, many reports were refused, scaled or zeroed")
    return warnings


@functools.cache
def _page() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=_TEMPLATES,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Texts of others are no markup, and neither hide nor reorder what is around them.
        finalize=lambda value: _plain(value) if isinstance(value, str) else value,
        autoescape=False,
    )
    environment.filters.update(
        up=up,
        bound=functools.partial(digits.upwards, digits=3),
        down=digits.downwards,
        sensitivity=functools.partial(digits.upwards, digits=6),
    )
    return environment.get_template("report.md.j2")


def _plain(text: str) -> str:
    """Returns a text of others for Markdown, in which no character of it is markup."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html_text.escape(visible(text), quote=False))


def markdown(report: Report, *, appendix: bool = True) -> str:
    """Returns the page of a report; its appendix quotes plan and run."""
    columns = [(name, getattr(report, name)) for name in ("planned", "realised") if getattr(report, name) is not None]
    page = _page().render(
        **msgspec.structs.asdict(report),
        headline=report.headline,
        columns=columns,
        data=report.run.get("settings", report.run.get("about", {})),
    )
    if not appendix:
        return page
    # Characters beyond ASCII are escaped: none hides or reorders others, and a block of code has no markup.
    code = json.dumps({"plan": report.plan, "run": report.run, "files": report.files}, indent=1).splitlines()
    return f"{page}\n## Appendix\n\n" + "".join(f"    {line}\n" for line in code)


def html(report: Report, pictures: Mapping[str, bytes]) -> str:
    """Returns the page of a report as one HTML file that runs and loads nothing, with pictures by their titles."""
    page = jinja2.Environment(loader=_TEMPLATES, autoescape=False).get_template("report.html.j2")
    body, _, appendix = markdown(report).rpartition("\n## Appendix\n\n")
    return page.render(
        state=report.claim.state,
        body=python_markdown.markdown(body, extensions=["tables"]),
        appendix=python_markdown.markdown(appendix),
        pictures={title: base64.b64encode(content).decode() for title, content in pictures.items()},
    )


def _pictures(evidence: Evidence) -> dict[str, bytes]:
    """Returns PNG files by their titles: the error of each round, and the accuracy, where they are known.

    The error is the standard deviation of the noise in a parameter of the sum of all released updates so far.
    """
    import matplotlib.figure

    plan = evidence.plan
    rounds = min(plan.rounds, plan.mechanism.max_rounds or plan.rounds)
    errors = round_errors(plan.mechanism, rounds, restart_every=min(plan.restart_every or rounds, rounds))
    scaled = errors * plan.noise_multiplier_as_run * plan.clip_norm / plan.clients_per_round
    curves: dict[str, Sequence[tuple[float, float]]] = {
        "Noise in the sum of all updates so far": list(enumerate(map(float, scaled), start=1))
    }
    if evidence.metrics.accuracies:
        curves["Validation accuracy"] = evidence.metrics.accuracies
    drawn = {}
    for title, points in curves.items():
        figure = matplotlib.figure.Figure(figsize=(6, 3), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*points, strict=True), color="#0072B2", marker="o" if len(points) < 30 else "")
        axes.set(title=title, xlabel="round", ylim=(0, 1.1 * max(value for _, value in points) or 1))
        axes.grid(alpha=0.3)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=150)
        drawn[title] = content.getvalue()
    return drawn


def write(folder: pathlib.Path, *, realised: bool, page: bool = False, runs_before: int = 0) -> Report:
    """Builds a run's report, writes it as JSON and as Markdown, and returns it.

    Args:
        folder: The run's folder, with `run.json` and, for the final report, its logs.
        realised: Whether to write the final report; else the planned report.
        page: Whether to write a web page too, which is written anew if there is one.
        runs_before: As for `build`.
    """
    evidence = gather(folder, realised=realised, runs_before=runs_before)
    report = _built(evidence)
    as_json, as_markdown, as_html = _names(realised=realised)
    write_atomically(folder / as_json, report.as_text())
    write_atomically(folder / as_markdown, markdown(report))
    if page or (folder / as_html).exists():
        drawn = _pictures(evidence) if required_packages.is_installed("matplotlib") else {}
        write_atomically(folder / as_html, html(report, drawn))
    return report


def _names(*, realised: bool) -> tuple[str, str, str]:
    if realised:
        return names.REPORT, names.REPORT_TEXT, names.REPORT_PAGE
    return names.PLANNED, names.PLANNED_TEXT, names.PLANNED_PAGE


def has_begun(folder: pathlib.Path) -> bool:
    """Returns whether a folder has a file that a run writes once it begins."""
    return any(os.path.lexists(folder / name) for name in _OF_A_RUN)


def differing(stored: Any, recomputed: Any, name: str = "") -> list[str]:
    """Returns the fields in which a stored report does not agree with the one that follows from the files.

    Formal guarantee: if there are none, no ε, μ, ρ, tail or sensitivity of the stored report is smaller than the
    recomputed one by more than 1e-9 of it, or further away than 1e-6 of it; everything else is equal, but for words,
    which are not compared.

    Example:
        >>> differing({"claim": {"epsilon": 7.9}, "rounds": 3}, {"claim": {"epsilon": 8.0}, "rounds": 3})
        ['claim.epsilon']
    """
    if isinstance(recomputed, Mapping) and isinstance(stored, Mapping):
        fields = []
        for key in dict.fromkeys([*recomputed, *stored]):
            path = f"{name}.{key}".removeprefix(".")
            if key not in stored or key not in recomputed:
                fields.append(path)
            elif key not in _WORDS:
                fields += differing(stored[key], recomputed[key], path)
        return fields
    if isinstance(recomputed, list) and isinstance(stored, list) and len(stored) == len(recomputed):
        differs = any(differing(*pair, name) for pair in zip(stored, recomputed, strict=True))
    elif isinstance(recomputed, float) and isinstance(stored, float) and name.rpartition(".")[2] in CLAIMS:
        differs = not math.isclose(stored, recomputed, rel_tol=APART) or stored < recomputed * (1 - TOO_SMALL)
    else:
        differs = type(stored) is not type(recomputed) or stored != recomputed
    return [name] if differs else []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check found.

    Attributes:
        report: The report that follows from the files now.
        differs: Fields of the stored report that differ from it, or what is wrong with its file.
        warnings: What a reader needs to know, and what voids nothing.
    """

    report: Report
    differs: Sequence[str]
    warnings: Sequence[str]

    @property
    def problems(self) -> list[str]:
        """Where the stored report differs, and why no ε is stated; empty if one is, by a report that follows."""
        differs = [f"report: {name}" for name in self.differs]
        return [*differs, *(f"{reason.field}: {reason.text}" for reason in self.report.claim.reasons)]


def check(folder: pathlib.Path) -> Checked:
    """Returns whether the stored report of a run follows from its files, and what they support.

    Formal guarantee: there are no `problems` only if no rule is violated, and the stored report, if there is one,
    agrees with the files as `differing` says. Whoever rewrites the whole folder is not detected: `sha256sum` protects a
    folder that is handed on.

    Args:
        folder: The run's folder. If it has a log, the run has ended or was interrupted.

    Raises:
        InputValueError: If `run.json` is missing or damaged.
    """
    begun = has_begun(folder)
    as_json, *pages = _names(realised=begun)
    stored, differs = _read(folder / as_json)
    evidence = gather(folder, realised=begun, runs_before=0 if stored is None else stored.claim.runs_before)
    report, ledger = _built(evidence), evidence.ledger
    warnings = [*report.warnings, *_of_devices(ledger)]
    if not begun:
        warnings.insert(0, "no file of a run that began is here: a run whose files were removed looks the same")
    if unfinished := sorted(str(path.relative_to(folder)) for path in base_files.unfinished(folder, subfolders=True)):
        warnings.append(
            f"a killed process left {', '.join(unfinished)}, which may have keys of the noise: delete it, or resume "
            "the run, which deletes it"
        )
    saved = checkpoint_files.saved_rounds(folder / names.CHECKPOINTS)
    if saved and ledger.ended:
        warnings.append(
            f"{names.CHECKPOINTS} has the state of round {saved[-1]}, with keys of the noise, and the run has ended: "
            "delete it"
        )
    elif saved and saved[-1] < ledger.last_released:
        warnings.append(
            f"{names.CHECKPOINTS} has the state of round {saved[-1]}, and round {ledger.last_released} was released: "
            "put back the newest state, or end the run with --end"
        )
    if not begun and not (folder / as_json).exists():
        return Checked(report=report, differs=[], warnings=[*warnings, "there is no report to check"])
    if stored is not None:
        differs = differing(stored.as_json(), report.as_json())
        # Another release has other words.
        if not differs and stored.made_by == report.made_by:
            differs = [name for name in pages if not _is_page_of(stored, folder / name)]
    return Checked(report=report, differs=differs, warnings=warnings)


def _is_page_of(report: Report, path: pathlib.Path) -> bool:
    """Returns whether a page, in Markdown or HTML, is that of a report; one in HTML may be missing."""
    try:
        page = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return path.suffix == ".html"
    except (OSError, ValueError):
        return False
    # Without its pictures.
    return _text(html(report, {})) == _text(page) if path.suffix == ".html" else page == markdown(report)


def _text(page: str) -> str:
    """Returns what a page in HTML shows, without its pictures."""
    return " ".join(html_text.unescape(re.sub("<[^>]*>", " ", page)).split())


def _read(path: pathlib.Path) -> tuple[Report | None, list[str]]:
    """Returns a stored report, or what is wrong with its file."""
    if not path.exists():
        return None, [f"{path.name} is missing"]
    try:
        return read(path), []
    except InputError as error:
        return None, [f"{error} Write it again with `tff-mf report`."]
