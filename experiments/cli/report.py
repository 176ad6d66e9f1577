"""`tff-mf report`: the privacy report of a run."""

import json
import pathlib

import rich_click as click

from ..output.present import Callout, Listing
from . import _options
from ._screens import Answer

# Options that write no report, with those that they go with.
_ALONE: dict[str, set[str]] = {"questions": {"run", "out", "as_json"}, "check": {"run", "as_json"}}


@_options.command()
@click.argument("run", metavar="RUN", required=False)
@click.option(
    "--answer", is_flag=True, help="First ask the questions that only you can answer, and write RUN/answers.json."
)
@click.option("--questions", is_flag=True, help="Write RUN/answers.json, or --out, to fill in, and no report.")
@_options.option("out")
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing; compare the report with the files, and exit with 1 on a critical finding.",
)
@click.option("--planned", is_flag=True, help="Report the planned run, not what ran.")
@_options.option("html")
@click.option("--schema", is_flag=True, help="Print the JSON schema of reports; needs no RUN.")
def report(
    run: str | None,
    answer: bool,
    questions: bool,
    out: str | None,
    check: bool,
    planned: bool,
    html: str | None,
    schema: bool,
) -> Answer | None:
    """Write, print and check the privacy report of a run, from the files in its folder.

    RUN is the run's folder. Some questions only you can answer, in RUN/answers.json: --answer asks them, --questions
    writes the file for an editor or a script; ε is provisional until all are answered. Exit status 1 with --check if a
    finding is critical: then no ε is stated, or the report does not follow from the files.
    """
    from .. import reports
    from ..runs import names
    from ..runs.folders import readable_folder
    from . import _questions

    if schema:
        click.echo(json.dumps(reports.SCHEMA, indent=1))
        return None
    if run is None:
        raise click.UsageError("RUN is missing: name the folder of a run.")
    _options.check_together(_ALONE, {"out": "questions"})
    folder = readable_folder(pathlib.Path(run))
    page = _options.html_page(html)
    if questions:
        _questions.write_form(folder, folder / names.ANSWERS if out is None else pathlib.Path(out))
        return None
    if check:
        return _check(folder)
    if answer:
        reports.read_record(folder)
        try:
            _questions.ask(folder)
        finally:
            if reports.has_report(folder):
                # It has the answers too, also of somebody who stops.
                reports.write(folder, realised=reports.has_begun(folder))
    return _written(folder, planned=planned, page=page)


def _check(folder: pathlib.Path) -> Answer:
    import msgspec

    from .. import reports

    findings = reports.check(folder)
    critical = sum(each.severity == "critical" for each in findings)
    facts = msgspec.to_builtins(findings)
    said = [{**fact, "text": each.text} for fact, each in zip(facts, findings, strict=True)]
    state, why = reports.verdict(facts)
    verdict = f"{critical} critical of {len(findings)} finding{'' if len(findings) == 1 else 's'}; {why}"
    words = [Callout(verdict, bad=critical > 0), Listing(reports.finding_items(facts, str(folder)))]
    return Answer({"critical": critical, "state": state, "findings": said}, words, failed=critical > 0)


def _written(folder: pathlib.Path, *, planned: bool, page: pathlib.Path | None) -> Answer:
    """Writes the report of a run, and the page if one is wanted."""
    from .. import reports

    begun = reports.has_begun(folder)
    realised = begun and not planned
    if begun and planned:
        # Not written: it stays as it was before the run.
        made = reports.build(folder, realised=False)
    else:
        made = reports.write(folder, realised=begun)
        if not begun:
            click.echo("by its files, nothing has run here: this is a plan", err=True)
    if page is not None:
        from ..output.present import html

        curves = reports.curves(folder, realised=realised)
        html.write_page(page, reports.document(made, curves, run=folder.resolve().name))
        click.echo(f"page: {page}", err=True)
    return Answer(made, reports.screen(made, str(folder)))
