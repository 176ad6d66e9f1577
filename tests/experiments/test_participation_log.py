"""What is read back from the log is what was written, and a log that was tampered with is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments.participation_log import open_log, read_observed


def written(path, cohorts):
    with open_log(path) as log:
        for round_number, clients in cohorts:
            log(round_number, clients)
    return path


def brute(cohorts):
    when = {}
    for round_number, clients in cohorts:
        for client in clients:
            when.setdefault(client, []).append(round_number)
    apart = [abs(a - b) for rounds in when.values() for i, a in enumerate(rounds) for b in rounds[:i]]
    return (min(apart) if apart else None), max((len(rounds) for rounds in when.values()), default=0)


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=4), max_size=8))
def test_observed_is_the_worst_of_all_clients(tmp_path_factory, cohorts):
    path = tmp_path_factory.mktemp("log") / "participation.csv"
    numbered = list(enumerate(cohorts, start=1))
    found = read_observed(written(path, numbered))
    assert (found.min_sep, found.max_participations) == brute(numbered)


def test_names_with_commas_quotes_and_newlines_survive(tmp_path):
    names = ["a,b", 'c"d', "e\nf", ""]
    found = read_observed(written(tmp_path / "log.csv", [(1, names), (4, names)]))
    assert (found.min_sep, found.max_participations) == (3, 2)


def test_an_existing_log_is_never_overwritten(tmp_path):
    path = written(tmp_path / "log.csv", [(1, ["a"])])
    with pytest.raises(tff_mf.InputError, match="another run"), open_log(path):
        pass


@pytest.mark.parametrize(
    "text", ["", "round\n1\n", "round,client\nx,a\n", "round,client\n2,a\n1,b\n", "round,client\n,a\n"]
)
def test_a_damaged_log_is_refused(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(tff_mf.InputError, match=r"log\.csv"):
        read_observed(path)
