"""`tff-mf compare`: many runs from one specification."""

import pathlib

import click

from . import _options, _screens


@click.command()
@click.argument("spec", metavar="SPEC.toml", type=click.Path())
@click.option("--out", metavar="FOLDER", help="Folder of the results.  [default: runs/ and the name of the file]")
@click.option("--jobs", type=int, default=1, show_default=True, help="Number of runs at a time.")
@_options.as_json
def compare(spec: str, out: str | None, jobs: int, as_json: bool) -> None:
    """Train with every combination of a grid, and compare the results in a table and three pictures.

    Finished runs are not repeated, so that an interrupted comparison continues. Exit status 1 if a run failed.
    """
    from tff_mf import required_packages

    required_packages.packages("A comparison", "tensorflow", "tensorflow_privacy", "tensorflow_federated", "matplotlib")
    from .. import comparison
    from ..output import progress

    folder = pathlib.Path(out) if out else pathlib.Path("runs", pathlib.Path(spec).stem)
    result = comparison.run_comparison(
        pathlib.Path(spec),
        folder,
        child=f"{__package__}._comparison_child",
        jobs=jobs,
        say=lambda text: progress.say(f"compare: {text}"),
    )
    if as_json:
        _options.report(result, as_json=True)
    else:
        for line in _screens.markdown((folder / comparison.TABLE).read_text(encoding="utf-8")):
            click.echo(line)
        click.echo(f"\n{folder}")
    if result["runs_failed"]:
        raise SystemExit(1)
