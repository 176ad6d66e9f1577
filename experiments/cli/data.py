"""`tff-mf data`: writes data sets."""

import rich_click as click

from ..output.present import Paragraph, Table
from . import _options
from ._boundary import Group
from ._screens import Answer


@click.group(cls=Group)
def data() -> None:
    """Write data sets of text, grouped by client, in the format of StackOverflow."""


@data.command(cls=_options.Command)
@_options.answers
@click.option(
    "--packages",
    multiple=True,
    metavar="NAME[,NAME…]",
    help="Distributions whose text to use; `stdlib` is the standard library.  [default: all installed ones]",
)
@_options.option("out", required=True)
def pydoc(packages: tuple[str, ...], out: str) -> Answer:
    """Write docstrings as a data set: each module is a client, each English sentence an example."""
    from tff_mf.base import required_packages

    required_packages.packages("Writing a data set", "tensorflow_federated")
    from ..training.datasets.pydoc import write_pydoc

    names = [name.strip() for value in packages for name in value.split(",")]
    counts = write_pydoc(out, names or None)
    sizes = [[split, f"{number:,}", f"{counts['sentences'][split]:,}"] for split, number in counts["clients"].items()]
    return Answer({"path": out, **counts}, [Paragraph(out), Table(["", "clients", "sentences"], sizes, "sizes")])


@data.command(cls=_options.Command)
@_options.answers
@click.option(
    "--clients",
    type=int,
    help="Number of training clients; validation and test clients in proportion.  [default: 342477]",
)
@_options.option("out", required=True)
def synthetic(out: str, **numbers: int | None) -> Answer:
    """Write a data set of StackOverflow's size for dry runs: its file has a few numbers, and text is made when read.

    Its words are drawn at random: accuracy on it means nothing.
    """
    from ..output import files
    from ..training.datasets.synthetic import SyntheticData

    chosen = SyntheticData(**{name: value for name, value in numbers.items() if value is not None})
    files.check_file(out)
    path = chosen.write(out)
    sizes = [[split, f"{size:,}"] for split, size in chosen.split_sizes.items()]
    facts = {"path": str(path), "clients": dict(chosen.split_sizes)}
    return Answer(facts, [Paragraph(str(path)), Table(["", "clients"], sizes, "sizes")])
