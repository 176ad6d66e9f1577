"""`tff-mf compare`: many runs from one specification."""

import pathlib
from collections.abc import Mapping
from typing import Any

import rich_click as click

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import digits

from ..output.present import Facts, Paragraph, Section, Table, terminal
from . import _options
from ._screens import Answer

# Options that leave out the runs, with those that they go with.
_ALONE: dict[str, set[str]] = {"listed": {"as_json"}, "estimate": {"as_json", "file", "spec", "fraction", "dataset"}}

_PRICES = "Core-hours are right within a factor of two; a run uses one core, and --jobs runs several at a time."


@_options.command()
@click.argument("file", metavar="[SPEC.toml]", type=click.Path(), required=False)
@click.option(
    "--spec", type=_options.SPEC, help="Specification of a paper's table or figure, in place of a file; see --list."
)
@click.option("--list", "listed", is_flag=True, help="List the specifications of the papers, and do nothing else.")
@click.option(
    "--estimate",
    is_flag=True,
    help="Print runs, rounds, core-hours and memory, of larger comparisons of the same table too; train nothing.",
)
@click.option(
    "--fraction",
    type=float,
    metavar="F",
    help="Run at a part of the size: rounds, min-sep and simulated clients times F, at the same ε.",
)
@_options.option("dataset")
@_options.option("out")
@_options.option("html")
@click.option("--jobs", type=int, default=1, show_default=True, help="Number of runs at a time.")
def compare(
    file: str | None,
    spec: str | None,
    listed: bool,
    estimate: bool,
    fraction: float | None,
    dataset: str | None,
    out: str | None,
    html: str | None,
    jobs: int,
) -> Answer:
    """Train with every combination of a grid, and compare the results in a table and three pictures.

    The grid comes from a file, or from a paper's table (--spec). Finished runs are not repeated, so that an interrupted
    comparison continues. --dataset takes the place of the specified data set; --out is runs/ and the name of the
    specification if not given. Exit status 1 if a run failed.
    """
    _options.check_together(_ALONE)
    if listed:
        return _listed()
    from tff_mf.base import required_packages

    from .. import comparison

    page = _options.html_page(html)
    validation.whole("jobs", jobs)
    path = _path_of(file, spec)
    name = path.stem if fraction is None else f"{path.stem}-{fraction:g}"
    found = {name: comparison.estimate(path, dataset=dataset, fraction=fraction), **comparison.larger(path)}
    prices = _priced(found)
    if estimate:
        return Answer(found, prices)
    required_packages.packages("A comparison", "tensorflow", "tensorflow_privacy", "tensorflow_federated", "matplotlib")
    from ..output import progress
    from ..runs import folders

    # Refused before anything is printed: a refusal is one line.
    folder = folders.continued_folder(pathlib.Path(out) if out else pathlib.Path("runs", name))
    for line in terminal(prices):
        progress.say(line)
    result = comparison.run_comparison(
        path,
        folder,
        child=f"{__package__}._comparison_child",
        jobs=jobs,
        dataset=dataset,
        fraction=fraction,
        say=lambda text: progress.say(f"compare: {text}"),
    )
    if page is not None:
        from ..comparison.charts import charts
        from ..output.present import html as pages

        pages.write_page(page, comparison.document(result, name=name, charts=charts(result)))
    written = [str(each) for each in (folder, page) if each is not None]
    words = comparison.document(result, name=name, written=written)
    return Answer(result.as_json(), words, failed=bool(result.runs_failed))


def _path_of(file: str | None, spec: str | None) -> pathlib.Path:
    from ..comparison import specs

    if file in specs.names() and spec is None and not pathlib.Path(file).exists():
        raise InputValueError(f"SPEC.toml={file!r} is no file; did you mean --spec {file}?")
    if (file is None) == (spec is None):
        raise InputValueError("Give either a file, SPEC.toml, or --spec NAME, and not both; --list shows the names.")
    return specs.path_of(spec) if spec is not None else pathlib.Path(file or "")


def _listed() -> Answer:
    from ..comparison import about, specs

    found = {name: about(specs.path_of(name)) for name in specs.names()}
    return Answer(found, [Facts([(name, f"{each['title']}. {each['paper']}.") for name, each in found.items()])])


def _priced(found: Mapping[str, Mapping[str, Any]]) -> Section:
    """Returns estimates as a document: a row each."""
    rows = []
    for name, each in found.items():
        memory = each["noise_state_bytes"]
        numbers = [f"{each[key]:,}" for key in ("runs", "rounds", "client_updates")]
        hours = f"{float(format(each['core_hours'], '.2g')):,g}"
        rows.append([name, *numbers, hours, "" if memory is None else f"{digits.nearest(memory / 1e9, 2)} GB"])
    header = ["comparison", "runs", "rounds", "client updates", "core-hours", "memory of noise"]
    return Section("", [Table(header, rows, "what comparisons cost"), Paragraph(_PRICES)])
