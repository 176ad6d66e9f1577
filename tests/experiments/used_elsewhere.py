"""Runs, artifacts and calibrated noise that are made on one machine and used on another."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable

import numpy as np

ROUNDS = 8
RUN, STOPPED, ARTIFACTS = "run", "stopped", "artifacts"
_DATA = "data.sqlite"
_FLAGS = (
    *("--rounds", ROUNDS, "--clients-per-round", 2, "--min-sep", 4, "--max-participations", 2, "--delta", 1e-6),
    *("--epsilon", 8, "--mechanism", "blt", "--buffers", 3, "--server-learning-rate", "proposed", "--model", "conv"),
    *("--vocab-size", 60, "--embedding-size", 8, "--units", 12, "--max-examples", 2, "--batch-size", 2),
    *("--evaluate-every", 4, "--evaluation-examples", 20, "--checkpoint-every", 2),
)
_DELTA, _TARGETS = 1e-6, (0.5, 8.0)


def _invoke(*arguments: object) -> None:
    """Runs a command; raises what it printed if it does not end with 0."""
    from click.testing import CliRunner

    from tff_mf.experiments import cli

    done = CliRunner().invoke(cli.cli, [str(each) for each in arguments])
    if done.exit_code:
        raise RuntimeError(f"{arguments[0]}: {done.output} {done.exception!r}")


def _command(root: pathlib.Path, name: str) -> list[object]:
    return ["train", "--force", "--dataset", f"sqlite:{root / _DATA}", "--out", root / name, *_FLAGS]


# Kills itself where the state after the last round of an evaluation would get its name.
_KILLED = """
import os, signal, sys
def hook(event, given):
    if event == "os.link" and os.path.basename(given[1]) == "checkpoint_4.safetensors":
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from tff_mf.experiments.cli import main
main()
"""


def _kill(root: pathlib.Path) -> None:
    """Begins a run in a process that is killed on its way."""
    command = [sys.executable, "-c", _KILLED, *map(str, _command(root, STOPPED))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != -signal.SIGKILL:
        raise AssertionError(f"it was not killed: {done.stderr[-1000:]}")


def _mechanisms() -> dict:
    import tff_mf

    schema = tff_mf.MinSep(min_sep=4, max_participations=5)
    return {
        "blt": tff_mf.optimize_blt(rounds=20, participation=schema, buffers=3, objective="max"),
        "banded": tff_mf.optimize_banded(rounds=20, bands=4),
        "dense": tff_mf.optimize_dense(rounds=20, participation=schema),
        "tree": tff_mf.Tree(20, variant="full"),
    }


def _settings() -> list[dict]:
    import tff_mf

    grid = {"grid": tff_mf.Grid(bits=16, max_clients=1000), "dimension": 4000}
    return [{}, grid, {"restart_every": 10}]


def make(root: pathlib.Path, *, trained: bool = True) -> None:
    """Makes artifacts, noise that is calibrated for them and, if asked for, runs."""
    import tff_mf
    from tff_mf.experiments.training.datasets.pydoc import write_pydoc

    root.mkdir(parents=True, exist_ok=True)
    schema, sigmas = tff_mf.MinSep(min_sep=4, max_participations=5), {}
    (root / ARTIFACTS).mkdir()
    for name, mechanism in _mechanisms().items():
        tff_mf.save(mechanism, root / ARTIFACTS / f"{name}.safetensors")
        sigmas[name] = [
            tff_mf.calibrate_noise_multiplier(mechanism, 20, schema, epsilon=epsilon, delta=_DELTA, **more)
            for epsilon in _TARGETS
            for more in _settings()
        ]
    (root / "sigmas.json").write_text(json.dumps(sigmas))
    if not trained:
        return
    write_pydoc(root / _DATA, ["scipy"], progress=False)
    _invoke(*_command(root, RUN))
    _kill(root)


def train_to_check(root: pathlib.Path) -> None:
    """Checks the reports of a run."""
    from tff_mf.experiments import reports

    wrong = reports.check(root / RUN).problems
    assert not wrong, wrong


def export_model(root: pathlib.Path) -> None:
    """Exports the model of a run."""
    _invoke("export-model", root / RUN, "--out", root / "model")


def save_to_load(root: pathlib.Path) -> None:
    """Loads the artifacts, saves them again, and compares."""
    import tff_mf

    for path in (root / ARTIFACTS).glob("*.safetensors"):
        mechanism = tff_mf.load(path)
        tff_mf.save(mechanism, root / "again.safetensors")
        assert tff_mf.load(root / "again.safetensors") == mechanism, path.name


def checkpoint_to_resume(root: pathlib.Path) -> None:
    """Resumes a run, and checks its reports."""
    from tff_mf.experiments import reports

    _invoke("train", "--force", "--out", root / STOPPED, "--epsilon", 8, "--resume")
    wrong = reports.check(root / STOPPED).problems
    assert not wrong, wrong


def calibrate_to_account(root: pathlib.Path) -> None:
    """Accounts for calibrated noise: ε may not be above what it was calibrated for."""
    import tff_mf

    schema = tff_mf.MinSep(min_sep=4, max_participations=5)
    for name, sigmas in json.loads((root / "sigmas.json").read_text()).items():
        mechanism = tff_mf.load(root / ARTIFACTS / f"{name}.safetensors")
        settings = [(epsilon, more) for epsilon in _TARGETS for more in _settings()]
        for sigma, (target, more) in zip(sigmas, settings, strict=True):
            found = tff_mf.guarantee(mechanism, 20, schema, noise_multiplier=sigma, **more).epsilon(_DELTA)
            assert target * (1 - 1e-6) <= found <= target, (name, more, target, found)
            again = tff_mf.calibrate_noise_multiplier(mechanism, 20, schema, epsilon=target, delta=_DELTA, **more)
            assert np.isclose(again, sigma, rtol=1e-9, atol=0), (name, more, sigma, again)


# Those without TensorFlow first.
WITHOUT_TENSORFLOW = (save_to_load, calibrate_to_account, train_to_check)
WITH_TENSORFLOW = (export_model, checkpoint_to_resume)


def used(made: pathlib.Path, names: list[str] | None = None) -> dict[str, str]:
    """Returns the false alarms by the names of what was done; an empty text where there is none.

    Args:
        made: What `make` made, which is not changed; a run to resume knows its data by this path.
        names: What to do; everything that what was made allows if `None`.
    """
    checks = {each.__name__: each for each in (*WITHOUT_TENSORFLOW, *WITH_TENSORFLOW)}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "copied"
        shutil.copytree(made, root)
        for name in checks if names is None else names:
            found[name] = _alarm(checks[name], root)
    return found


def _alarm(check: Callable[[pathlib.Path], None], root: pathlib.Path) -> str:
    try:
        check(root)
    except Exception:
        return traceback.format_exc()
    return ""
