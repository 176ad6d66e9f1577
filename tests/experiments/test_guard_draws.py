"""A guard whose cohorts the plan's sampling draws: logged, or secret with the amplified ε."""

import functools
import itertools
import pathlib
import shutil

import numpy as np
import pytest

import tff_mf
from tff_mf.base.errors import InputError, InputValueError
from tff_mf.experiments import guard
from tff_mf.experiments.runs import names
from tff_mf.experiments.runs.folders import Checkpoints

from . import secret_runs
from .secret_runs import CLIENTS, ROUNDS, RUNS, STOPPED, critical, plan_of
from .shared import Kept

IDS = [f"client{number}." for number in range(CLIENTS)]


def run_in(folder, plan, *, until=ROUNDS, clients=IDS, **more):
    """Runs rounds up to one, ends a run after its last, and returns the cohorts."""
    found = []
    with guard.open_guard(folder, plan, **more) as guarded:
        guarded.resume(Checkpoints(folder / names.CHECKPOINTS, {}))
        guarded.draws_from(clients)
        for number, cohort in guarded.cohorts():
            found.append(cohort)
            guarded.finish({"weights": np.zeros(2)})
            if number == until < ROUNDS:
                return found
        guarded.end()
    return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A function from a sampling to its run with secret cohorts, stopped once, and the cohorts."""
    root = tmp_path_factory.mktemp("secret")

    @functools.cache
    def make(word):
        folder = root / word
        first = run_in(folder, plan_of(word), until=STOPPED)
        assert (folder / names.CHECKPOINTS / names.COHORTS).stat().st_mode & 0o777 == 0o600
        return folder, first + run_in(folder, plan_of(word), clients=IDS[::-1])

    return make


@pytest.fixture
def begun(tmp_path):
    """The folder of a run with secret cohorts that was stopped."""
    run_in(tmp_path / "begun", plan_of("balls-in-bins"), until=STOPPED)
    return tmp_path / "begun"


@pytest.mark.parametrize("word", RUNS)
def test_nothing_shows_secret_cohorts_and_the_amplified_epsilon_is_stated(kept, word):
    (folder, cohorts), plan = kept(word), plan_of(word)
    secret_runs.check_secret(folder, word, plan, IDS)
    # Each client keeps the schema for known cohorts, across the restart.
    for client in IDS:
        rounds = [number for number, cohort in enumerate(cohorts) if client in cohort]
        assert plan.participation.allows(rounds)

    if word == "balls-in-bins":
        # The same groups come after the restart: of 12 clients, as many as fit in 3 groups of 2.
        assert cohorts[:STOPPED] == cohorts[STOPPED:]
        assert len({*itertools.chain(*cohorts)}) == sum(map(len, cohorts[:STOPPED])) == 6


@pytest.mark.parametrize("word", RUNS)
def test_drawn_cohorts_that_are_logged_amplify_nothing(tmp_path, word):
    plan = plan_of(word, secret=False)
    cohorts = run_in(tmp_path / "run", plan, until=STOPPED) + run_in(tmp_path / "run", plan)
    secret_runs.check_logged(tmp_path / "run", plan, cohorts)


PLANS = {
    "a sampler": ("balls-in-bins", {}, {"sampler": "by hand"}, "sampler='by hand' does not go with secret_cohorts"),
    "an unknown population": ("balls-in-bins", {"population": None}, {}, "population=None must be the plan's"),
    "another population": ("balls-in-bins", {}, {"population": 11}, "population=11 must be the plan's, 12"),
    "a probability of other clients": (
        "b-min-sep",
        {"sampling": tff_mf.BMinSep(min_sep=2, probability=0.01)},
        {},
        "sampling=BMinSep.*must be",
    ),
    "an ε of one's own": ("balls-in-bins", {}, {"amplified_epsilon": 0.1}, "amplified_epsilon= cannot be given"),
    "secrecy of one's own": (
        "balls-in-bins",
        {"secret_cohorts": False},
        {"secret_cohorts": True, "amplified_epsilon": 0.1},
        "secret_cohorts= cannot be given",
    ),
    "a mechanism that no theorem covers": ("poisson", {"mechanism": tff_mf.Tree(ROUNDS)}, {}, "amplify at most 1"),
}


@pytest.mark.parametrize("case", PLANS)
def test_what_no_secret_run_can_have_is_refused_before_anything_is_written(tmp_path, case):
    word, changes, more, message = PLANS[case]
    with pytest.raises(InputError, match=message), guard.open_guard(tmp_path, plan_of(word, **changes), **more):
        pass
    assert list(tmp_path.iterdir()) == []


def test_only_the_drawn_cohort_can_take_part(tmp_path):
    # Its cohorts all have six clients: with a probability of 1, each group comes as a whole.
    whole = tff_mf.CyclicPoisson(groups=2, population=12, clients_per_round=6)
    with guard.open_guard(tmp_path, plan_of("cyclic-poisson", sampling=whole, clients_per_round=6)) as guarded:
        for early in (lambda: guarded.begin([]), lambda: guarded.allowed(IDS), lambda: next(guarded.cohorts())):
            with pytest.raises(InputValueError, match="call draws_from"):
                early()
        with pytest.raises(InputValueError, match=r"clients are 11.*population=12"):
            guarded.draws_from(IDS[:-1])
        drawn = guarded.draws_from(IDS)
        cohort = guarded.allowed(IDS)
        assert sorted(cohort) == sorted(drawn.cohort(0))
        other = next(client for client in IDS if client not in cohort)
        with pytest.raises(guard.RefusedCohortError) as error:
            guarded.begin([*cohort, other])
        assert error.value.clients == [other]
        assert not any(client in str(error.value) for client in IDS)
        with pytest.raises(InputValueError, match="twice"):
            guarded.begin([*cohort, *cohort])
        # Who is not there is left out, and is not replaced.
        assert guarded.begin(cohort[1:]) == 1
        guarded.resume(Kept())
        guarded.begin(cohort[1:])
        guarded.finish(None)
        for number in range(2, ROUNDS + 1):
            guarded.begin(guarded.allowed(IDS))
            guarded.finish(None)
            assert guarded.last_released == number
        with pytest.raises(InputValueError, match="beyond the rounds=6"):
            guarded.begin([])


def test_a_sampler_of_ones_own_is_not_drawn_for(tmp_path):
    plan = plan_of("balls-in-bins", secret=False)
    with guard.open_guard(tmp_path, plan, sampler="by hand") as guarded:
        with pytest.raises(InputValueError, match="sampler= was given"):
            guarded.draws_from(IDS)
        assert guarded.begin(IDS[:2]) == 1


@pytest.mark.parametrize("secret", [True, False])
@pytest.mark.parametrize("others", [[*IDS[1:], "new"], [f"{client}." for client in IDS]], ids=["one", "all"])
def test_other_clients_do_not_go_on(tmp_path, secret, others):
    """In another group, a client would take part in the rounds of both; before the first round, others can be named."""
    plan = plan_of("balls-in-bins", secret=secret)
    with guard.open_guard(tmp_path, plan) as guarded:
        guarded.draws_from(others)
    run_in(tmp_path, plan, until=STOPPED)
    with pytest.raises(InputValueError, match="not those that the run began with"):
        run_in(tmp_path, plan, clients=others)
    run_in(tmp_path, plan)
    assert critical(tmp_path) == []


def test_a_run_goes_on_with_its_key_alone_and_as_secret_as_it_began(begun, tmp_path):
    plan = plan_of("balls-in-bins")
    for other in (plan_of("balls-in-bins", secret=False), plan_of("cyclic-poisson")):
        with pytest.raises(InputValueError, match=r"began with|another mechanism"):
            run_in(begun, other)
    key = begun / names.CHECKPOINTS / names.COHORTS
    run_in(tmp_path / "other", plan, until=1)
    own, foreign = key.read_bytes(), (tmp_path / "other" / names.CHECKPOINTS / names.COHORTS).read_bytes()
    # Of another run; forged for this run, for other cohorts; and none.
    forged = own[:-1] + bytes([own[-1] ^ 1])
    for content, message in ((foreign, "another run"), (forged, "not those that the run began with")):
        key.write_bytes(content)
        with pytest.raises(InputValueError, match=message):
            run_in(begun, plan)
    key.unlink()
    with pytest.raises(InputValueError, match="is lost"):
        run_in(begun, plan)


def test_the_key_is_deleted_if_the_end_of_the_run_was_interrupted(kept, begun, tmp_path):
    run = pathlib.Path(shutil.copytree(kept("balls-in-bins")[0], tmp_path / "run"))
    left = run / names.CHECKPOINTS / names.COHORTS
    for interrupted in ((), (names.REPORT, names.REPORT_TEXT)):
        for name in interrupted:
            (run / name).unlink()
        left.write_bytes((begun / names.CHECKPOINTS / names.COHORTS).read_bytes())
        with pytest.raises(InputValueError, match="has ended"):
            run_in(run, plan_of("balls-in-bins"))
        assert not left.exists()
