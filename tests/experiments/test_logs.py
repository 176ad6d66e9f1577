"""The ledger and the log of who took part: what they keep, what they refuse, and what they notice."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments.runs import ledger
from tff_mf.experiments.runs.ledger import Begin, cohort_digest, open_ledger, read_ledger
from tff_mf.experiments.runs.participation_log import open_log, read_entries

from .shared import read_observed


def begin(book, number, clients=("a", "b"), **changes):
    book.begin(number, clients, **{"divisor": 2, "clip_norm": 1.0, **changes})


@pytest.fixture
def path(tmp_path):
    """A ledger of a run that was killed in its second round."""
    path = tmp_path / "ledger.jsonl"
    path.with_name("run.json").write_text("{}")
    with open_ledger(path) as book:
        begin(book, 1)
        book.released(1)
        book.restarted(2)
        begin(book, 2, ("c",), clip_norm=0.5)
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
    assert record.sizes == {1: 2, 2: 1}
    assert record.cohorts == {1: cohort_digest(["b", "a"]), 2: cohort_digest(["c"])}
    assert [(each.round, each.attempt, each.clients) for each in record.begun] == [(1, 1, 2), (2, 1, 1)]
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


def test_a_run_that_goes_on_counts_attempts(path):
    head = read_ledger(path).head
    with open_ledger(path) as book:
        book.restarted(2)
        begin(book, 2, ("c",))
        book.released(2)
        book.ended()
    record = read_ledger(path)
    assert record.problems == record.impossible == []
    assert record.attempts == {1: 1, 2: 2}
    assert record.released == {1: 1, 2: 1}
    assert record.restarts == [2]
    assert record.ended
    assert record.head != head
    with pytest.raises(tff_mf.InputError, match="has ended"), open_ledger(path):
        pass


def test_a_run_that_was_killed_goes_on_after_what_it_released(new):
    with open_ledger(new) as book:
        for number in (1, 2, 3, 4):
            begin(book, number)
        book.released_until(2)
    with open_ledger(new) as book:
        assert book.last_released == 2
        with pytest.raises(tff_mf.InputError, match="round 6 was begun out of order"):
            begin(book, 6)
        begin(book, 3, ("c", "d"))
        with pytest.raises(tff_mf.InputError, match="round 4 was released by an abandoned attempt"):
            book.released_until(4)
        begin(book, 4)
        book.released_until(4)
        book.ended()
    record = read_ledger(new)
    assert record.impossible == []
    assert record.attempts == {1: 1, 2: 1, 3: 2, 4: 2}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda book: begin(book, 1), "round 1 was begun again after it was released"),
        (lambda book: begin(book, 4), "round 4 was begun out of order"),
        (lambda book: book.released(1), "round 1 was released more than once"),
        (lambda book: book.released(3), "round 3 was released and never begun"),
        (lambda book: book.released_until(3), "round 3 was released and never begun"),
        (lambda book: book.restarted(7), "noise started anew in round 7 out of order"),
        (lambda book: begin(book, 3, ("a", "b", "a")), "'a' twice"),
    ],
)
def test_what_no_run_may_do_is_refused_and_not_written(path, wrong, reason):
    with open_ledger(path) as book:
        book.restarted(2)
        begin(book, 2)
        book.released_until(2)
        before = path.read_bytes()
        with pytest.raises(tff_mf.InputError, match=reason):
            wrong(book)
        assert path.read_bytes() == before


def begun(number, attempt=1):
    about = {"clients": 1, "cohort": cohort_digest(["a"]), "divisor": 1, "clip_norm": 1.0}
    return {"kind": "begin", "round": number, "attempt": attempt, **about}


def released(number, attempt=1):
    return {"kind": "released", "round": number, "attempt": attempt}


def test_no_sequence_that_is_possible_releases_twice_or_what_was_given_up(tmp_path):
    """Against a slow oracle: all sequences of up to six entries of two rounds."""
    choices = [(kind, number) for kind in ("begin", "released") for number in (1, 2)]
    possible = 0
    for sequence in itertools.product(choices, repeat=6):
        entries, attempts = [], {1: 0, 2: 0}
        for kind, number in sequence:
            attempts[number] += kind == "begin"
            entries.append(begun(number, attempts[number]) if kind == "begin" else released(number, attempts[number]))
        if any(entry["attempt"] == 0 for entry in entries):
            continue
        found = ledger.LedgerSequence()
        refused = False
        for entry in map(ledger.entry_of, entries):
            refused = refused or bool(found.refusal(entry))
            found.take(entry)
        assert refused or _sound(sequence)
        possible += not refused
    assert possible > 10


def _sound(sequence):
    """Whether each release is the first of its round, of an attempt on the same past as all that was released."""
    live, out = [], []
    for kind, number in sequence:
        if kind == "begin":
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
        begin(book, 2, ("c",), clip_norm=0.5)
    after = read_ledger(path)
    assert after.problems == []
    assert dataclasses.replace(after.begun[-1], nonce="") == dataclasses.replace(before.begun[-1], nonce="")
    assert after.begun[:-1] == before.begun[:-1]
    # Not even the first one: the run had not begun.
    path.write_bytes(whole[:9])
    with open_ledger(path) as book:
        begin(book, 1)


def test_two_runs_do_not_share_their_chain(tmp_path):
    heads = set()
    (tmp_path / "run.json").write_text("{}")
    for name in ("one", "two"):
        with open_ledger(tmp_path / name) as book:
            begin(book, 1)
        heads.add(read_ledger(tmp_path / name).head)
    assert len(heads) == 2


@pytest.mark.parametrize("line", range(5))
def test_a_line_that_is_missing_or_changed_breaks_the_chain(path, line):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:line] + lines[line + 1 :]))
    # The last one can go unnoticed here: a report names the hash of all.
    assert bool(read_ledger(path).problems) == (line < 4)
    lines[line] = json.dumps({**json.loads(lines[line]), "round": 7}) + "\n"
    path.write_text("".join(lines))
    record = read_ledger(path)
    assert f"line {line + 1} does not follow" in record.problems[0]
    assert 7 not in record.attempts
    with pytest.raises(tff_mf.InputError, match="cannot be continued"), open_ledger(path):
        pass


@pytest.mark.parametrize("text", ["[]\n", "nonsense\n", '{"kind": 3}\n'])
def test_what_is_no_ledger_is_said_to_be_none(tmp_path, text):
    (tmp_path / "ledger").write_text(text)
    assert "damaged" in read_ledger(tmp_path / "ledger").problems[0]
    with pytest.raises(tff_mf.InputError, match="cannot be read"):
        read_ledger(tmp_path / "none")


def written(path, cohorts):
    with open_log(path) as log:
        for round_number, attempt, clients in cohorts:
            log(round_number, attempt, clients)
    return path


def attempts(cohorts):
    return [
        Begin(
            round=number,
            attempt=attempt,
            clients=len(clients),
            cohort=cohort_digest(clients),
            divisor=1.0,
            clip_norm=1.0,
        )
        for number, attempt, clients in cohorts
    ]


def brute(cohorts):
    """A client counts once in a round, in whatever attempts of it, unless it is twice in one."""
    when = {}
    for number, attempt, clients in cohorts:
        for client in clients:
            when.setdefault(client, {}).setdefault(number, {}).setdefault(attempt, []).append(client)
    rounds = {
        client: [n for n, tries in each.items() for _ in max(tries.values(), key=len)] for client, each in when.items()
    }
    apart = [abs(a - b) for each in rounds.values() for i, a in enumerate(each) for b in each[:i]]
    return (min(apart) if apart else None), max(map(len, rounds.values()), default=0)


@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=4), max_size=8),
    st.lists(st.lists(st.sampled_from("abcde"), max_size=4), max_size=6),
    st.integers(1, 6),
)
def test_observed_is_the_worst_of_all_clients_also_in_attempts_that_were_given_up(
    tmp_path_factory, before, after, back
):
    """A run is killed after `before`, and goes on a few rounds earlier with other clients."""
    path = tmp_path_factory.mktemp("log") / "participation.csv"
    first = [(number, 1, clients) for number, clients in enumerate(before, start=1)]
    start = max(1, len(before) + 1 - back)
    second = [(n, 2 if n <= len(before) else 1, clients) for n, clients in enumerate(after, start=start)]
    written(path, first)
    with open_log(path, begun=attempts(first)) as log:
        for each in second:
            log(*each)
    found = read_observed(path)
    assert (found.min_sep, found.max_participations) == brute(first + second)
    listed = [(entry.round_number, entry.attempt, entry.client) for entry in read_entries(path)]
    assert listed == [(n, attempt, client) for n, attempt, clients in first + second for client in clients]


def test_names_with_commas_quotes_and_newlines_survive(tmp_path):
    names = ["a,b", 'c"d', "e\nf", "", "g\rh"]
    cohorts = [(1, 1, names), (4, 1, names)]
    found = read_observed(written(tmp_path / "log.csv", cohorts))
    assert (found.min_sep, found.max_participations) == (3, 2)
    with open_log(tmp_path / "log.csv", begun=attempts(cohorts)) as log:
        log(5, 1, ["z"])
    assert [entry.client for entry in read_entries(tmp_path / "log.csv")] == [*names, *names, "z"]


@pytest.mark.parametrize(
    ("tail", "clients"),
    [
        ("", []),
        ("3", []),
        ("3,1,b\r\n3,1,", ["b"]),
        ("3,1,b\r\n", ["b"]),
        ("3,1,b\r\n3,1\0\0\0", ["b"]),
        ("\0\0\0", []),
        ('3,1,"b\nc', []),
    ],
)
def test_one_attempt_that_the_ledger_lacks_is_kept_but_for_what_is_damaged(tmp_path, tail, clients):
    """It was on disk before it could begin: nobody can tell whether it did."""
    cohorts = [(1, 1, ["a"]), (2, 1, [])]
    path = written(tmp_path / "log.csv", cohorts)
    whole = path.read_bytes()
    path.write_bytes(whole + tail.encode())
    with open_log(path, begun=attempts(cohorts)):
        pass
    assert path.read_bytes() == whole + b"".join(f"3,1,{client}\r\n".encode() for client in clients)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "round\n1\n",
        "round,client\n1,a\n",
        "round,attempt,client\n1,a\n",
        "round,attempt,client\n1,0,a\n",
        "round,attempt,client\n0,1,a\n",
        "round,attempt,client\n2,1,a\n1,1,b\n",
        "round,attempt,client\n1,1,a\n2,1,b\n1,1,c\n",
        "round,attempt,client\n1,2,a\n2,1,b\n1,1,c\n",
    ],
)
def test_a_damaged_log_is_refused(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(tff_mf.InputError, match=r"log\.csv"):
        read_observed(path)
