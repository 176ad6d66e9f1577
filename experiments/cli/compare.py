"""`tff-mf compare`: many runs from one specification."""

import pathlib

import msgspec
import rich_click as click

from tff_mf.base import validation

from ..output.console import Facts
from . import _options
from ._screens import Answer

# Options that leave out the runs, with those that they go with.
_ALONE: dict[str, set[str]] = {"listed": {"as_json"}, "dry_run": {"as_json", "spec", "dataset"}}


@_options.command
@click.argument("spec", metavar="SPEC", required=False)
@click.option("--list", "listed", is_flag=True, help="List the specifications of the papers, and do nothing else.")
@click.option(
    "--dry-run", is_flag=True, help="Check the settings of each run, count rounds and updates, train nothing."
)
@_options.option("dataset")
@_options.option("out")
@click.option("--jobs", type=int, default=1, show_default=True, help="Number of runs at a time.")
def compare(spec: str | None, listed: bool, dry_run: bool, dataset: str | None, out: str | None, jobs: int) -> Answer:
    """Train with every combination of a grid, and compare the results in a table and two pictures.

    SPEC is a TOML file with the grid, or a name of a paper's table or figure, which --list shows. Finished runs are not
    repeated, so that an interrupted comparison continues. --dataset takes the place of the specified data set; --out is
    runs/ and the name of the specification if not given. Exit status 1 if a run failed.
    """
    _options.check_together(_ALONE)
    if listed:
        return _listed()
    if spec is None:
        raise click.UsageError("SPEC is missing: name a TOML file, or one of the specifications that --list shows.")
    return compared(spec, dataset=dataset, out=out, jobs=jobs, dry_run=dry_run)


def compared(spec: str, *, dataset: str | None, out: str | None, jobs: int, dry_run: bool = False) -> Answer:
    """Does what `compare` is asked for."""
    from tff_mf.base import required_packages

    from .. import compare as sweep

    validation.whole("jobs", jobs)
    is_file = spec.endswith(".toml") or pathlib.Path(spec).exists()
    path = pathlib.Path(spec) if is_file else sweep.spec_path(spec)
    settings = [run.settings for run in sweep.read(path, dataset=dataset)]
    rounds, updates = (sum(run.rounds for run in settings), sum(run.rounds * run.clients_per_round for run in settings))
    in_words = f"{path.stem}: {len(settings):,} runs of {rounds:,} rounds and {updates:,} client updates."
    if dry_run:
        return Answer({"runs": len(settings), "rounds": rounds, "client_updates": updates}, [in_words])
    required_packages.packages("A comparison", "tensorflow", "tensorflow_privacy", "tensorflow_federated", "matplotlib")
    from ..output import progress
    from ..runs import folders

    # Refused before anything is printed: a refusal is one line.
    folder = folders.continued_folder(pathlib.Path(out) if out else pathlib.Path("runs", path.stem))
    progress.say(in_words)
    result = sweep.run_comparison(path, folder, jobs=jobs, dataset=dataset)
    written = [str(folder), *(str(folder / picture) for picture in result.pictures)]
    words = sweep.blocks(result, name=path.stem, written=written)
    return Answer(msgspec.to_builtins(result), words, failed=bool(result.runs_failed))


def _listed() -> Answer:
    from ..compare import about, spec_names, spec_path

    of_names = {name: about(spec_path(name)) for name in spec_names()}
    lines = [
        (name, ". ".join(filter(None, (spec["title"], spec.get("paper")))) + ".") for name, spec in of_names.items()
    ]
    return Answer(of_names, [Facts(lines)])
