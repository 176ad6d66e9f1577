"""Counts of devices' reports: strict in the ledger, named in the operator's report, in nothing that is published."""

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
        {"zeroed": 2},
        {"refused": {"late": 1, "ε≤0.1": 0}},
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


def test_the_check_warns_the_operator_of_them_and_no_report_has_them(tmp_path):
    folder = tmp_path / "run"
    headline = run_folders.finished(folder).headline
    empty = {"came": 1, "counted": 1, "clipped": 0, "zeroed": 1, "refused": {}}
    run_folders.write_ledger(folder, run_folders.with_reports(run_folders.read_entries(folder), 4, **empty))
    report = reports.write(folder, realised=True)
    assert report.headline == headline
    warnings = reports.check(folder).warnings
    assert "1 rounds have no update in them, round 4 first: noise alone" in warnings
    assert "in 9 rounds, round 1 first, many reports were refused, scaled or zeroed" in warnings
    assert critical(folder) == []
    pages = [(folder / name).read_text() for name in ("report.json", "report.md")]
    assert not any(word in page for word in ("late", "zeroed", "noise alone") for page in pages)
