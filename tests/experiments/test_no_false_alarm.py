"""No false alarm: ordinary runs of every kind, copied and moved, are found sound.

What must alarm is in `test_mistakes.py` and `test_reports.py`.
"""

import functools
import logging
import pathlib
import shutil

import pytest

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.guard import export
from tff_mf.experiments.sampling import SAMPLINGS
from tff_mf.planning import by_name

from .shared import critical, invoke
from .small_runs import trained

# Every mechanism, every kind of sampling, and every other way to train, each at least once.
KINDS = {
    "blt, a simulated cohort": "--mechanism blt --set cohort=30 --epsilon 2",
    "banded, min-sep": "--mechanism banded",
    "banded-toeplitz, fixed epochs": "--mechanism banded-toeplitz --sampling fixed-epochs",
    "dense, poisson": "--mechanism dense --sampling poisson",
    "tree-vanilla, cyclic poisson": "--mechanism tree-vanilla --sampling cyclic-poisson",
    "tree-full, once each": "--mechanism tree-full --sampling single",
    "tree-online, gradients": "--mechanism tree-online --set algorithm=fed-sgd",
    "production, a rate from the noise": "--mechanism production:b100 --set server_learning_rate=proposed",
    "blt, balls in bins": "--mechanism blt --sampling balls-in-bins",
    "banded, poisson with a separation": "--mechanism banded --sampling b-min-sep",
    "scaled-blt, min-sep": "--mechanism scaled-blt --sampling min-sep",
    "identity, min-sep": "--mechanism identity",
    "identity, a model that diverged": "--mechanism identity --set server_learning_rate=1e30",
}


@pytest.fixture(scope="module")
def kept(small_data, tmp_path_factory):
    """A function from the name of a kind to its run, each made once."""
    root = tmp_path_factory.mktemp("kinds")

    @functools.cache
    def make(kind):
        trained(root / kind, small_data, KINDS[kind].split())
        return root / kind

    return make


@pytest.fixture
def run(kept, request, tmp_path):
    return pathlib.Path(shutil.copytree(kept(request.param), tmp_path / "run"))


@pytest.fixture(autouse=True)
def no_warning_is_logged(caplog):
    caplog.set_level(logging.WARNING)
    yield
    assert [record.getMessage() for record in caplog.records if record.name.startswith("tff_mf")] == []


def warnings(folder):
    """What a check warns of, but for what is always said of cohorts that could be secret, and of their sizes."""
    usual = ("amplifies only where", "had other than")
    return [text for text in reports.check(folder).warnings if not any(part in text for part in usual)]


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("run", KINDS, indirect=True)
def test_ordinary_runs_do_not_alarm(run, tmp_path):
    assert (critical(run), warnings(run)) == ([], [])
    # An edit of what the report is of: it does not follow any more.
    kept = (run / "summary.json").read_bytes()
    (run / "summary.json").write_bytes(kept.replace(b"0", b"1", 1))
    assert any(text.startswith("report: files.summary.json") for text in critical(run))
    with pytest.raises(tff_mf.InputError, match="does not follow from its files"):
        export.check_trained(run)
    (run / "summary.json").write_bytes(kept)
    assert "ε≤" in invoke("report", run).stdout
    moved = tmp_path / "elsewhere" / "copy"
    moved.parent.mkdir()
    run.rename(moved)
    assert (critical(moved), warnings(moved)) == ([], [])
    checked = invoke("report", moved, "--check")
    assert checked.exit_code == 0
    assert "follows from its files; ε is stated" in checked.stdout
    export.check_trained(moved)


def test_every_mechanism_and_sampling_is_among_the_runs():
    words = " ".join(KINDS.values()).split()
    assert {*by_name.names(), *SAMPLINGS} - {*words} <= {"min-sep"}
