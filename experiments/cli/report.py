"""`tff-mf report`: the privacy report of a run."""

import json
import pathlib

import click


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--check", is_flag=True, help="Write nothing; compare with the files, exit 1 on a critical finding.")
@click.option("--digest", "held", metavar="HEX", help="With --check: the digest that was kept when the run ended.")
@click.option("--planned", is_flag=True, help="The report of what the run was set to do, whatever ran.")
@click.option("--questions", is_flag=True, help="Print answers.json to fill in.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of reports.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def report(
    run: str, check: bool, held: str | None, planned: bool, questions: bool, schema: bool, as_json: bool
) -> None:
    """Write, print and check the privacy report of a run, from the files in its folder.

    RUN is the folder. What only you know goes into answers.json in it; without all answers no ε is stated. The digest
    is printed to stderr: keep it where nobody who can write to RUN reaches it, and check with --digest. Exit status 1
    with --check if a finding is critical.
    """
    from .. import reports
    from ..reports._questions import QUESTIONS, read_answers
    from ..reports._schema import SCHEMA

    folder = pathlib.Path(run)
    if schema:
        click.echo(json.dumps(SCHEMA, indent=1))
        return
    if questions:
        answers = read_answers(folder)
        for question in QUESTIONS:
            click.echo(f"{question.name}: {question.text}", err=True)
        click.echo(json.dumps(answers, indent=1, ensure_ascii=False))
        return
    if check:
        findings = reports.check(folder, held=held)
        critical = [each for each in findings if each.severity == "critical"]
        if as_json:
            click.echo(json.dumps({"critical": len(critical), "findings": [vars(each) for each in findings]}))
        else:
            for each in findings:
                click.echo(f"{each.severity}: {each.field}: {each.text}")
            click.echo(f"{len(critical)} critical of {len(findings)} findings")
            if held is None:
                click.echo("without --digest: somebody who writes every file anew is not found out", err=True)
        if critical:
            raise SystemExit(1)
        return
    if held is not None:
        raise click.UsageError("--digest goes with --check.")
    begun = reports.has_begun(folder)
    if not begun:
        click.echo("nothing ran here, by its files: this is a plan", err=True)
    made = reports.write(folder, realised=begun and not planned)
    click.echo(json.dumps(made) if as_json else reports.markdown(made), nl=as_json)
    click.echo(f"digest: {made['digest']}", err=True)
