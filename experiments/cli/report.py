"""`tff-mf report`: the privacy report of a run."""

import json
import pathlib

import rich_click as click

from . import _options, _screens


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
@_options.option("digest")
@click.option("--planned", is_flag=True, help="Report the planned run, not what ran.")
@_options.option("html")
@click.option("--schema", is_flag=True, help="Print the JSON schema of reports; needs no RUN.")
@_options.as_json
def report(
    run: str | None,
    answer: bool,
    questions: bool,
    out: str | None,
    check: bool,
    digest: str | None,
    planned: bool,
    html: str | None,
    schema: bool,
    as_json: bool,
) -> None:
    """Write, print and check the privacy report of a run, from the files in its folder.

    RUN is the run's folder. Some questions only you can answer, in RUN/answers.json: --answer asks them, --questions
    writes the file for an editor or a script; ε is provisional until all are answered. The digest is printed to stderr:
    keep it where no one who can write to RUN can change it, and check with --digest. Exit status 1 with --check if a
    finding is critical: then no ε is stated, or the report does not follow from the files.
    """
    from .. import reports
    from ..runs import names
    from ..runs.folders import readable_folder

    if schema:
        click.echo(json.dumps(reports.SCHEMA, indent=1))
        return
    _check_flags(run, answer=answer, questions=questions, out=out, check=check, held=digest, planned=planned, html=html)
    folder = readable_folder(pathlib.Path(run or ""))
    page = _options.html_page(html)
    if questions:
        from ._answers import write_form

        write_form(folder, folder / names.ANSWERS if out is None else pathlib.Path(out))
        return
    if check:
        _check(folder, digest, as_json=as_json)
        return
    if answer:
        from ._answers import ask

        reports.read_configuration(folder)
        current = _is_current(folder)
        ask(folder)
        if current:
            # The plan has the answers too.
            reports.write_anew(folder)
    _write(folder, planned=planned, page=page, as_json=as_json)


def _check_flags(
    run: str | None,
    *,
    answer: bool,
    questions: bool,
    out: str | None,
    check: bool,
    held: str | None,
    planned: bool,
    html: str | None,
) -> None:
    """Raises if flags contradict each other."""
    if run is None:
        raise click.UsageError("RUN is missing: name the folder of a run.")
    chosen = {"--answer": answer, "--questions": questions, "--check": check}
    given = [flag for flag, value in chosen.items() if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} do not go together: give one of them.")
    for flag, value, needed, there in (
        ("--out", out, "--questions", questions),
        ("--digest", held, "--check", check),
    ):
        if value is not None and not there:
            raise click.UsageError(f"{flag} goes with {needed}.")
    for flag, wanted in (("--planned", planned), ("--html", html is not None)):
        if wanted and (questions or check):
            raise click.UsageError(f"{flag} does not go with {given[0]}.")


def _check(folder: pathlib.Path, held: str | None, *, as_json: bool) -> None:
    import msgspec

    from .. import reports
    from ..output import present

    findings = reports.check(folder, held=held)
    critical = [each for each in findings if each.severity == "critical"]
    facts = msgspec.to_builtins(findings)
    if as_json:
        said = [{**fact, "text": each.text} for fact, each in zip(facts, findings, strict=True)]
        click.echo(json.dumps({"critical": len(critical), "findings": said}))
    else:
        listed = present.Section("", [present.Listing(reports.finding_items(facts, str(folder)))])
        for line in present.terminal(listed):
            click.echo(line)
        states_none = "; no ε is stated" if critical else ""
        click.echo(f"{len(critical)} critical of {len(findings)} findings{states_none}")
        if held is None:
            click.echo("not checked without --digest: whether all files were rewritten together", err=True)
    if critical:
        raise SystemExit(1)


def _is_current(folder: pathlib.Path) -> bool:
    from tff_mf.base.errors import InputError

    from .. import reports

    try:
        return reports.is_current(folder)
    except InputError:
        # The answers are damaged, and are about to be repaired.
        return False


def _write(folder: pathlib.Path, *, planned: bool, page: pathlib.Path | None, as_json: bool) -> None:
    from .. import reports

    begun = reports.has_begun(folder)
    realised = begun and not planned
    made = reports.write(folder, realised=realised)
    if page is not None:
        from ..output.present import html

        curves = reports.curves(folder, realised=realised)
        html.write_page(page, reports.document(made, curves, run=folder.resolve().name))
    if not begun:
        click.echo("by its files, nothing has run here: this is a plan", err=True)
    if as_json:
        click.echo(json.dumps(made))
    else:
        _screens.show_document(reports.document(made, run=str(folder)))
    click.echo(f"digest: {made['digest']}", err=True)
    if page is not None:
        click.echo(f"page: {page}", err=True)
