"""The ledger: what it keeps, what it refuses, and what it notices; its counts of devices' reports."""

import itertools

import msgspec
import pytest
import run_folders

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.runs.ledger import Begun, LedgerRecord, Released, ReportCounts, open_ledger, read_ledger

from .shared import critical

NAMES = ("a,b", 'c"d', "e\nf", "", "g\rh", "\u2028", "\0", "ü")


def begin(book, number, clients=("a", "b"), **changes):
    book.begin(number, clients, **{"divisor": 2, "clip_norm": 1.0, **changes})


@pytest.fixture
def path(tmp_path):
    """A ledger of a run that was killed in its second round."""
    path = tmp_path / "ledger.jsonl"
    path.with_name("run.json").write_text("{}")
    with open_ledger(path) as book:
        begin(book, 1)
        book.released_until(1)
        begin(book, 2, NAMES, clip_norm=0.5, restarts=True)
    return path


@pytest.fixture
def new(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    return tmp_path / "ledger.jsonl"


def test_everything_is_read_back(path):
    record = read_ledger(path)
    assert record.problems == record.impossible == []
    assert record.attempts == {1: 1, 2: 1}
    assert record.released == {1: 1}
    assert record.sizes == {1: 2, 2: len(NAMES)}
    assert [(each.round, each.attempt, each.clients) for each in record.begun] == [(1, 1, ("a", "b")), (2, 1, NAMES)]
    assert (record.divisors, record.clip_norms, record.restarts) == ([2], [0.5, 1.0], [2])
    assert not record.ended


def test_a_line_is_on_disk_before_the_call_returns(new, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    with open_ledger(new) as book:
        before = len(synced)
        begin(book, 1)
        assert len(synced) == before + 1
        assert read_ledger(new).attempts == {1: 1}


def test_a_run_that_was_killed_goes_on_after_what_it_released(new):
    with open_ledger(new) as book:
        for number in (1, 2, 3, 4):
            begin(book, number)
        book.released_until(2)
    with open_ledger(new) as book:
        assert book.record.last_released == 2
        with pytest.raises(tff_mf.InputError, match="round 6 was begun out of order"):
            begin(book, 6)
        begin(book, 3, ("c", "d"))
        with pytest.raises(tff_mf.InputError, match="round 4 was released by an abandoned attempt"):
            book.released_until(4)
        begin(book, 4)
        book.released_until(4)
        book.end()
    record = read_ledger(new)
    assert (record.impossible, record.problems, record.ended) == ([], [], True)
    assert record.attempts == {1: 1, 2: 1, 3: 2, 4: 2}
    assert record.released == dict.fromkeys((1, 2, 3, 4), 1)
    with pytest.raises(tff_mf.InputError, match="has ended"), open_ledger(new):
        pass


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda book: begin(book, 1), "round 1 was begun again after it was released"),
        (lambda book: book.append(Released(round=1)), "round 1 was released more than once"),
        (lambda book: book.released_until(3), "round 3 was released and never begun"),
        (lambda book: begin(book, 3, ("a", "b", "a")), "'a' twice"),
    ],
)
def test_what_no_run_may_do_is_refused_and_not_written(path, wrong, reason):
    with open_ledger(path) as book:
        begin(book, 2)
        book.released_until(2)
        before = path.read_bytes()
        with pytest.raises(tff_mf.InputError, match=reason):
            wrong(book)
        assert path.read_bytes() == before


def test_no_sequence_that_is_possible_releases_twice_or_what_was_given_up():
    """Against a slow oracle: all sequences of up to six lines of two rounds."""
    choices = [(kind, number) for kind in ("begun", "released") for number in (1, 2)]
    possible = 0
    for sequence in itertools.product(choices, repeat=6):
        record, attempts, refused = LedgerRecord(), {1: 0, 2: 0}, False
        for kind, number in sequence:
            attempts[number] += kind == "begun"
            about = {"attempt": attempts[number], "clients": ("a",), "divisor": 1.0, "clip_norm": 1.0}
            line = Begun(round=number, **about) if kind == "begun" else Released(round=number)
            refused = refused or bool(record.refusal(line))
            record.take(line)
        assert refused or _sound(sequence)
        possible += not refused
    assert possible > 10


def _sound(sequence):
    """Whether each release is the first of its round, of an attempt on the same past as all that was released."""
    live, out = [], []
    for kind, number in sequence:
        if kind == "begun":
            # A round is computed from the round before it: what lies beyond is given up.
            del live[number - 1 :]
            if len(live) != number - 1 or number in out:
                return False
            live.append(number)
        elif number in out or number not in live or number != len(out) + 1:
            return False
        else:
            out.append(number)
    return True


def test_a_ledger_is_bound_to_its_record(path, tmp_path):
    assert read_ledger(path).bound_to is not None
    path.with_name("run.json").write_text('{"other": 1}')
    with pytest.raises(tff_mf.InputError, match=r"run\.json was changed since the run began"), open_ledger(path):
        pass
    (tmp_path / "bare").mkdir()
    with pytest.raises(tff_mf.InputError, match=r"run\.json.*missing"), open_ledger(tmp_path / "bare" / "ledger.jsonl"):
        pass


def test_a_line_that_was_not_finished_did_not_happen(path):
    whole, before = path.read_bytes(), read_ledger(path)
    path.write_bytes(whole[:-9])
    with open_ledger(path) as book:
        begin(book, 2, NAMES, clip_norm=0.5, restarts=True)
    after = read_ledger(path)
    assert after.problems == []
    lines = [[msgspec.structs.replace(line, nonce="") for line in record.begun] for record in (before, after)]
    assert lines[0] == lines[1]
    # Not even the first one: the run had not begun.
    path.write_bytes(whole[:9])
    with open_ledger(path) as book:
        begin(book, 1)


@pytest.mark.parametrize("line", [0, 1])
def test_a_line_that_is_lost_is_noticed(path, line):
    """What is lost later than a state saw it is noticed by its checkpoint, and by the report."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:line] + lines[line + 1 :]))
    with pytest.raises(tff_mf.InputError, match="cannot be continued"), open_ledger(path):
        pass


COUNTS = {"came": 3, "counted": 2, "clipped": 1, "zeroed": 0, "refused": {"late": 1}}


def test_counts_of_reports_are_read_back_and_no_more_than_clients_were_chosen(path):
    with open_ledger(path) as book:
        begin(book, 2)
        with pytest.raises(tff_mf.InputError, match="counts 3 reports of 2 clients"):
            book.released_until(2, reports=ReportCounts(came=3, counted=3, clipped=0, zeroed=0, refused={}))
        assert read_ledger(path).released == {1: 1}
        book.released_until(2, reports=ReportCounts(**COUNTS))
    assert read_ledger(path).reports == {2: ReportCounts(**COUNTS)}
    assert read_ledger(path).problems == []


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
def test_impossible_counts_are_refused(path, changes):
    entries = run_folders.read_entries(path.parent)
    run_folders.write_ledger(path.parent, [*entries[:2], {**entries[2], "reports": {**COUNTS, **changes}}])
    [problem] = read_ledger(path).problems
    assert problem.startswith("line 3 ")
    assert not read_ledger(path).reports


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
