"""What is read back from the log is what was written, and a log that was tampered with is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments.runs.ledger import Begin, cohort_digest
from tff_mf.experiments.runs.participation_log import open_log, read_entries

from .shared import read_observed


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


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=4), max_size=8))
def test_observed_is_the_worst_of_all_clients(tmp_path_factory, cohorts):
    path = tmp_path_factory.mktemp("log") / "participation.csv"
    numbered = [(number, 1, clients) for number, clients in enumerate(cohorts, start=1)]
    found = read_observed(written(path, numbered))
    assert (found.min_sep, found.max_participations) == brute(numbered)


@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=4), min_size=1, max_size=6),
    st.lists(st.lists(st.sampled_from("abcde"), max_size=4), min_size=1, max_size=6),
    st.integers(1, 6),
)
def test_clients_of_attempts_that_were_given_up_count(tmp_path_factory, before, after, back):
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


def test_an_existing_log_is_never_overwritten(tmp_path):
    path = written(tmp_path / "log.csv", [(1, 1, ["a"])])
    with pytest.raises(tff_mf.InputError, match="another run"), open_log(path):
        pass


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


def test_a_log_that_is_not_of_the_ledger_does_not_go_on(tmp_path):
    cohorts = [(1, 1, ["a", "b"]), (2, 1, ["c"]), (3, 1, ["d"])]
    path = written(tmp_path / "log.csv", cohorts)
    others = [(1, 1, ["a", "c"]), *cohorts[1:]]
    for begun, reason in ((attempts(others), "other clients in round 1"), (attempts(cohorts[:1]), "ledger lacks")):
        with pytest.raises(tff_mf.InputError, match=reason), open_log(path, begun=begun):
            pass


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
