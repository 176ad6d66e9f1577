"""`tff-mf demo`: the comparison in one command."""

import pathlib

import rich_click as click

from . import _options, _screens


@_options.command()
@_options.option("out")
@_options.as_json
def demo(out: str | None, as_json: bool) -> None:
    """Train with correlated (blt) and with independent noise (identity) at the same (ε, δ), and compare.

    Writes summary.json, accuracy.png and both runs to --out, runs/demo if not given, in place of an earlier demo: about
    a minute on 2 cores after installation.
    """
    from tff_mf.base import required_packages

    required_packages.packages("The demo", "tensorflow", "tensorflow_privacy", "tensorflow_federated", "matplotlib")
    from ..runs import folders, statements
    from ..runs.names import SUMMARY

    folder = folders.replaceable_folder(pathlib.Path(out or "runs/demo"))

    from tff_mf.numerics import digits

    from ..comparison import demo as comparison

    summary = comparison.run_demo(folder)
    if as_json:
        _screens.report(summary, as_json=True)
        return
    click.echo(f"{'mechanism':10} {'accuracy':>9} {'noise multiplier':>17} {'server rate':>12}")
    for name, run in summary["mechanisms"].items():
        click.echo(
            f"{name:10} {100 * run['accuracy']:>7.2f} % {digits.downwards(run['noise_multiplier']):>17} "
            f"{run['server_learning_rate']:>12.3g}"
        )
    click.echo(f"blt over identity: {100 * summary['accuracy_gain']:+.2f} points")
    click.echo()
    _screens.paragraphs(
        *(f"{name}: {statements.line(run['claim'])}" for name, run in summary["mechanisms"].items()),
        summary["cohort_note"],
    )
    click.echo(f"\n{folder / SUMMARY}  {folder / 'accuracy.png'}  ({summary['seconds']:.0f} s)")
