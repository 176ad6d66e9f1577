"""The guard: what the schema forbids is refused before data is handed out, also after a restart; its runs report."""

import asyncio
import copy
import itertools
import json
import pathlib
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.guard import opening, run_guard
from tff_mf.experiments.privacy.plan import plan_privacy
from tff_mf.experiments.run_folder import ledger, names
from tff_mf.experiments.run_folder.participation_log import read_entries

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fuzz"))
from run_folders import ANSWERS

ROUNDS = 6
SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=2)


def plan(**changes):
    arguments = {
        "mechanism": tff_mf.BLT.production("b100"),
        "rounds": ROUNDS,
        "participation": SCHEMA,
        "delta": 1e-6,
        "clients_per_round": 2,
        "noise_multiplier": 5.0,
    }
    return plan_privacy(**{**arguments, **changes})


def opened(folder, **changes):
    return opening.open_guard(folder, plan(**changes), clip_norm=1.0, sampler="by hand")


def test_what_a_killed_process_left_unfinished_is_deleted(tmp_path):
    left = tmp_path / names.CHECKPOINTS / ".0.tff-mf.tmp"
    left.parent.mkdir()
    left.write_bytes(b"keys")
    with opened(tmp_path):
        assert not left.exists()


COHORTS = [["a", "b"], ["c", "d"], ["e", "f"], ["b", "a"], [], ["c", "e"]]


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
            refused = run_guard.refusal(schema, pattern, number)
            assert bool(refused) == (together not in patterns), (pattern, number, refused)


def test_a_run_goes_on_with_noise_that_another_machine_calibrated_in_other_last_bits(tmp_path):
    with opened(tmp_path):
        pass
    last_bit = plan(noise_multiplier=np.nextafter(5.0, 6.0))
    assert opening.begun_plan(tmp_path / "none", last_bit) == last_bit
    assert opening.begun_plan(tmp_path, last_bit) == plan()
    other = opening.begun_plan(tmp_path, plan(noise_multiplier=5.0 * (1 - 1e-8)))
    for wrong in (other, last_bit):
        with (
            pytest.raises(tff_mf.InputError, match="noise_multiplier"),
            opening.open_guard(tmp_path, wrong, clip_norm=1.0, sampler="by hand"),
        ):
            pass


def test_a_guarded_run_has_a_report_that_passes(tmp_path):
    with opened(tmp_path / "run", mechanism=tff_mf.Identity()) as guarded:
        (guarded.folder / "answers.json").write_text(json.dumps(ANSWERS))
        for number, clients in guarded.cohorts(COHORTS):
            assert clients == COHORTS[number - 1]
            guarded.released(number)
        report = guarded.end()
    assert [
        each for each in reports.check(tmp_path / "run", held=report["digest"]) if each.severity == "critical"
    ] == []
    exact = tff_mf.Guarantee(mu=np.sqrt(2) / 5.0).epsilon(1e-6)
    assert report["accountant"]["realised"]["epsilon"] == pytest.approx(exact, rel=1e-9)
    assert f"ε≤{np.ceil(exact * 1000) / 1000:.3f}" in report["headline"]
    assert report["participation"]["sampler"] == "by hand"
    with pytest.raises(tff_mf.InputError, match="has ended"), opened(tmp_path / "run", mechanism=tff_mf.Identity()):
        pass


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "TensorFlow"), ({"generator": "aes"}, "AES-128"), ({"generator": "of my own"}, "of my own")],
)
def test_the_report_names_the_generator_of_the_settings(tmp_path, settings, said):
    with opening.open_guard(tmp_path, plan(), clip_norm=1.0, sampler="by hand", settings=settings):
        found = reports.write(tmp_path, realised=False)["randomness"]
    assert said in found["algorithm"]
    assert any("Philox" in each["what"] for each in found["severities"]) == (said == "TensorFlow")


def test_restarts_are_written_down(tmp_path):
    with opening.open_guard(
        tmp_path / "run", plan(), clip_norm=1.0, sampler="by hand", restart_every=2, adaptive_count_stddev=2.0
    ) as guarded:
        (guarded.folder / "answers.json").write_text(json.dumps(ANSWERS))
        for index, clients in enumerate(COHORTS):
            guarded.released(guarded.begin(clients, clip_norm=1.0 / (1 + index // 2)))
        guarded.end()
    assert ledger.read_ledger(tmp_path / "run" / names.LEDGER).restarts == [3, 5]
    assert [each for each in reports.check(tmp_path / "run") if each.severity == "critical"] == []


def test_what_is_refused_is_not_written_and_the_next_cohort_may_come(tmp_path):
    with opened(tmp_path / "run") as guarded:
        assert guarded.begin(["a", "b"]) == 1
        before = [(tmp_path / "run" / name).read_bytes() for name in ("ledger.jsonl", "participation.csv")]
        with pytest.raises(
            run_guard.RefusedCohortError, match="1 may not take part, for example 'a', which took part"
        ) as info:
            guarded.begin(["c", "a"])
        assert info.value.clients == ["a"]
        for wrong, reason in ((["c", "c"], "twice"), (["c", 3], "string"), ("cd", "sequence of ids")):
            with pytest.raises(tff_mf.InputError, match=reason):
                guarded.begin(wrong)
        assert [(tmp_path / "run" / name).read_bytes() for name in ("ledger.jsonl", "participation.csv")] == before
        assert guarded.allowed("abcd") == ["c", "d"]
        assert guarded.begin(["c", "d"]) == 2
        with pytest.raises(tff_mf.InputError, match="never begun"):
            guarded.released(3)


def test_nobody_is_forgotten_over_a_restart(tmp_path):
    """Killed in round 3, of which nothing was released: its clients took part all the same."""
    folder = tmp_path / "run"
    with opened(folder) as guarded:
        for clients in COHORTS[:3]:
            number = guarded.begin(clients)
            if number < 3:
                guarded.released(number)
    with opened(folder) as guarded:
        with pytest.raises(tff_mf.InputError, match="call goes_on_after"):
            guarded.begin(["g", "h"])
        with pytest.raises(tff_mf.InputError, match=r"round 2 .* was released, and its newest checkpoint is older"):
            guarded.goes_on_after(1)
        guarded.goes_on_after(2)
        assert guarded.allowed("abcdefgh") == ["e", "f", "g", "h"]
        assert guarded.begin(["g", "e"]) == 3
        assert guarded.allowed("abcdefgh") == ["a", "b", "h"]
        for clients in (["a", "b"], ["c", "d"], ["e", "f"]):
            guarded.released(guarded.begin(clients))
        with pytest.raises(tff_mf.InputError, match="beyond the rounds=6"):
            guarded.begin([])
        (folder / "answers.json").write_text(json.dumps(ANSWERS))
        report = guarded.end()
    assert [each for each in reports.check(folder) if each.severity == "critical"] == []
    assert (report["rounds"]["computed_again"], report["participation"]["observed_min_sep"]) == (1, 3)
    assert {(each.round_number, each.attempt) for each in read_entries(folder / "participation.csv")} == {
        *((number, 1) for number in range(1, 7)),
        (3, 2),
    }


@given(st.data())
def test_no_run_of_any_sampler_and_any_kills_breaks_the_schema(tmp_path_factory, data):
    """Against what the logs say in the end, read without the code of the guard."""
    folder = tmp_path_factory.mktemp("guarded") / "run"
    cohort = st.lists(st.sampled_from("abcde"), max_size=3)
    last = 0
    for _ in range(data.draw(st.integers(1, 3))):
        with opened(folder) as guarded:
            guarded.goes_on_after(last)
            for _ in range(data.draw(st.integers(0, 6))):
                try:
                    number = guarded.begin(data.draw(cohort))
                except tff_mf.InputError:
                    continue
                if data.draw(st.booleans()):
                    last = number
                    if data.draw(st.booleans()):
                        guarded.released(number)
    rounds = {}
    for line in (folder / "participation.csv").read_text().splitlines()[1:]:
        number, _, client = line.split(",")
        rounds.setdefault(client, set()).add(int(number))
    assert all(len(each) <= 2 for each in rounds.values())
    assert all(b - a >= 3 for each in rounds.values() for a, b in itertools.pairwise(sorted(each)))
    record = ledger.read_ledger(folder / names.LEDGER)
    assert record.problems == record.impossible == []


def test_a_folder_is_of_one_run_and_one_process(tmp_path):
    with opened(tmp_path / "run") as guarded:
        guarded.begin(["a"])
        with pytest.raises(tff_mf.InputError, match="in use by process"), opened(tmp_path / "run"):
            pass
    with (
        pytest.raises(tff_mf.InputError, match=r"noise_multiplier=50\.0"),
        opened(tmp_path / "run", noise_multiplier=50.0),
    ):
        pass
    with pytest.raises(tff_mf.InputError, match="plan="), opening.open_guard(tmp_path, 3, clip_norm=1.0, sampler="x"):
        pass


@pytest.mark.parametrize(
    "changes",
    [{"clip_norm": 2.0}, {"noise_multiplier": 0.5}, {"restart_every": 3}, {"insecure_seed": 1}, {"mechanism": None}],
    ids=lambda changes: next(iter(changes)),
)
def test_an_aggregator_with_other_noise_is_refused(tmp_path, changes):
    aggregators = pytest.importorskip("tff_mf.aggregators")
    arguments = {"mechanism": plan().mechanism, "clip_norm": 1.0, "noise_multiplier": 5.0, "clients_per_round": 2}
    right = aggregators.build_mf_aggregator(**arguments)
    changes = {name: tff_mf.Identity() if value is None else value for name, value in changes.items()}
    wrong = aggregators.build_mf_aggregator(**{**arguments, **changes})
    repeating = right.repeating(np.zeros((3, 2), np.int64))
    assert repeating.insecure
    assert repeating.fingerprint == right.fingerprint
    with (
        pytest.raises(tff_mf.InputError, match="its keys are known"),
        opening.open_guard(tmp_path / "known", plan(), clip_norm=1.0, sampler="x", aggregator=repeating),
    ):
        pass
    with opening.open_guard(tmp_path / "run", plan(), clip_norm=1.0, sampler="x", aggregator=right):
        pass
    with (
        pytest.raises(tff_mf.InputError, match=r"settings\['generator'\]='aes' is not the generator"),
        opening.open_guard(
            tmp_path / "named", plan(), clip_norm=1.0, sampler="x", aggregator=right, settings={"generator": "aes"}
        ),
    ):
        pass
    with (
        pytest.raises(tff_mf.InputError, match="does not have the noise of the plan"),
        opening.open_guard(tmp_path / "other", plan(), clip_norm=1.0, sampler="x", aggregator=wrong),
    ):
        pass
    assert not (tmp_path / "other").exists()


def test_a_data_source_hands_out_nothing_that_the_schema_forbids(tmp_path):
    tff = pytest.importorskip("tensorflow_federated")
    from tff_mf import aggregators
    from tff_mf.experiments.guard.guarded_source import (
        GuardedDataSource,
        GuardedDataSourceIterator,
        GuardedReleaseManager,
    )

    numbers = {name: {"x": np.full([2], index, np.float32)} for index, name in enumerate("abcdef")}
    data = tff.simulation.datasets.TestClientData(numbers)
    drawn = []

    def draw(k):
        return drawn.pop(0)[:k]

    def values(datasets):
        return [float(next(iter(dataset.as_numpy_iterator()))["x"]) for dataset in datasets]

    with opened(tmp_path / "run") as guarded:
        source = GuardedDataSource(guarded, data, draw)
        iterator = source.iterator()
        start = iterator.to_bytes()
        drawn[:] = [["b", "a"], ["c", "a"], ["c", "d"], ["c", "e"], ["nobody"]]
        assert values(iterator.select(2)) == [1.0, 0.0]
        with pytest.raises(run_guard.RefusedCohortError):
            iterator.select(2)
        before = copy.deepcopy(iterator)
        assert values(iterator.select(2)) == [2.0, 3.0]
        saved = iterator.to_bytes()
        # A round that the program throws away, and draws anew.
        assert values(before.select(1)) == [2.0]
        with pytest.raises(tff_mf.InputError, match="'nobody'"):
            before.select(1)
        assert before.to_bytes() == saved != start
        checkpoints = aggregators.CheckpointManager(tmp_path / "checkpoints")
        seen = []

        class Seen(tff.program.ReleaseManager):
            async def release(self, value, key):
                seen.append((value, key, ledger.read_ledger(tmp_path / "run" / names.LEDGER).released))

        manager = GuardedReleaseManager(Seen(), guarded, checkpoints)
        asyncio.run(manager.release("metrics", 1))
        assert seen == [("metrics", 1, {1: 1})]
        with pytest.raises(tff_mf.InputError, match="a round that this process began"):
            asyncio.run(manager.release("metrics", 3))
        asyncio.run(manager.release("model", "last"))
        assert seen[1:] == [("model", "last", {1: 1, 2: 1})]
    del source, iterator, before
    with opened(tmp_path / "run") as guarded:
        with pytest.raises(tff_mf.InputError, match="open its guard"):
            GuardedDataSourceIterator.from_bytes(saved)
        again = GuardedDataSource(guarded, data, draw)
        assert again.iterator().to_bytes() != saved
        with pytest.raises(tff_mf.InputError, match=r"round 2 .* was released"):
            GuardedDataSourceIterator.from_bytes(start)
        drawn[:] = [["f"]]
        assert values(GuardedDataSourceIterator.from_bytes(saved).select(1)) == [5.0]
        assert ledger.read_ledger(tmp_path / "run" / names.LEDGER).attempts == {1: 1, 2: 2, 3: 1}


def test_a_checkpoint_of_another_run_of_the_same_settings_is_refused(tmp_path):
    with opened(tmp_path / "one") as one, opened(tmp_path / "other") as other:
        for guarded in (one, other):
            guarded.begin(["a"])
            guarded.released(1)
        known = one.run
        assert known != other.run
    with opened(tmp_path / "other") as guarded, pytest.raises(tff_mf.InputError, match="of the checkpoint must be"):
        guarded.goes_on_after(1, run=known)
    with opened(tmp_path / "one") as guarded:
        assert guarded.goes_on_after(1, run=known) == 1
