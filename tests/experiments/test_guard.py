"""The guard: what the schema forbids is refused before data is handed out, also after a restart; its runs report."""

import collections
import contextlib
import dataclasses
import itertools
import json
from concurrent import futures

import numpy as np
import pytest
import run_folders
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.experiments import reports
from tff_mf.experiments.guard import run_guard
from tff_mf.experiments.runs import ledger, names

from .shared import Kept, StoppedError, critical

SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=2)
COHORTS = [["a", "b"], ["c", "d"], ["e", "f"], ["b", "a"], [], ["c", "e"]]
STRANGERS = [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"], ["i", "j"], ["k", "l"]]


def plan(**changes):
    return run_folders.plan(**{"rounds": 6, "sampling": SCHEMA, **changes})


OF_PLAN = ("restart_every", "adaptive_count_stddev")


def opened(folder, privacy=None, **more):
    """A guard; of what is given more, the plan has what is of the noise."""
    of_plan = {name: more.pop(name) for name in OF_PLAN if name in more}
    privacy = dataclasses.replace(privacy or plan(), **of_plan)
    return run_guard.open_guard(folder, privacy, **{"sampler": "by hand", **more})


def refused(folder, match, privacy=None, **more):
    """A guard is not opened, for a reason."""
    with pytest.raises(tff_mf.InputError, match=match), opened(folder, privacy, **more):
        pass


def book_of(folder):
    return ledger.read_ledger(folder / names.LEDGER)


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        tff_mf.MinSep(min_sep=1, max_participations=3),
        tff_mf.SingleParticipation(),
        tff_mf.FixedEpoch(min_sep=2, max_participations=2),
        tff_mf.FixedEpoch(min_sep=3, max_participations=3),
    ],
    ids=repr,
)
def test_a_client_is_refused_exactly_where_its_rounds_would_be_no_pattern(schema):
    patterns = set(schema.patterns(8))
    for pattern in patterns:
        for number in range(8):
            together = tuple(sorted({*pattern, number}))
            reason = ledger.refusal(schema, pattern, number)
            assert bool(reason) == (together not in patterns), (pattern, number, reason)


@given(st.data())
def test_no_run_of_any_sampler_and_any_kills_breaks_the_schema(tmp_path_factory, data):
    """Against what the logs say in the end, read without the code of the guard."""
    folder = tmp_path_factory.mktemp("guarded") / "run"
    cohort = st.lists(st.sampled_from("abcde"), max_size=3)
    kept = Kept()
    for _ in range(data.draw(st.integers(1, 3))):
        with opened(folder) as guarded, contextlib.suppress(StoppedError):
            kept.stops = False
            guarded.resume(kept)
            for _ in range(data.draw(st.integers(0, 6))):
                try:
                    guarded.begin(data.draw(cohort))
                except tff_mf.InputError:
                    continue
                if data.draw(st.booleans()):
                    kept.stops = data.draw(st.booleans())
                    guarded.finish(None)
    rounds = {}
    for line in map(json.loads, (folder / names.LEDGER).read_text().splitlines()):
        for client in line.get("clients", ()):
            rounds.setdefault(client, set()).add(line["round"])
    assert all(len(each) <= 2 for each in rounds.values())
    assert all(b - a >= 3 for each in rounds.values() for a, b in itertools.pairwise(sorted(each)))
    assert book_of(folder).problems == book_of(folder).impossible == []


def test_a_guarded_run_has_a_report_that_passes_and_is_not_opened_again(tmp_path):
    folder, identity = tmp_path / "run", plan(mechanism=tff_mf.Identity())
    with opened(folder, identity) as guarded:
        guarded.resume(Kept())
        for number, clients in guarded.cohorts(COHORTS):
            assert clients == COHORTS[number - 1]
            guarded.finish(None)
        report = guarded.end()
    assert critical(folder) == []
    exact = tff_mf.Guarantee(mu=np.sqrt(2) / 5.0).epsilon(1e-6)
    assert report.realised.epsilon == pytest.approx(exact, rel=1e-9)
    assert f"ε≤{np.ceil(exact * 1000) / 1000:.3f}" in report.headline
    assert report.run["sampler"] == "by hand"
    refused(folder, "has ended", identity)
    # Nor without the line that says so, nor without any log.
    lines = (folder / names.LEDGER).read_bytes().splitlines(keepends=True)
    (folder / names.LEDGER).write_bytes(b"".join(lines[:-1]))
    refused(folder, "has ended", identity)
    (folder / names.LEDGER).unlink()
    refused(folder, "has ended", identity)


def test_a_released_round_has_no_second_result(tmp_path):
    kept = Kept()
    with opened(tmp_path / "run") as guarded:
        guarded.resume(kept)
        guarded.begin(COHORTS[0])
        guarded.finish("released")
        before = kept.about(1)
        for again in (lambda: None, lambda: guarded.goes_back_to(guarded.begin(COHORTS[1]))):
            again()
            with pytest.raises(tff_mf.InputError, match="round 1 was released: another result"):
                guarded.finish("another")
    assert kept.saved == {1: ("released", before)}


def test_restarts_are_written_down(tmp_path):
    with opened(tmp_path / "run", restart_every=2, adaptive_count_stddev=2.0) as guarded:
        guarded.resume(Kept())
        for index, clients in enumerate(COHORTS):
            guarded.begin(clients, clip_norm=1.0 / (1 + index // 2))
            guarded.finish(None)
        guarded.end()
    assert book_of(tmp_path / "run").restarts == [3, 5]
    assert critical(tmp_path / "run") == []


# A cohort that is no cohort, and what the error says of it.
NO_COHORTS = [
    (["c", "c"], "twice"),
    (["c", 3], "clients has 3"),
    ("cd", "clients='cd'"),
    ([None], "clients has None"),
    (["c", None], "clients has None"),
    (["c", "\ud800"], "UTF-8"),
]


def test_what_is_refused_is_not_written_and_the_next_cohort_may_come(tmp_path):
    with opened(tmp_path / "run") as guarded:
        with pytest.raises(tff_mf.InputError, match="call resume"):
            guarded.finish(None)
        guarded.resume(Kept())
        with pytest.raises(tff_mf.InputError, match="never begun"):
            guarded.finish(None)
        assert guarded.begin(["a", "b"]) == 1
        before = (tmp_path / "run" / names.LEDGER).read_bytes()
        with pytest.raises(run_guard.RefusedCohortError) as info:
            guarded.begin(["c", "a"])
        assert info.value.clients == ["a"]
        for wrong, reason in NO_COHORTS:
            with pytest.raises(tff_mf.InputError, match=reason):
                guarded.begin(wrong)
        assert (tmp_path / "run" / names.LEDGER).read_bytes() == before
        assert guarded.allowed("abcd") == ["c", "d"]
        assert guarded.begin(["c", "d"]) == 2


class Lazy(list):
    """Draws whenever it is read."""

    drawn = itertools.count()

    def __iter__(self):
        return iter([f"client {next(self.drawn)}"])


def test_the_cohort_that_is_handed_out_is_the_one_on_disk(tmp_path):
    with opened(tmp_path / "run") as guarded:
        handed = [clients for _, clients in guarded.cohorts(Lazy() for _ in range(6))]
    assert [list(line.clients) for line in book_of(tmp_path / "run").begun] == handed


def test_nobody_is_forgotten_over_a_restart(tmp_path):
    """Killed in round 3, of which nothing was released: its clients took part all the same."""
    folder, kept = tmp_path / "run", Kept()
    with opened(folder) as guarded:
        guarded.resume(kept)
        for clients in COHORTS[:3]:
            if guarded.begin(clients) < 3:
                guarded.finish(None)
    left = folder / names.CHECKPOINTS / ".0.tff-mf.tmp"
    left.parent.mkdir()
    left.write_bytes(b"keys")
    with opened(folder) as guarded:
        assert not left.exists()
        with pytest.raises(tff_mf.InputError, match="call resume"):
            guarded.begin(["g", "h"])
        assert guarded.resume(kept) == 2
        assert guarded.allowed("abcdefgh") == ["e", "f", "g", "h"]
        assert guarded.begin(["g", "e"]) == 3
        assert guarded.allowed("abcdefgh") == ["a", "b", "h"]
        for clients in (["a", "b"], ["c", "d"], ["e", "f"]):
            guarded.begin(clients)
            guarded.finish(None)
        with pytest.raises(tff_mf.InputError, match="beyond the rounds=6"):
            guarded.begin([])
        report = guarded.end()
    assert critical(folder) == []
    assert report.log.computed_again == 1
    assert "observed min-sep 3" in report.headline
    assert [(line.round, line.attempt) for line in book_of(folder).begun] == [
        *((number, 1) for number in range(1, 4)),
        (3, 2),
        *((number, 1) for number in range(4, 7)),
    ]


def test_a_round_is_recorded_as_released_only_once_its_state_is_saved(tmp_path):
    kept = Kept()
    kept.stops = True
    with opened(tmp_path / "run") as guarded:
        guarded.resume(kept)
        guarded.begin(["a"])
        with pytest.raises(StoppedError):
            guarded.finish(None)
        assert book_of(tmp_path / "run").released == {}
    # It was saved all the same, so that it may have been seen.
    with opened(tmp_path / "run") as guarded:
        assert (guarded.resume(kept), guarded.last_released) == (1, 1)


def test_threads_that_begin_at_once_get_a_round_each(tmp_path):
    with opened(tmp_path / "run") as guarded, futures.ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(guarded.begin, STRANGERS)) == [1, 2, 3, 4, 5, 6]


# What the run of a folder was not started with, by the argument that the error names.
OF_ANOTHER_RUN = {
    "population": 1,
    "sampler": "another",
    "simulation": True,
    "evaluation_columns": ["loss"],
    "released_without_noise": [{"name": "loss", "of": "training clients"}],
}


def test_a_folder_is_of_one_process_and_one_run_with_the_settings_that_it_was_started_with(tmp_path):
    folder, begun = tmp_path / "run", {"population": 20, "evaluation_columns": ("accuracy",)}
    with opened(folder, **begun) as guarded:
        guarded.begin(["a"])
        refused(folder, "in use by process", **begun)
    with opened(folder, **begun):
        pass
    for name, value in OF_ANOTHER_RUN.items():
        refused(folder, f"{name}=.* is not the setting that the run", **{**begun, name: value})
    for name, value in {"noise_multiplier": 50.0, "rounds": 5, "clip_norm": 2.0}.items():
        refused(folder, name, plan(**{name: value}), **begun)
    refused(folder, "another mechanism", plan(mechanism=tff_mf.Identity()), **begun)
    with pytest.raises(tff_mf.InputError, match="plan="), run_guard.open_guard(tmp_path, 3, sampler="x"):
        pass


def test_a_run_goes_on_with_noise_that_another_machine_calibrated_in_other_last_bits(tmp_path):
    with opened(tmp_path):
        pass
    last_bit = plan(noise_multiplier=np.nextafter(5.0, 6.0))
    assert run_guard.begun_plan(tmp_path / "none", last_bit) == last_bit
    assert run_guard.begun_plan(tmp_path, last_bit) == plan()
    for wrong in (run_guard.begun_plan(tmp_path, plan(noise_multiplier=5.0 * (1 - 1e-8))), last_bit):
        refused(tmp_path, "noise_multiplier", wrong)


DETERMINED = ("noise_multiplier", "delta", "rounds", "min_sep", "max_participations", "participation", "insecure_seed")
DETERMINED += ("clients_per_round", "cohort", "divisor", "mechanism_sha256", "epsilon")


@pytest.mark.parametrize("name", DETERMINED)
def test_what_the_plan_determines_cannot_be_given(tmp_path, name):
    refused(tmp_path / "run", f"{name}= cannot be given", **{name: 3})
    with pytest.raises(ValueError, match=f"{name}= cannot be given"):
        reports.write_record(tmp_path, plan(), **{name: 3})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.csv", "checkpoints/checkpoint_1"])
@pytest.mark.parametrize("emptied", [False, True])
def test_what_is_left_of_a_run_without_a_ledger_is_no_new_run(tmp_path, name, emptied):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    if emptied:
        (tmp_path / names.LEDGER).write_text('{"kind": "op')
    refused(tmp_path, rf"holds {name.split('/')[0]} of a run")


def built(**changes):
    arguments = {"mechanism": plan().mechanism, "clip_norm": 1.0, "noise_multiplier": 5.0, "clients_per_round": 2}
    return aggregators.build_mf_aggregator(**{**arguments, **changes})


def adaptive(count_stddev):
    """Changes of an aggregator that clips adaptively."""
    return {"restart_every": 2, "adaptive_clipping": queries.AdaptiveClipping(count_stddev=count_stddev)}


class Process:
    """The noise of a process's state without its model: what the guard looks at."""

    def __init__(self, **changes):
        self.aggregator = built(**changes)
        self._query, self._sum = self.aggregator._query(tf.TensorSpec([2])), tf.zeros([2])

    def kept(self):
        """Returns a storage that knows the noise of states."""
        return Kept(aggregators.rounds_drawn, self.state(0))

    def state(self, rounds):
        state, total = self._query.initial_global_state(), self._sum
        if self.aggregator.adaptive_clipping is not None:
            total = (total, np.float32(0))
        for _ in range(rounds):
            _, state, _ = self._query.get_noised_result(total, state)
        return collections.OrderedDict(model=np.zeros(2), aggregator=(state, ()))


OTHER_NOISE, COUNTS = "does not have the noise of the plan", r"adaptive_count_stddev=.*: it must be 3\.0"
# Changes of the plan's aggregator, what the guard is opened with beside it, and what the refusal names.
AGGREGATORS = {
    "clip norm": ({"clip_norm": 2.0}, {}, OTHER_NOISE),
    "noise multiplier": ({"noise_multiplier": 0.5}, {}, OTHER_NOISE),
    "restarts": ({"restart_every": 3}, {}, OTHER_NOISE),
    "seed": ({"insecure_seed": 1}, {}, "its keys are known"),
    "mechanism": ({"mechanism": tff_mf.Identity()}, {}, OTHER_NOISE),
    "a grid": ({"grid": tff_mf.Grid(bits=18, max_clients=1000)}, {}, "grid="),
    "divisor": ({"clients_per_round": 3}, {}, r"clients_per_round=3\.0"),
    "no adaptive clipping": ({}, {"restart_every": 2, "adaptive_count_stddev": 3.0}, "no adaptive_clipping"),
    "adaptive, no counts": (3.0, {}, COUNTS),
    "adaptive, no counts, restarts": (3.0, {"restart_every": 2}, COUNTS),
    "adaptive, other counts": (3.0, {"restart_every": 2, "adaptive_count_stddev": 30.0}, COUNTS),
    "adaptive, other restarts": (3.0, {"restart_every": 3, "adaptive_count_stddev": 3.0}, OTHER_NOISE),
}


@pytest.mark.parametrize("case", AGGREGATORS)
def test_an_aggregator_with_other_noise_is_refused(tmp_path, case):
    changes, more, reason = AGGREGATORS[case]
    changes = adaptive(changes) if isinstance(changes, float) else changes
    refused(tmp_path / "run", reason, aggregator=built(**changes), **more)
    assert not (tmp_path / "run").exists()


def test_the_plans_aggregator_is_taken(tmp_path):
    right = built()
    with opened(tmp_path / "run", aggregator=right):
        pass
    process = Process(**adaptive(3.0))
    given = {"aggregator": process.aggregator, "restart_every": 2, "adaptive_count_stddev": 3.0}
    with opened(tmp_path / "adaptive", **given) as guarded:
        guarded.resume(process.kept())
        for clients in STRANGERS[:3]:
            guarded.begin(clients, clip_norm=1.0)
        guarded.finish(process.state(3))


@pytest.mark.parametrize("changes", [{}, {"restart_every": 2}], ids=["one stream", "restarts"])
def test_a_round_that_failed_and_was_skipped_is_found_at_the_next_release(tmp_path, changes):
    """With restarts, a skip of a whole period has the same place in the stream, and another count."""
    process = Process(**changes)
    kept = process.kept()
    with opened(tmp_path / "run", aggregator=process.aggregator, **changes) as guarded:
        guarded.resume(kept)
        guarded.begin(STRANGERS[0])
        guarded.finish(process.state(1))
        for clients in STRANGERS[1:4]:
            guarded.begin(clients)
        # What was computed since is thrown away, and only that helps: row 2 of the noise went to another cohort.
        for drawn in (2, 3, 5):
            with pytest.raises(tff_mf.InputError, match=rf"for {drawn} rounds.*load the state of round 1, call goes_b"):
                guarded.finish(process.state(drawn))
            for wrong in (
                lambda: guarded.begin(STRANGERS[4]),
                lambda: guarded.goes_back_to(4),
                lambda: guarded.finish(process.state(4)),
            ):
                with pytest.raises(tff_mf.InputError, match=r"goes_back_to\(2\) first"):
                    wrong()
        assert book_of(tmp_path / "run").released == {1: 1}
        assert kept.rounds() == [1]
        guarded.goes_back_to(2)
        guarded.begin(STRANGERS[5])
        guarded.finish(process.state(2))
        # A round that fails, as it should be done; not every round is released.
        assert guarded.begin(STRANGERS[4]) == 3
        guarded.goes_back_to(3)
        assert [guarded.begin([]), guarded.begin([])] == [3, 4]
        guarded.finish(process.state(4))
        for released_or_far in (1, 4, 6):
            with pytest.raises(tff_mf.InputError, match=rf"round_number={released_or_far} must be at least 5"):
                guarded.goes_back_to(released_or_far)
    assert book_of(tmp_path / "run").released == {1: 1, 2: 1, 3: 1, 4: 1}
    assert book_of(tmp_path / "run").attempts == {1: 1, 2: 2, 3: 3, 4: 2}


def test_the_state_is_asked_for_and_is_that_of_the_aggregator(tmp_path):
    process, other = Process(), Process(clip_norm=2.0)
    kept = process.kept()
    with opened(tmp_path / "run", aggregator=process.aggregator) as guarded:
        with pytest.raises(TypeError, match="storage must know the noise"):
            guarded.resume(Kept())
        guarded.resume(kept)
        guarded.begin(COHORTS[0])
        for state, reason in ((other.state(1), "other noise than the aggregator"), ([np.zeros(2)], "no noise")):
            with pytest.raises(ValueError, match=reason):
                guarded.finish(state)
        assert (guarded.last_released, kept.rounds()) == (0, [])
        guarded.finish(process.state(1))
    with opened(tmp_path / "run", aggregator=process.aggregator) as guarded:
        assert guarded.resume(kept) == 1
        for wrong, reason in ((process.state(0), "drawn for 0 rounds"), (other.state(1), "other noise than")):
            kept.saved[1] = wrong, kept.about(1)
            with pytest.raises(ValueError, match=reason):
                guarded.resume(kept)


def test_a_state_is_looked_at_where_no_aggregator_is_known(tmp_path):
    process = Process()
    with opened(tmp_path / "run") as guarded:
        guarded.resume(process.kept())
        guarded.begin(COHORTS[0])
        for state, reason in ((process.state(2), "drawn for 2 rounds"), ([np.zeros(2)], "state has no noise")):
            with pytest.raises(ValueError, match=reason):
                guarded.finish(state)
