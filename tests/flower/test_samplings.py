"""Cohorts of nodes by every sampling, drawn before the first round: logged, or secret with the amplified ε."""

import types

import pytest

from tff_mf.base.errors import InputValueError
from tff_mf.experiments import flower
from tff_mf.experiments.flower import strategy as strategies
from tff_mf.experiments.runs import names

from ..experiments import secret_runs
from . import fleet as fleets
from .fleet import CLIP, NAMES, NODES, ROUNDS, Fleet, identity, trained

EVERYBODY = [identity(name) for name in NAMES]
# Powers of 2, which add up exactly.
WAITING = flower.Waiting(nodes_seconds=0.0, replies_seconds=2.0**-10, poll_seconds=2.0**-13)
# Of node ids that no other number has by chance.
LIVES = (987654321, 123456789)


def plan_of(word, **more):
    return secret_runs.plan_of(word, clip_norm=CLIP, **more)


def opened(folder, plan, nodes=EVERYBODY, **more):
    return fleets.opened(folder, plan, nodes=nodes, waiting=WAITING, floating_point=plan.grid is None, **more)


def asked(fleet):
    """The nodes that were sent a message in each round."""
    names = {node: name for name, node in fleet.ids.items()}
    found = {}
    for message in fleet.sent:
        found.setdefault(message.content["config"]["server-round"], []).append(names[message.metadata.dst_node_id])
    return {number: sorted(each) for number, each in found.items()}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A function from a sampling to its run with secret cohorts, stopped once, what was logged, and who was asked."""
    root, made = tmp_path_factory.mktemp("secret"), {}

    def make(word):
        if word not in made:
            said, plan = [], plan_of(word)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(strategies, "log", lambda level, text, *values: said.append(text % values))
                lives = [Fleet(NAMES, trained, life=life) for life in LIVES]
                with opened(root / word, plan) as strategy:
                    strategy.start(lives[0], num_rounds=3)
                key = root / word / names.CHECKPOINTS / names.COHORTS
                assert key.stat().st_mode & 0o777 == 0o600
                with opened(root / word, plan) as strategy:
                    strategy.start(lives[1])
                    strategy.end()
            made[word] = root / word, said, {**asked(lives[0]), **asked(lives[1])}
        return made[word]

    return make


@pytest.mark.parametrize("word", secret_runs.RUNS)
def test_nothing_shows_secret_cohorts_and_the_amplified_epsilon_is_stated(kept, word):
    folder, said, _ = kept(word)
    hidden = [*EVERYBODY, *NAMES, *(str(1000 * life + place) for life in LIVES for place in range(NODES))]
    secret_runs.check_secret(folder, word, plan_of(word), hidden)
    assert not any(each in text for each in hidden for text in said)


def test_a_resumed_run_goes_on_with_the_same_groups(kept):
    _, _, chosen = kept("balls-in-bins")
    assert all(chosen.get(number, []) == chosen.get(number + 3, []) for number in (1, 2, 3))


@pytest.mark.parametrize("word", secret_runs.RUNS)
def test_cohorts_that_are_logged_are_those_of_the_sampling_and_amplify_nothing(tmp_path, word):
    fleet, plan = Fleet(NAMES, trained), plan_of(word, secret=False)
    with opened(tmp_path, plan) as strategy:
        strategy.start(fleet)
        strategy.end()
    cohorts = [[identity(name) for name in asked(fleet).get(number + 1, [])] for number in range(ROUNDS)]
    secret_runs.check_logged(tmp_path, plan, cohorts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": None}, "give the identities of all nodes"),
        ({"nodes": EVERYBODY[:-1]}, "nodes are 11, and the plan is for population=12"),
    ],
)
def test_what_no_secret_run_can_have_is_refused(tmp_path, changes, message):
    refused = pytest.raises(InputValueError, match=message)
    with refused, opened(tmp_path, plan_of("balls-in-bins"), **changes):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_secret_cohort_is_whoever_is_connected_of_it_and_refused_replies_stop_nothing(tmp_path):
    plan = plan_of("balls-in-bins")
    whole, half = Fleet(NAMES, trained), Fleet(NAMES[::2], lambda name, arrays, config: {"w": arrays["w"]})
    for folder, fleet in (("whole", whole), ("half", half)):
        with opened(tmp_path / folder, plan) as strategy:
            strategy.start(fleet)
            assert strategy.rounds_released == ROUNDS
    assert set().union(*asked(half).values()) <= set(NAMES[::2])


def test_a_round_of_a_secret_cohort_lasts_as_long_whoever_is_in_it(tmp_path, monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(strategies.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(strategies.time, "sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))
    times = []
    with opened(tmp_path, plan_of("poisson")) as strategy:
        strategy.start(Fleet(NAMES, trained), evaluate_fn=lambda number, arrays: times.append(clock.now))
    assert len({round(later - sooner, 9) for sooner, later in zip([0.0, *times], times, strict=False)}) == 1
