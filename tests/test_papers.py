"""docs/results/tables.csv names every table and figure; its numbers are what benchmarks/papers.py computes."""

import csv
import importlib
import pathlib
import re
import sys

import pytest

from tff_mf.experiments import compare

HERE = pathlib.Path(__file__).parent.parent
with (HERE / "docs" / "results" / "tables.csv").open(newline="") as file:
    ENTRIES = list(csv.DictReader(file))
PAGE = "\n".join([(HERE / "docs" / "papers.md").read_text(), *(row["command"] for row in ENTRIES)])
with (HERE / "docs" / "results" / "papers.csv").open(newline="") as file:
    RESULTS = [tuple(row.values()) for row in csv.DictReader(file)]

sys.path.insert(0, str(HERE / "benchmarks"))
papers = importlib.import_module("papers")
sys.path.pop(0)

# How many figures and tables each paper has.
NUMBERS = {"Kairouz": (14, 7), "Denisov": (6, 4), "Choquette-Choo": (13, 7), "McMahan": (15, 4)}
STATES = ("reproduced", "runnable", "impossible")


@pytest.mark.parametrize("paper", NUMBERS)
def test_every_table_and_figure_has_one_state(paper):
    figures, tables = NUMBERS[paper]
    names = [f"Figure {each + 1}" for each in range(figures)] + [f"Table {each + 1}" for each in range(tables)]
    rows = [row for row in ENTRIES if row["paper"] == paper]
    assert [row["name"] for row in rows] == names
    assert {row["status"] for row in rows} <= set(STATES)


def test_the_page_counts_the_states():
    table = PAGE.split("| paper | reproduced |")[1].split("\n\n")[0]
    for paper in NUMBERS:
        (counts,) = re.findall(rf"^\| {paper} et al\. .*? \| (\d+) \| (\d+) \| (\d+) \|$", table, re.M)
        states = [row["status"] for row in ENTRIES if row["paper"] == paper]
        assert [int(count) for count in counts] == [states.count(state) for state in STATES]


def shown(name):
    """Returns the stored rows of a check."""
    return [row[1:] for row in RESULTS if row[0] == name]


@pytest.mark.parametrize("name", papers.CHECKS)
def test_results_are_stored_and_counted(name):
    rows = shown(name)
    assert rows
    for _, printed, ours, apart in rows:
        assert (not printed or papers.agrees(printed, float(ours))) == (not apart)
    agreed = sum(bool(printed) and not apart for _, printed, _, apart in rows)
    for same, count in re.findall(rf"`(?:python benchmarks/papers.py )?{name}`: (\d+) of (\d+)", PAGE):
        assert (int(same), int(count)) == (agreed, len(rows))


@pytest.mark.parametrize(
    "name",
    [
        # test_optimize.py has the errors of this table for other numbers of rounds.
        pytest.param(name, marks=pytest.mark.long) if name == "denisov-table-2" else name
        for name in papers.CHECKS
        if name not in papers.LONG
    ],
)
def test_results_are_what_is_computed(name):
    computed = list(papers.rows(name))
    for (figure, printed, ours, _), (same_figure, same_printed, before, _) in zip(computed, shown(name), strict=True):
        assert (figure, printed) == (same_figure, same_printed)
        assert float(ours) == pytest.approx(float(before), rel=2e-3)


def test_specifications_of_the_page_exist_and_all_are_on_it():
    assert set(re.findall(r"`(?:tff-mf )?compare ([\w-]+)", PAGE)) == {"NAME", *compare.SPECS.names()} - {"demo"}
    table = (HERE / "docs" / "experiments.md").read_text().split("| SPEC | runs |")[1].split("\n\n")[0]
    # The first cell of a row has the names.
    cells = " ".join(re.findall(r"^\|([^|]+)\|", table, re.M))
    assert set(re.findall(r"`([\w-]+)`", cells)) == set(compare.SPECS.names())


def test_checks_of_the_page_exist():
    names = set(re.findall(r"python benchmarks/papers\.py ([\w-]+)", PAGE))
    assert names <= set(papers.CHECKS)
    # The check of every name belongs to a row.
    assert {name for name in papers.CHECKS if f"{name}`" not in PAGE} == set()
