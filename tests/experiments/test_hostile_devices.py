"""A fifth of the devices is hostile, each in one of eighteen ways; `benchmarks/hostile.py` has what they cost."""

import math

import numpy as np
import pytest

from tff_mf.experiments import bundles, coordination
from tff_mf.experiments.bundles import runner
from tff_mf.experiments.bundles.stages import Stages

# Why each kind is refused; the others are in the sum, zeroed or scaled.
REFUSED = {
    "scalar": "shape",
    "wrong shape": "shape",
    "wrong dtype": "dtype",
    "missing leaf": "missing leaf",
    "extra leaf": "extra leaf",
    "empty": "empty",
    "large file": "too large",
    "pipe": "no regular file",
    "folder": "no regular file",
    "truncated file": "damaged",
    "replay": "another round",
    "twice": "duplicate",
    "late": "late",
    "in the name of another": "not chosen",
}
COUNTED = {"nan", "infinite", "huge", "opposite"}


@pytest.fixture(scope="module")
def sent(bundle):
    """The stages, and what an honest device sends."""
    stages = Stages(bundle.folder)
    given = stages.prepare(stages.initialize())
    return stages, {name: np.asarray(v) for name, v in stages.work(stages.tokenize(["of the"]), given).items()}


def reported(bundle, sent, tmp_path, kind, rounds=1):
    """What a round counts of a device of one kind, round by round."""
    stages, update = sent
    fleet = coordination.HostileFleet(
        tmp_path / "devices",
        examples={"a": {}},
        policy=bundles.read_policy(bundle.folder),
        work=lambda examples, sent: update,
        hostile={"a": kind},
        files=tmp_path / "files",
    )
    coordinator = coordination.Coordinator(bundle.folder, tmp_path / "run", fleet)
    found = []
    for number in range(1, 1 + rounds):
        total = runner.RoundSum(stages, ["a"])
        for report in fleet.train(["a"], number, 10.0 * number, {}, np.random.default_rng(0)):
            coordinator._take(total, report, number)
        found.append(total)
    return found


@pytest.mark.parametrize("kind", [*coordination.MALFORMED, *coordination.POISONING])
def test_each_kind_is_refused_by_its_name_or_bounded(bundle, sent, tmp_path, kind):
    totals = reported(bundle, sent, tmp_path, kind, rounds=2)
    counts = totals[-1].counts()
    assert counts["refused"] == ({REFUSED[kind]: 2 if kind == "twice" else 1} if kind in REFUSED else {})
    assert counts["counted"] == int(kind in COUNTED or kind == "twice")
    assert (counts["zeroed"], counts["clipped"]) == (int(kind in ("nan", "infinite")), int(kind == "huge"))
    sums = [np.asarray(value) for name, value in totals[-1].total().items() if not name.endswith(("ed",))]
    norm = math.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in sums))
    assert norm <= 1 + 1e-6


class Claims:
    """An object with a shape and a type that are right, and no numbers."""

    dtype, shape = np.dtype(np.float32), (64, 4)


@pytest.mark.parametrize(
    "report",
    [
        None,
        b"update",
        {"device": "a"},
        coordination.Report(device=["a"], round_number=1, update={}),
        coordination.Report(device="a", round_number="1", update={}),
        coordination.Report(device="a", round_number=np.ones(2), update={}),
        coordination.Report(device="a", round_number=True, update={}),
        coordination.Report(device="a", round_number=1, update=None),
        coordination.Report(device="a", round_number=1, update={1: 2}),
        coordination.Report(device="a", round_number=1, update={}, minutes=math.nan),
        coordination.Report(device="a", round_number=1, update={}, minutes="soon"),
    ],
    ids=lambda report: repr(report)[:60],
)
def test_no_report_raises(bundle, sent, tmp_path, report):
    stages, update = sent
    fleet = coordination.Fleet(
        tmp_path / "devices", examples={}, policy=bundles.read_policy(bundle.folder), work=lambda *_: update
    )
    total = runner.RoundSum(stages, ["a"])
    coordination.Coordinator(bundle.folder, tmp_path / "run", fleet)._take(total, report, 1)
    assert total.counts()["counted"] == 0
    assert sum(total.refused.values()) == 1


@pytest.mark.parametrize("value", [Claims(), [[0.0] * 4] * 64, np.zeros((64, 4), ">f4"), np.zeros((64, 4), object)])
def test_updates_that_are_not_arrays_of_their_type_are_refused(sent, value):
    stages, update = sent
    name = next(iter(update))
    with pytest.raises(runner.RefusedUpdateError, match="dtype"):
        runner.checked({**update, name: value}, stages.update_types)
