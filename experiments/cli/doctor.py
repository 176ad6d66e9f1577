"""`tff-mf doctor`: what is wrong with this environment, and what to do."""

import click


@click.command()
@click.option("--requirements", is_flag=True, help="Print the pinned packages, for pip install --no-deps -r.")
def doctor(requirements: bool) -> None:
    """Check the environment and say what to do; exit status 1 if training would not work here."""
    from .. import environment

    if requirements:
        click.echo(environment.requirements_text(), nl=False)
        return
    findings = environment.examine()
    for finding in findings:
        click.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.text}")
    if not all(finding.ok for finding in findings):
        raise SystemExit(1)
