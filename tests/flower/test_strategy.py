import dataclasses
import os
import signal

import numpy as np
import pytest
import safetensors.numpy
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, RecordDict
from google.protobuf.message import DecodeError

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.experiments import flower, reports
from tff_mf.experiments.flower import cohorts, updates
from tff_mf.experiments.runs import ledger
from tff_mf.experiments.runs.names import LEDGER, MODEL

from ..faults import striking
from .fleet import (
    ARRAYS,
    BITS,
    CLIP,
    COHORT,
    NAMES,
    NODES,
    ROUNDS,
    SCHEMA,
    WAITING,
    Fleet,
    counts,
    everybody,
    in_integers,
    key_of,
    moved_by_one,
    opened,
    plan_of,
    record,
    refused,
    rows,
    trained,
)


@pytest.mark.parametrize("on_grid", [False, True], ids=["floats", "grid"])
def test_a_run_ends_with_a_clean_report(tmp_path, on_grid):
    """What integers cost is in the guarantee."""
    fleet = Fleet(NAMES, in_integers if on_grid else trained)
    more = {"population": NODES, **({"replies": "integers", "floating_point": False} if on_grid else {})}
    plan = plan_of().for_model(15) if on_grid else plan_of()
    assert plan.grid == (tff_mf.Grid(bits=BITS, max_clients=1000) if on_grid else None)
    with opened(tmp_path, **more) as strategy:
        result = strategy.start(fleet)
        refused("in use by process", tmp_path, **more)
        report = strategy.end()
    assert reports.check(tmp_path).problems == []
    assert tff_mf.Plan.load(tmp_path).grid == plan.grid
    assert report.planned.mu == plan.guarantee.mu
    assert (report.claim.tail > 0, plan.epsilon > plan_of().epsilon) == (on_grid, on_grid)
    assert [found.clipped for found in counts(tmp_path).values()] == [0] * ROUNDS
    assert len(rows(tmp_path)) == ROUNDS * COHORT
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert result.train_metrics_clientapp == {}
    sent = fleet.sent[-1].content["config"]
    assert sent["server-round"] == ROUNDS
    assert on_grid or 0.999 * CLIP < sent["clipping_norm"] < CLIP
    refused("has ended", tmp_path, **more)


def test_the_schema_holds_in_all_lives_for_nodes_with_new_ids(tmp_path):
    for life in range(1, ROUNDS + 1):
        with opened(tmp_path) as strategy:
            strategy.start(Fleet(NAMES, trained, life=life), num_rounds=life)
    past = {}
    for number, client in rows(tmp_path):
        past.setdefault(client, []).append(number)
    assert all(SCHEMA.allows(each) for each in past.values())
    assert len(past) <= NODES


HOSTILE = {
    "nan": (lambda arrays: {**arrays, "b": np.full(3, np.nan, np.float32)}, "zeroed"),
    "huge": (lambda arrays: {**arrays, "w": np.full((4, 3), 1e30, np.float32)}, "clipped"),
    "shape": (lambda arrays: {**arrays, "b": np.zeros((3, 1), np.float32)}, "shape"),
    "dtype": (lambda arrays: {**arrays, "b": np.zeros(3)}, "dtype"),
    "missing": (lambda arrays: {"w": arrays["w"]}, "missing leaf"),
    "extra": (lambda arrays: {**arrays, "more": np.zeros(2, np.float32)}, "extra leaf"),
    "empty": (lambda arrays: RecordDict({"arrays": ArrayRecord()}), "empty"),
    "other record": (lambda arrays: RecordDict({"arrays": ConfigRecord({"w": 1.0})}), "damaged"),
    "another's name": (lambda arrays: {**arrays, "from": 999}, "not chosen"),
    "twice": (lambda arrays: [arrays, arrays, arrays], "duplicate"),
    "pickle": (lambda arrays: of_bytes(arrays, b"\x80\x04K\x01."), "damaged"),
    "claims petabytes": (lambda arrays: of_bytes(arrays, header((2**40, 2**8))), "shape"),
    "serialized otherwise": (lambda arrays: of_bytes(arrays, header((3,)) + bytes(12), "torch.Tensor"), "damaged"),
}


def header(shape):
    import io

    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def of_bytes(arrays, content, stype="numpy.ndarray"):
    others = {name: Array(value) for name, value in arrays.items()}
    return RecordDict({"arrays": ArrayRecord({**others, "b": Array("float32", (3,), stype, content)})})


INTEGERS = {
    "too long": (lambda arrays: {**arrays, "b": np.full(3, 2**BITS, np.int32)}, "clipped"),
    "smallest": (lambda arrays: {**arrays, "b": np.full(3, -(2**31), np.int32)}, "clipped"),
    "floats": (lambda arrays: {**arrays, "b": np.zeros(3, np.float32)}, "dtype"),
    "other byte order": (lambda arrays: {**arrays, "b": np.full(3, 2**24, ">i4")}, "dtype"),
    "shape": (lambda arrays: {**arrays, "b": np.zeros((3, 1), np.int32)}, "shape"),
    **{kind: HOSTILE[kind] for kind in ("missing", "twice")},
}


@pytest.mark.parametrize(
    ("replies", "kind"), [*(("model", each) for each in HOSTILE), *(("integers", each) for each in INTEGERS)]
)
def test_nothing_that_a_node_sends_ends_a_run_or_adds_more_than_the_clip_norm(tmp_path, replies, kind):
    floats = replies == "model"
    change, reason = (HOSTILE if floats else INTEGERS)[kind]
    honest = ARRAYS if floats else {name: np.zeros(value.shape, np.int32) for name, value in ARRAYS.items()}
    counted, moved = moved_by_one(tmp_path, change, honest, replies=replies, floating_point=floats)
    assert counted[reason] >= 1
    assert moved <= CLIP * (1 + 1e-6)
    assert (moved > 0) == (reason == "clipped")


def test_a_reply_in_the_name_of_another_chosen_node_does_not_displace_its_own(tmp_path):
    fleet = Fleet(NAMES[:COHORT], lambda name, arrays, config: answers(name, arrays))

    def answers(name, arrays):
        if name != NAMES[0]:
            return trained(name, arrays, None)
        return {**{key: value + 1 for key, value in arrays.items()}, "from": fleet.ids[NAMES[1]]}

    with opened(tmp_path, plan_of(noise_multiplier=0.0, rounds=1), draw=everybody) as strategy:
        result = strategy.start(fleet)
    (found,) = counts(tmp_path).values()
    assert (found.counted, dict(found.refused)) == (COHORT - 1, {"another round": 1})
    alone = Fleet(NAMES[1:COHORT], trained)
    with opened(tmp_path / "alone", plan_of(noise_multiplier=0.0, rounds=1)) as strategy:
        without = strategy.start(alone)
    for name in ARRAYS:
        np.testing.assert_allclose(result.arrays[name].numpy(), without.arrays[name].numpy(), atol=1e-6)


def test_a_reply_to_an_earlier_round_is_not_in_a_later_sum(tmp_path):
    late, arrays = [], record(**ARRAYS)
    fleet, waiting = Fleet(NAMES[:COHORT], trained), dataclasses.replace(WAITING, fewest=0)
    with opened(tmp_path, waiting=waiting) as strategy:
        for number in (1, 4):
            messages = list(strategy.configure_train(number, arrays, ConfigRecord(), fleet))
            late += fleet.pull_messages(fleet.push_messages(messages))
            strategy.aggregate_train(number, late)
            # Nobody may take part for two rounds.
            for empty in (2, 3) if number == 1 else ():
                assert list(strategy.configure_train(empty, arrays, ConfigRecord(), fleet)) == []
                strategy.aggregate_train(empty, [])
    assert (counts(tmp_path)[4].counted, dict(counts(tmp_path)[4].refused)) == (COHORT, {"another round": COHORT})


@pytest.mark.parametrize("error", [AttributeError, RecursionError, DecodeError])
def test_a_reply_that_flower_cannot_read_ends_no_run_and_takes_no_other_with_it(tmp_path, error):
    class Damaged(Fleet):
        def replies(self, message, name, content):
            if name == NAMES[0]:
                raise error("no message")
            return super().replies(message, name, content)

    def answer(name, arrays, config):
        return Error(code=0, reason="out of battery") if name == NAMES[1] else trained(name, arrays, config)

    with opened(tmp_path, plan_of(rounds=1)) as strategy:
        strategy.start(Damaged(NAMES[:COHORT], answer))
    (found,) = counts(tmp_path).values()
    assert (found.came, found.counted) == (COHORT - 2, COHORT - 2)


def test_too_small_a_cohort_stops_the_run(tmp_path):
    with opened(tmp_path) as strategy:
        strategy.start(Fleet(NAMES[:1], trained), num_rounds=1)
        with pytest.raises(RuntimeError, match="1 are connected, 0 of them allowed"):
            strategy.start(Fleet(NAMES[:1], trained))
    assert len(rows(tmp_path)) == 1


def test_two_nodes_with_one_key_and_nodes_without_are_refused():
    twins = Fleet(NAMES[:2], trained).get_nodes()
    twins[1].public_key = key_of(NAMES[0])
    with pytest.raises(InputValueError, match="have the public key"):
        cohorts.by_public_key(twins)
    twins[1].public_key = b""
    with pytest.raises(InputValueError, match="no public key"):
        cohorts.by_public_key(twins)


def test_rounds_out_of_turn_are_refused(tmp_path):
    fleet, arrays = Fleet(NAMES, trained), record(**ARRAYS)
    with opened(tmp_path) as strategy:
        for wrong in (0, 2):
            with pytest.raises(InputValueError, match="must be 1"):
                strategy.configure_train(wrong, arrays, ConfigRecord(), fleet)
        with pytest.raises(InputValueError, match="was not begun"):
            strategy.aggregate_train(1, [])
        strategy.configure_train(1, arrays, ConfigRecord(), fleet)
        with pytest.raises(InputValueError, match="open the strategy again"):
            strategy.configure_train(1, arrays, ConfigRecord(), fleet)
        strategy.aggregate_train(1, [])
        with pytest.raises(InputValueError, match="was not begun"):
            strategy.aggregate_train(1, [])
        assert list(strategy.configure_evaluate(1, arrays, ConfigRecord(), fleet)) == []


def test_secure_aggregation_is_refused_by_name(tmp_path):
    """Of a masked update no norm is bounded: the server sees it only in a sum, and cannot clip it."""
    with opened(tmp_path) as strategy, pytest.raises(InputValueError, match=r"SecAgg\+"):
        # What `SecAggPlusWorkflow` calls first.
        strategy.configure_fit(1, None, None)
    assert rows(tmp_path) == []


def on_grid(plan=None, replies="integers"):
    return {"plan": plan, "replies": replies, "floating_point": False}


def grid_plan(bits=BITS, dimension=15):
    return plan_of(grid=tff_mf.Grid(bits=bits, max_clients=1000), dimension=dimension)


# Settings with which no run begins, behind words of the error.
NEVER = [
    ("restart_every=3 is not supported", {"plan": plan_of(restart_every=3, adaptive_count_stddev=1.0)}),
    ("adaptive_count_stddev= cannot be given", {"adaptive_count_stddev": 1.0}),
    ("grid_bits= cannot be given", {"grid_bits": 16}),
    ("must be at least 15", on_grid(grid_plan(dimension=14))),
    ("replies='integers' needs a grid", {"replies": "integers"}),
    ("of type int64", {"arrays": {"w": np.zeros(3, np.int64)}}),
    ("not finite", {"arrays": {"w": np.full(2, np.nan, np.float32)}}),
    ("no array", {"arrays": {}}),
    (r"write \['w'\]", {"arrays": {"w": np.zeros(3, np.float32)}, "left_out": "w"}),
    ("no array", {"arrays": {"w": np.zeros(3, np.float32)}, "left_out": ["w"]}),
]


@pytest.mark.parametrize(("match", "settings"), NEVER, ids=[match for match, _ in NEVER])
def test_what_no_run_on_flower_can_have_is_refused_before_a_file_is_written(tmp_path, match, settings):
    refused(match, tmp_path / "run", **settings)
    assert list(tmp_path.iterdir()) == []


STATISTICS = [
    "bn1.running_mean",
    "model/batch_normalization_2/moving_variance:0",
    "conv.weight_u",
    "batch_stats/BatchNorm_0/mean",
]


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_batches_are_refused_unless_they_are_left_out(tmp_path, name):
    arrays = {**ARRAYS, name: np.ones(3, np.float32)}
    refused(f"{name}.*GroupNorm", tmp_path / "run", arrays=arrays)
    assert list(tmp_path.iterdir()) == []
    assert list(updates.model_arrays(record(**arrays), [name])) == list(ARRAYS)


def test_what_is_left_out_is_neither_sent_nor_released(tmp_path):
    arrays = {**ARRAYS, "bn.running_var": np.ones(3, np.float32), "bn.num_batches_tracked": np.array(0)}
    fleet = Fleet(NAMES, trained)
    with opened(tmp_path, arrays=arrays, left_out=["bn.running_var", "bn.num_batches_tracked"]) as strategy:
        strategy.start(fleet)
        strategy.end()
    assert {tuple(message.content["arrays"]) for message in fleet.sent} == {tuple(ARRAYS)}
    assert safetensors.numpy.load_file(tmp_path / MODEL).keys() == ARRAYS.keys()


def by_node_id(nodes):
    """Identities under which everybody is new."""
    return {f"node-{node.node_id}": node.node_id for node in nodes}


# Settings that a run has, and others with which it does not go on, behind the name in the error.
OTHERS = [
    ("identities", {}, {"identify": by_node_id}),
    ("generator", {}, {"generator": "philox"}),
    ("noise_multiplier", {}, {"plan": plan_of(noise_multiplier=3.0)}),
    ("server_momentum", {}, {"optimizer": flower.ServerOptimizer(momentum=0.5)}),
    ("grid_bits", on_grid(), {}),
    ("grid_bits", on_grid(), on_grid(grid_plan(bits=16))),
    ("replies", on_grid(), on_grid(replies="model")),
]


@pytest.mark.parametrize(("name", "own", "other"), OTHERS)
def test_a_run_goes_on_with_its_own_settings_only(tmp_path, name, own, other):
    with opened(tmp_path, **own) as strategy:
        strategy.start(Fleet(NAMES, in_integers if own else trained), num_rounds=1)
    refused(name, tmp_path, **other)


def test_a_damaged_checkpoint_and_one_of_an_older_round_are_refused(tmp_path):
    older, newest = (tmp_path / "checkpoints" / f"checkpoint_{number}.safetensors" for number in (1, 2))
    with opened(tmp_path) as strategy:
        strategy.start(Fleet(NAMES, trained), num_rounds=1)
        kept = older.read_bytes()
        strategy.start(Fleet(NAMES, trained), num_rounds=2)
    content = newest.read_bytes()
    newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused("damaged", tmp_path)
    newest.unlink()
    older.write_bytes(kept)
    refused("newest checkpoint is of round 1", tmp_path)


def test_checkpoints_have_keys_and_no_rows_and_only_their_owner_reads_them(tmp_path):
    with opened(tmp_path) as strategy:
        strategy.start(Fleet(NAMES, trained), num_rounds=2)
    import safetensors.numpy

    path = tmp_path / "checkpoints/checkpoint_2.safetensors"
    shapes = {name: value.shape for name, value in safetensors.numpy.load_file(path).items()}
    assert shapes == {"weights": (15,), "velocity": (15,), "keys": (2, 2)}
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def killed_at(limit, folder, work):
    """Runs `work(say)` in a process that is killed before a change to a folder; its status, and what it said."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        with os.fdopen(read) as file:
            said = file.read().splitlines()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said
    try:
        striking.armed(str(folder), os.devnull, limit, "SIGKILL")
        work(lambda text: os.write(write, f"{text}\n".encode()))
        os._exit(0)
    except InputValueError as error:
        os.write(write, f"refused: {error}\n".encode())
        os._exit(2)
    finally:
        os._exit(1)


def test_no_round_is_released_twice_wherever_a_process_is_killed(tmp_path):
    """Before each write, fsync and rename of a round some process ends; no two nodes see two models of one round."""

    def work(say):
        def answer(name, arrays, config):
            model = np.concatenate([value.reshape(-1) for value in arrays.values()]).tobytes().hex()
            say(f"{config['server-round'] - 1} {model}")
            return trained(name, arrays, config)

        # Attempts count, so that few nodes would soon all be forbidden a round.
        many = [f"node {index}" for index in range(20 * NODES)]
        with opened(tmp_path, plan_of(rounds=20)) as strategy:
            strategy.start(Fleet(many, answer))
            strategy.end()

    seen, killed, limit, status = {}, 0, 1, -signal.SIGKILL
    while status == -signal.SIGKILL:
        status, said = killed_at(limit, tmp_path, work)
        for line in said:
            number, model = line.split(maxsplit=1)
            assert number == "refused:" or seen.setdefault(number, model) == model
        killed += status == -signal.SIGKILL
        limit = limit % 24 + 1
    assert (status, killed >= 24) in ((0, True), (2, True))
    assert status == 0 or "holds a run that has ended" in said[-1]
    past = {}
    for number, client in rows(tmp_path):
        past.setdefault(client, set()).add(number)
    assert all(SCHEMA.allows(sorted(each)) for each in past.values())
    assert sorted(map(int, seen)) == list(range(20))
    assert ledger.read_ledger(tmp_path / LEDGER).problems == []
    assert (tmp_path / "report.json").exists()
    assert list((tmp_path / "checkpoints").glob("*")) == []
