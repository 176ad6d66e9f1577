"""A run that is stopped, however it is stopped, goes on to the same end, and releases nothing twice."""

import json
import pathlib
import shutil

import pytest

from tff_mf.experiments.runs import ledger, names
from tff_mf.experiments.runs.settings import FLAG, Layer, RunSettings

from . import small_runs
from .shared import invoke, rows, took_part

# One sentence of a client: the order of more is random. The momentum is in the checkpoint.
REPEATABLE = [
    *("--mechanism", "production:b100", "--noise-multiplier", "0.01", "--set", "insecure_seed=7", "--without-epsilon"),
    *("--set", "max_examples=1", "--set", "batch_size=1", "--set", "server_momentum=0.5"),
]


@pytest.fixture(scope="module")
def whole(small_data, tmp_path_factory):
    """The folder of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    small_runs.trained(folder, small_data, REPEATABLE)
    return folder


def test_a_killed_run_is_resumed_to_the_end_of_a_whole_one(whole, small_data, tmp_path, forks):
    """Also one that was killed before its settings were written, and where a process left keys beside the run's."""
    folder = tmp_path / "run"
    folder.mkdir()
    small_runs.killed(forks, folder, small_data, [*REPEATABLE, "--resume"])
    begun = Layer.of({}, FLAG).resumed(folder, RunSettings).settings()
    assert begun == Layer.of({}, FLAG).resumed(whole, RunSettings).settings()
    before = ledger.read_ledger(folder / names.LEDGER)
    for name in (".", names.CHECKPOINTS):
        (folder / name / ".0.tff-mf.tmp").write_bytes(b"keys")
    small_runs.trained(folder, small_data, [*REPEATABLE, "--resume"])
    # With the keys, the noise could be removed from the models.
    assert list((folder / names.CHECKPOINTS).iterdir()) == []
    assert not (folder / ".0.tff-mf.tmp").exists()
    book = ledger.read_ledger(folder / names.LEDGER)
    assert before.last_released < small_runs.KILLED_AFTER
    assert all(book.attempts[number] == before.attempts[number] for number in before.released)
    # All but the time that rounds took, and the attempts that were given up.
    assert set(took_part(folder)) == set(took_part(whole))
    of_both = [[{**row, "seconds": None} for row in rows(each / names.METRICS)] for each in (folder, whole)]
    assert of_both[0] == of_both[1]
    assert len(of_both[0]) == small_runs.ROUNDS


def test_a_run_that_was_stopped_before_its_report_was_written_has_it_once_it_is_resumed(whole, small_data, tmp_path):
    """Its end is in the ledger, and its keys are deleted, before the report is written."""
    folder = pathlib.Path(shutil.copytree(whole, tmp_path / "run"))
    told = json.loads((folder / "report.json").read_text())
    for name in ("report.json", "report.md"):
        (folder / name).unlink()
        small_runs.trained(folder, small_data, [*REPEATABLE, "--resume"])
        assert json.loads((folder / "report.json").read_text()) == told
        assert (folder / "report.md").is_file()
    over = invoke(*small_runs.arguments(folder, small_data, [*REPEATABLE, "--resume"]), catch_exceptions=True)
    assert "nothing to resume" in over.output + repr(over.exception)
