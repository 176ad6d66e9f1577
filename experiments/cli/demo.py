"""`tff-mf demo`: the comparison in one command."""

import pathlib

from . import _options
from ._screens import Answer


@_options.command()
@_options.option("out")
def demo(out: str | None) -> Answer:
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
    from ..output.present import Facts, Paragraph, Table

    result = comparison.run_demo(folder)
    header = ["mechanism", "accuracy, %", "noise multiplier", "server rate"]
    rows = [
        [
            name,
            digits.percent(run.result.summary.accuracy, None),
            digits.downwards(run.plan.noise_multiplier),
            f"{run.settings.server_learning_rate:.3g}",
        ]
        for name, run in result.runs.items()
    ]
    gain = f"blt over identity: {100 * result.accuracy_gain:+.2f} points"
    baseline = digits.percent(result.blt.result.summary.baseline_accuracy, None)
    facts = [
        *((name, statements.at_a_glance(run.claim)) for name, run in result.runs.items()),
        ("cohort", result.cohort_note),
        ("picture", str(folder / comparison.PICTURE)),
        ("numbers", f"{folder / SUMMARY} ({result.seconds:.0f} s)"),
    ]
    said = Paragraph(f"{gain}. Always the most frequent word: {baseline} %.")
    return Answer(result.as_json(), [said, Table(header, rows, "mechanisms"), Facts(facts)])
