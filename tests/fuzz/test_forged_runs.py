"""Forged folders of runs: none that states a smaller ε passes with the digest. The command makes ten thousand."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import edits
import faulty_runs
import forged_runs

INPUTS = 60

# Forgeries that amount to another run, so that only the digest detects them: see SECURITY.md.
PASS_WITHOUT_DIGEST = {
    "a digit anywhere",
    "answers",
    "clients exchanged",
    "clients left out",
    "clients renamed",
    "files of another run",
    "mechanism, another",
    "noise multiplier, larger",
    "run and logs, shorter",
    "δ, larger",
    *(each.name for each in faulty_runs.FAULTS if each.name != "all logs removed"),
}


@pytest.fixture(scope="module")
def forged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forged")
    with forged_runs.remembered():
        made, other = forged_runs.bases(folder)
        yield list(forged_runs.forgeries(made, other, folder / "work", INPUTS, seed=1)), made, other, folder


def test_no_forgery_passes_with_the_digest(forged):
    outcomes, *_ = forged
    assert sum(each.lowered for each in outcomes) >= INPUTS // 3
    assert [each for each in outcomes if each.lowered and not each.found_by_digest] == []


def test_kinds_that_pass_without_the_digest_are_known(forged):
    outcomes, *_ = forged
    passed = [each for each in outcomes if each.lowered and not each.found]
    assert all(PASS_WITHOUT_DIGEST & set(each.kind.split(" + ")) for each in passed)
    assert all(each.level in forged_runs.LEVELS[2:] for each in passed)


def test_more_noise_written_anew_is_one_that_only_the_digest_finds(forged):
    """Shows that the fuzz would notice a forgery that passes."""
    _, made, other, folder = forged
    ways = {each.name: each for each in edits.kinds(other)}
    outcome = forged_runs.forge(
        made[0], [ways["noise multiplier, larger"]], 2, folder / "one", forged_runs.random.Random(1)
    )
    assert outcome.lowered
    assert not outcome.found
    assert outcome.found_by_digest


@pytest.mark.parametrize("fault", faulty_runs.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_that_is_struck_out_is_found_by_the_digest(forged, fault):
    """Only the digest detects it if all dependent files are rewritten; without logs no figure is left."""
    _, made, other, folder = forged
    way = next(each for each in edits.kinds(other) if each.base == fault.name)
    base = next(each for each in made if each.name == fault.name)
    generator = forged_runs.random.Random(1)
    nothing_else, all_that_follows = (
        forged_runs.forge(base, [way], level, folder / "one", generator) for level in (0, 2)
    )
    assert nothing_else.found_by_digest
    assert all_that_follows.found_by_digest
    logs = fault.name != "all logs removed"
    assert all_that_follows.lowered == logs
    assert all_that_follows.found != logs
