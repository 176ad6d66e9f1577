"""`tff-mf compare`, many runs from one specification, and `tff-mf demo`, one of them."""

import pathlib

import msgspec
import rich_click as click

from tff_mf.base import required_packages, validation

from ..output.console import Facts, Markdown
from ..runs.statements import REFUSED
from . import _options
from ._screens import Answer


@_options.command
@click.argument("spec", metavar="SPEC")
@click.option(
    "--dry-run", is_flag=True, help="Check the settings of each run, count rounds and updates, train nothing."
)
@_options.options("dataset", "out")
@click.option("--jobs", type=int, default=1, show_default=True, help="Number of runs at a time.")
def compare(spec: str, dry_run: bool, dataset: str | None, out: str | None, jobs: int) -> Answer:
    """Train with every combination of a grid, and compare the results in a table and two pictures.

    SPEC is a TOML file with the grid, or a name of a paper's table or figure, which docs/experiments.md lists. Finished
    runs are not repeated, so that an interrupted comparison continues. --dataset takes the place of the specified data
    set; --out is runs/ and the name of the specification if not given. Exit status 1 if a run failed.

    With a table [search] in SPEC, a random number of runs draw their settings, the best one is published alone, and its
    ε covers the search: docs/experiments.md.
    """
    return _compared(spec, dataset=dataset, out=out, jobs=jobs, dry_run=dry_run)


@_options.command
@_options.options("out")
def demo(out: str | None) -> Answer:
    """Train with correlated (blt) and with independent noise (identity) at the same (ε, δ), and compare.

    As `tff-mf compare demo --jobs 2`: writes both runs, a table and two pictures to --out, runs/demo if not
    given, in about a minute on 2 cores after installation. Runs that are done are not repeated: delete the folder to
    train anew.
    """
    return _compared("demo", dataset=None, out=out, jobs=2, dry_run=False)


def _compared(spec: str, *, dataset: str | None, out: str | None, jobs: int, dry_run: bool) -> Answer:
    from .. import compare as sweep
    from ..compare import search

    validation.whole("jobs", jobs)
    is_file = spec.endswith(".toml") or pathlib.Path(spec).exists()
    path = pathlib.Path(spec) if is_file else sweep.SPECS.file(spec)
    settings = [run.settings for run in sweep.read(path, dataset=dataset)]
    is_search, times = settings[0].search is not None, settings[0].search or 1
    if is_search:
        search.distributions(path, settings[0])
    updates = times * sum(run.rounds * run.clients_per_round for run in settings)
    runs, rounds = times * len(settings), times * sum(run.rounds for run in settings)
    average = ", on average" if is_search else ""
    in_words = f"{path.stem}: {runs:,.9g} runs of {rounds:,.9g} rounds and {updates:,.9g} client updates{average}."
    if dry_run:
        return Answer({"runs": runs, "rounds": rounds, "client_updates": updates}, [in_words])
    required_packages.packages("A comparison", "tensorflow", "tensorflow_privacy", "tensorflow_federated", "matplotlib")
    from ..output import console
    from ..runs import folders

    # Refused before anything is printed: a refusal is one line.
    folder = folders.continued_folder(pathlib.Path(out) if out else pathlib.Path("runs", path.stem))
    if is_search:
        selected = search.run_search(path, folder, jobs=jobs, dataset=dataset)
        refused = selected.claim is not None and selected.claim.state == REFUSED
        words = [Markdown(search.page(selected, name=path.stem)), Facts([("written", str(folder))])]
        return Answer(msgspec.to_builtins(selected), words, failed=refused)
    console.say(in_words)
    result = sweep.run_comparison(path, folder, jobs=jobs, dataset=dataset)
    written = ", ".join([str(folder), *(str(folder / picture) for picture in result.pictures)])
    words = [Markdown(sweep.page(result, name=path.stem)), Facts([("written", written)])]
    return Answer(msgspec.to_builtins(result), words, failed=bool(result.runs_failed))
