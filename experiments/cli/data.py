"""`tff-mf data`: writes data sets."""

import json

import rich_click as click

from . import _options
from ._boundary import Group


@click.group(cls=Group)
def data() -> None:
    """Write data sets of text, grouped by client, in the format of StackOverflow."""


@data.command(cls=_options.Command)
@click.option(
    "--packages",
    multiple=True,
    metavar="NAME[,NAME…]",
    help="Distributions whose text to use; `stdlib` is the standard library.  [default: all installed ones]",
)
@_options.option("out", required=True)
@_options.as_json
def pydoc(packages: tuple[str, ...], out: str, as_json: bool) -> None:
    """Write docstrings as a data set: each module is a client, each English sentence an example."""
    from tff_mf.base import required_packages

    required_packages.packages("Writing a data set", "tensorflow_federated")
    from ..training.datasets.pydoc import write_pydoc

    names = [name.strip() for value in packages for name in value.split(",")]
    counts = write_pydoc(out, names or None)
    if as_json:
        click.echo(json.dumps({"path": out, **counts}))
        return
    click.echo(f"{out}\n{'':12}{'clients':>10}{'sentences':>12}")
    for split, clients in counts["clients"].items():
        click.echo(f"{split:12}{clients:10,}{counts['sentences'][split]:12,}")


@data.command(cls=_options.Command)
@click.option(
    "--clients",
    type=int,
    help="Number of training clients; validation and test clients in proportion.  [default: 342477]",
)
@_options.option("out", required=True)
@_options.as_json
def synthetic(out: str, as_json: bool, **numbers: int | None) -> None:
    """Write a data set of StackOverflow's size for dry runs: its file has a few numbers, and text is made when read.

    Its words are drawn at random: accuracy on it means nothing.
    """
    from ..output import files
    from ..training.datasets.synthetic import SyntheticData

    chosen = SyntheticData(**{name: value for name, value in numbers.items() if value is not None})
    files.check_file(out)
    path = chosen.write(out)
    if as_json:
        click.echo(json.dumps({"path": str(path), "clients": dict(chosen.split_sizes)}))
        return
    sizes = ", ".join(f"{split} {size:,}" for split, size in chosen.split_sizes.items())
    click.echo(f"{path}: clients {sizes}")
