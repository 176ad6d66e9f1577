"""The ledger: what it keeps, and what it notices."""

import json

import pytest

import tff_mf
from tff_mf.experiments.ledger import cohort_digest, open_ledger, read_ledger


def begin(book, number, clients=("a", "b"), **changes):
    book.begin(number, clients, **{"divisor": 2, "clip_norm": 1.0, **changes})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with open_ledger(path) as book:
        begin(book, 1)
        book.released(1)
        book.restarted(2)
        begin(book, 2, ("c",), clip_norm=0.5)
    return path


def test_everything_is_read_back(path):
    record = read_ledger(path)
    assert record.problems == []
    assert record.attempts == {1: 1, 2: 1}
    assert record.released == {1: 1}
    assert record.sizes == {1: 2, 2: 1}
    assert record.cohorts == {1: cohort_digest(["b", "a"]), 2: cohort_digest(["c"])}
    assert (record.divisors, record.clip_norms, record.restarts) == ([2], [0.5, 1.0], [2])
    assert not record.ended


def test_a_line_is_on_disk_before_the_call_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    with open_ledger(tmp_path / "ledger.jsonl") as book:
        before = len(synced)
        begin(book, 1)
        assert len(synced) == before + 1
        assert read_ledger(tmp_path / "ledger.jsonl").attempts == {1: 1}


def test_a_run_that_goes_on_counts_attempts(path):
    head = read_ledger(path).head
    with open_ledger(path) as book:
        begin(book, 2, ("c",))
        book.released(2)
        book.ended()
    record = read_ledger(path)
    assert record.problems == []
    assert record.attempts == {1: 1, 2: 2}
    assert record.released == {1: 1, 2: 1}
    assert record.ended
    assert record.head != head
    with pytest.raises(tff_mf.InputError, match="has ended"), open_ledger(path):
        pass


def test_a_line_that_was_not_finished_did_not_happen(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with open_ledger(path) as book:
        begin(book, 2, ("c",), clip_norm=0.5)
    assert path.read_bytes() == whole


def test_two_runs_do_not_share_their_chain(tmp_path):
    heads = set()
    for name in ("one", "two"):
        with open_ledger(tmp_path / name) as book:
            begin(book, 1)
        heads.add(read_ledger(tmp_path / name).head)
    assert len(heads) == 2


@pytest.mark.parametrize("line", range(5))
def test_a_missing_line_breaks_the_chain(path, line):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:line] + lines[line + 1 :]))
    problems = read_ledger(path).problems
    # The last one can go unnoticed here: a report names the hash of all.
    assert bool(problems) == (line < 4)


@pytest.mark.parametrize("line", range(5))
def test_a_changed_line_breaks_the_chain(path, line):
    lines = path.read_text().splitlines(keepends=True)
    entry = json.loads(lines[line])
    lines[line] = json.dumps({**entry, "round": 7}) + "\n"
    path.write_text("".join(lines))
    record = read_ledger(path)
    assert f"line {line + 1} does not follow" in record.problems[0]
    assert 7 not in record.attempts
    with pytest.raises(tff_mf.InputError, match="cannot go on"), open_ledger(path):
        pass


@pytest.mark.parametrize("text", ["[]\n", "nonsense\n", '{"kind": 3}\n'])
def test_what_is_no_ledger_is_said_to_be_none(tmp_path, text):
    (tmp_path / "ledger").write_text(text)
    assert "damaged" in read_ledger(tmp_path / "ledger").problems[0]
    with pytest.raises(tff_mf.InputError, match="cannot be read"):
        read_ledger(tmp_path / "none")
