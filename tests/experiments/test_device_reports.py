"""Counts of devices' reports: strict in the ledger, named in the operator's report, in nothing that is published."""

import shutil

import msgspec
import pytest
import run_folders

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.runs import ledger
from tff_mf.experiments.runs.ledger import ReportCounts

from .shared import critical

COUNTS = ReportCounts(came=3, counted=2, clipped=1, zeroed=0, refused={"late": 1})


@pytest.fixture
def book(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with ledger.open_ledger(tmp_path / "ledger.jsonl") as found:
        found.begin(1, ["a", "b"], divisor=2, clip_norm=1.0)
        yield found, tmp_path / "ledger.jsonl"


def test_counts_are_read_back(book):
    found, path = book
    found.released_until(1, reports=COUNTS)
    found.begin(2, ["a"], divisor=2, clip_norm=1.0)
    found.released_until(2)
    assert ledger.read_ledger(path).reports == {1: COUNTS}
    assert ledger.read_ledger(path).problems == []


def test_no_more_reports_count_than_clients_were_chosen(book):
    found, path = book
    many = ReportCounts(came=3, counted=3, clipped=0, zeroed=0, refused={})
    with pytest.raises(tff_mf.InputError, match="counts 3 reports of 2 clients"):
        found.released_until(1, reports=many)
    assert not ledger.read_ledger(path).released


@pytest.mark.parametrize(
    "changes",
    [
        {"came": 4},
        {"came": -1, "counted": -2},
        {"clipped": True},
        {"clipped": 3},
        {"zeroed": 2},
        {"refused": {"late": 1, "ε≤0.1": 0}},
        {"refused": [["late", 1]]},
        {"refused": {"late": True}},
        {"more": 1},
        {"came": 10**13, "counted": 10**13 - 1},
    ],
)
def test_impossible_counts_are_refused(book, changes):
    found, path = book
    found.released_until(1, reports=COUNTS)
    opened, begun, released = run_folders.read_entries(path.parent)
    run_folders.write_ledger(
        path.parent, [opened, begun, {**released, "reports": {**msgspec.to_builtins(COUNTS), **changes}}]
    )
    [problem] = ledger.read_ledger(path).problems
    assert problem.startswith("line 3 ")
    assert not ledger.read_ledger(path).reports


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """A finished run without counts, the same run with counts, and the reports of both."""
    root = tmp_path_factory.mktemp("counted")
    plain = run_folders.finished(root / "plain")
    shutil.copytree(root / "plain", root / "run")
    empty = {"came": 1, "counted": 1, "clipped": 0, "zeroed": 1, "refused": {}}
    entries = run_folders.with_reports(run_folders.read_entries(root / "run"), 4, **empty)
    run_folders.write_ledger(root / "run", entries)
    return root, plain, reports.write(root / "run", realised=True)


def test_the_operator_s_report_names_them(counted):
    root, plain, report = counted
    assert not plain.device_reports
    found = report.device_reports
    assert (found.came, found.counted, found.clipped, found.zeroed) == (25, 17, 8, 1)
    assert (found.refused, found.rounds) == ({"late": 8}, 9)
    assert "1 rounds have no update in them, round 4 first: noise alone" in found.warnings
    assert any("many reports were refused" in text for text in reports.check(root / "run").warnings)
    assert "late 8" not in (root / "run" / "report.md").read_text()
    assert critical(root / "run") == []
    assert report.headline == plain.headline


def test_nothing_of_them_is_published(counted):
    _, plain, report = counted
    public = report.published()
    text = public.as_text() + reports.markdown(public)
    assert not any(word in text for word in ('"device_reports"', "device reports", "late 8", "8 late", "zeroed"))
    # Of the ledger, in which a random name of the run keeps counts from being guessed.
    assert reports.differing(public.as_json(), plain.as_json()) == ["files.ledger.jsonl"]
    assert plain.published() == plain
