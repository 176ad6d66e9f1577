"""Simulated devices of a bundle, honest and hostile, whose reports the bundle's runner receives as files.

A device computes its update by the bundle's graph, and its file is written into `updates/` as a receiving service
writes it. As a program, this module is an operator's server, which may be killed; it needs TensorFlow alone.
"""

import hashlib
import importlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

Update = Mapping[str, np.ndarray]

HIDDEN = (
    *("tensorflow_federated", "tensorflow_privacy", "tff_mf", "safetensors", "scipy", "dp_accounting", "click"),
    "msgspec",
)
_HUGE, _LARGE_FILE_BYTES, _LATE_SECONDS = 1e30, 10 * 2**30, 60 * 60.0

# What becomes of the last report of a hostile device of each kind: the reason for which it is refused, or how it is
# counted. A device that replays is honest at first, since it has no earlier report to send.
OUTCOMES = {
    "scalar": "shape",
    "wrong shape": "shape",
    "wrong dtype": "dtype",
    "missing leaf": "missing leaf",
    "extra leaf": "extra leaf",
    "empty": "empty",
    "nan": "zeroed",
    "infinite": "zeroed",
    "huge": "clipped",
    # An honest device could have sent it: the clip norm alone limits its effect.
    "opposite": "counted",
    "large file": "too large",
    "pipe": "no regular file",
    "folder": "no regular file",
    "link": "no regular file",
    "truncated file": "damaged",
    "replay": "another round",
    "another round": "another round",
    "another deployment": "another round",
    "no ticket": "another round",
    "twice": "duplicate",
    "late": "late",
    "in the name of another": "not chosen",
}
_COUNTED = ("counted", "clipped", "zeroed")


def _first(update: Update, change: Callable[[np.ndarray], np.ndarray]) -> Update:
    name = next(iter(update))
    return {**update, name: change(update[name])}


def _each(update: Update, change: Callable[[np.ndarray], np.ndarray]) -> Update:
    return {name: change(value) for name, value in update.items()}


# Integers, of a grid, have the smallest and the largest of their type in place of numbers that are not finite.
def _not_a_number(value: np.ndarray) -> np.ndarray:
    return np.full_like(value, np.nan if value.dtype.kind == "f" else np.iinfo(value.dtype).min)


def _infinite(value: np.ndarray) -> np.ndarray:
    return np.full_like(value, np.inf if value.dtype.kind == "f" else np.iinfo(value.dtype).max)


def _huge(value: np.ndarray) -> np.ndarray:
    return np.sign(value) * value.dtype.type(_HUGE if value.dtype.kind == "f" else np.iinfo(value.dtype).max)


_UPDATES: Mapping[str, Callable[[Update], Update]] = {
    "scalar": lambda update: _each(update, lambda value: np.array(3, value.dtype)),
    "wrong shape": lambda update: _first(update, lambda value: value.reshape(-1)),
    "wrong dtype": lambda update: _each(update, lambda value: value.astype(np.float64)),
    "missing leaf": lambda update: dict(itertools.islice(update.items(), 1, None)),
    "extra leaf": lambda update: {**update, "update__more": np.zeros(3, np.float32)},
    "empty": lambda update: {},
    "nan": lambda update: _first(update, _not_a_number),
    "infinite": lambda update: _each(update, _infinite),
    "huge": lambda update: _each(update, _huge),
    "opposite": lambda update: _each(update, np.negative),
}
_TICKETS: Mapping[str, Callable[[Mapping[str, str]], Mapping[str, str]]] = {
    "another round": lambda ticket: {**ticket, "round": str(int(ticket["round"]) + 1)},
    "another deployment": lambda ticket: {**ticket, "ticket": "0" * 32},
    "no ticket": lambda ticket: {},
}


def loaded_runner(bundle: pathlib.Path) -> types.ModuleType:
    """Returns the runner that a bundle carries as a module, which checks the bundle and loads its graphs once."""
    # Of another bundle.
    for name in [name for name in sys.modules if name.split(".")[0] == "runner"]:
        del sys.modules[name]
    with mock.patch.object(sys, "path", [str(bundle / "runner.pyz"), *sys.path]):
        importlib.import_module("runner")
        module = importlib.import_module("runner.experiments.bundles.runner")
    check = module.check_files
    stages = check(bundle)
    module.check_files = module._deployment.check_files = lambda folder, digest=None: (
        stages if folder == bundle and digest is None else check(folder, digest)
    )
    return module


class Fleet:
    """Devices that report to a deployment by files.

    Each file is recorded before it is sent: a device that is not sure whether its report arrived does not send it
    again, also if it is of the same process as a server that was killed.

    Args:
        home: Folder of what the devices keep; made if it does not exist.
        runner: The bundle's runner.
        bundle: The bundle.
        deployment: Folder of the deployment.
        words: Words of each device's examples, by its name.
        hostile: Kind of each hostile device, one of `OUTCOMES`.
    """

    def __init__(
        self,
        home: pathlib.Path,
        runner: types.ModuleType,
        bundle: pathlib.Path,
        deployment: pathlib.Path,
        *,
        words: Mapping[str, np.ndarray],
        hostile: Mapping[str, str],
    ) -> None:
        home.mkdir(exist_ok=True)
        self._home, self._runner, self._deployment = home, runner, deployment
        self._stages, self._words, self._hostile = runner.check_files(bundle), words, hostile

    def report(self, device: str) -> Iterator[None]:
        """Yields whenever a device has sent a file for the round that was begun."""
        kind = self._hostile.get(device, "")
        message = (self._deployment / "sent.safetensors").read_bytes()
        sent, ticket = self._runner.decoded(message)
        for number in range(2 if kind == "twice" else 1):
            entry = {"device": device, **ticket, "file": number, "model": hashlib.sha256(message).hexdigest()}
            if entry not in self.record():
                with (self._home / "record.jsonl").open("a") as file:
                    file.write(json.dumps(entry) + "\n")
                self._send(device, kind, self._update(device, sent), ticket)
                yield

    def received(self, deployment: Any, device: str) -> tuple[dict[str, int], dict[str, np.ndarray]]:
        """Returns by what the files that a device sends change the numbers of reports, and the sums.

        Args:
            deployment: The deployment, opened by the runner.
            device: The device.
        """
        before, sums = self._added(deployment)
        for _ in self.report(device):
            deployment.accumulate()
        after, more = self._added(deployment)
        numbers = {name: number - before.get(name, 0) for name, number in after.items()}
        return {name: n for name, n in numbers.items() if n}, {name: more[name] - sums[name] for name in sums}

    def _added(self, deployment: Any) -> tuple[dict[str, int], dict[str, np.ndarray]]:
        """Returns the numbers of reports so far, and the sums without the graphs' own counts."""
        numbers = numbers_of(deployment.accumulate()["counts"])
        sums, _ = self._runner.decoded((self._deployment / "sum.safetensors").read_bytes())
        counts = (self._runner._deployment.SCALED, self._runner._deployment.ZEROED)
        return numbers, {name: value for name, value in sums.items() if not name.endswith(counts)}

    def record(self) -> list[dict[str, Any]]:
        """Returns the device, the round and the model of each file that was sent."""
        path = self._home / "record.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _update(self, device: str, sent: Mapping[str, np.ndarray]) -> Update:
        words = self._words[device]
        examples = {"examples__0": words, "examples__1": np.roll(words, -1, axis=-1)}
        return {name: np.asarray(value) for name, value in self._stages.work(examples, sent).items()}

    def _send(self, device: str, kind: str, update: Update, ticket: Mapping[str, str]) -> None:
        update, ticket = _UPDATES.get(kind, dict)(update), _TICKETS.get(kind, dict)(ticket)
        content = self._runner.encoded(update, ticket)
        kept = self._home / f"{device}.safetensors"
        if kind == "replay" and kept.exists():
            content = kept.read_bytes()
        elif kind in ("replay", "link"):
            kept.write_bytes(content)
        sender = f"not-{device}" if kind == "in the name of another" else device
        path = self._deployment / "updates" / f"{sender}.safetensors"
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(kept)
        else:
            aside = path.with_name(f".{path.name}")
            aside.write_bytes(content[:-1] if kind == "truncated file" else content)
            if kind == "large file":
                os.truncate(aside, _LARGE_FILE_BYTES)
            elif kind == "late":
                os.utime(aside, (time.time() + _LATE_SECONDS,) * 2)
            aside.rename(path)


def expected(kind: str, *, again: bool) -> dict[str, int]:
    """Returns what becomes of the files of a device of a kind, in its first round or again."""
    outcome = OUTCOMES.get(kind, "counted")
    if kind == "replay" and not again:
        outcome = "counted"
    if kind == "twice":
        return {"counted": 1, outcome: 1}
    return {"counted": 1, outcome: 1} if outcome in _COUNTED else {outcome: 1}


def numbers_of(counts: Mapping[str, Any]) -> dict[str, int]:
    """Returns a round's counts as numbers by what became of the reports."""
    return {**{name: counts[name] for name in _COUNTED}, **counts["refused"]}


def ledger_of(deployment: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the entries of a deployment's ledger."""
    return [json.loads(line) for line in (deployment / "ledger.jsonl").read_text().splitlines()]


def operated(
    bundle: pathlib.Path,
    root: pathlib.Path,
    *,
    cohorts: Sequence[Sequence[str]],
    words: Mapping[str, np.ndarray],
    hostile: Mapping[str, str],
    kills: Sequence[tuple[str, int]],
) -> list[int]:
    """Runs an operator's server until the last round, in an environment that has TensorFlow alone or hides the rest.

    Args:
        bundle: The bundle.
        root: Folder of the deployment, `run`, and of what the devices keep, `devices`.
        cohorts: The devices of each round.
        words: See `Fleet`.
        hostile: See `Fleet`.
        kills: The call at which each server but the last is killed; see `_kill_at`.

    Returns:
        What each server ended with.
    """
    np.savez(root / "words.npz", **words)
    (root / "plan.json").write_text(json.dumps({"cohorts": cohorts, "hostile": hostile, "kills": kills}))
    with (root / "log").open("w") as log, (root / "errors").open("w") as errors:
        # Names an environment of TensorFlow alone, if there is one.
        command = [os.environ.get("TFF_MF_PLAIN_PYTHON", sys.executable), __file__, bundle, root]
        done = subprocess.run(command, check=False, stdout=log, stderr=errors, timeout=900)
    assert done.returncode == 0, (root / "errors").read_text()[-2000:]
    lines = (root / "log").read_text().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("ended")]


def _kill_at(name: str, moment: int) -> None:
    """Kills this process at a call of a function of `os`: an even moment is before a call, an odd one after it."""
    call, left = getattr(os, name), itertools.count(moment, -1)

    def changed(*arguments: Any, **named: Any) -> Any:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments, **named)
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, name, changed)


def _serve(bundle: pathlib.Path, root: pathlib.Path, plan: Mapping[str, Any]) -> None:
    import tensorflow as tf

    # Optimizing such small graphs in every call takes longer than running them.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    runner, folder = loaded_runner(bundle), root / "run"
    words = dict(np.load(root / "words.npz"))
    fleet = Fleet(root / "devices", runner, bundle, folder, words=words, hostile=plan["hostile"])

    def call(*arguments: object) -> None:
        assert runner.main([str(each) for each in arguments]) == 0, arguments

    if not (folder / "ledger.jsonl").exists():
        call("start", folder)
    while True:
        call("resume", folder)
        book = ledger_of(folder)
        number = 1 + sum(entry["kind"] == "released" for entry in book)
        if number > len(plan["cohorts"]):
            return
        chosen = plan["cohorts"][number - 1]
        if not any((entry["kind"], entry.get("round")) == ("begin", number) for entry in book):
            (root / "chosen").write_text("\n".join(chosen))
            call("prepare", folder, "--devices", root / "chosen", "--minutes", 30)
        for device in chosen:
            for _ in fleet.report(device):
                call("accumulate", folder)
        call("accumulate", folder)
        call("update", folder)


def _main(bundle: pathlib.Path, root: pathlib.Path) -> None:
    for name in HIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]
    # Servers share what their parent imported.
    importlib.import_module("tensorflow")
    # Servers are killed, and not their machine: see tests/conftest.py.
    os.fsync = lambda descriptor: None
    plan = json.loads((root / "plan.json").read_text())
    for kill in (*plan["kills"], None):
        child = os.fork()
        if not child:
            try:
                if kill:
                    _kill_at(*kill)
                _serve(bundle, root, plan)
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
        print("ended", os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    _main(*map(pathlib.Path, sys.argv[1:]))
