"""`tff-mf demo`: the comparison in one command."""

import pathlib

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
    from ..output.present import Paragraph, Section, Table

    summary = comparison.run_demo(folder)
    if as_json:
        _screens.report(summary, as_json=True)
        return
    runs = summary["mechanisms"]
    rows = [
        [
            name,
            digits.percent(run["accuracy"], None),
            digits.downwards(run["noise_multiplier"]),
            f"{run['server_learning_rate']:.3g}",
        ]
        for name, run in runs.items()
    ]
    texts = [
        f"blt over identity: {100 * summary['accuracy_gain']:+.2f} points. Always the most frequent word: "
        f"{digits.percent(runs['blt']['baseline_accuracy'], None)} %.",
        *(f"{name}: {statements.at_a_glance(run['claim'])}" for name, run in runs.items()),
        summary["cohort_note"],
        f"{folder / SUMMARY}  {folder / 'accuracy.png'}  ({summary['seconds']:.0f} s)",
    ]
    header = ["mechanism", "accuracy, %", "noise multiplier", "server rate"]
    _screens.show_document(Section("", [Table(header, rows, "mechanisms"), *map(Paragraph, texts)]))
