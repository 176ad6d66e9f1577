"""`tff-mf demo`: the comparison in one command."""

from . import _options
from ._screens import Answer
from .compare import compared


@_options.command
@_options.option("out")
def demo(out: str | None) -> Answer:
    """Train with correlated (blt) and with independent noise (identity) at the same (ε, δ), and compare.

    As `tff-mf compare demo --jobs 2`: writes both runs, a table and two pictures to --out, runs/demo if not
    given, in about a minute on 2 cores after installation. Runs that are done are not repeated: delete the folder to
    train anew.
    """
    return compared("demo", dataset=None, out=out, jobs=2)
