"""A deployment: rounds that are prepared, summed and released, in files that survive a kill at any moment."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....base import checkpoint_files, files, strict_json
from ....base.errors import InputValueError
from ....base.tensor_files import decoded, encoded
from ...output.files import FOLDER_LOCK, alone
from ...runs import server_loop
from ...runs.checkpoints import Checkpoints
from ...runs.ledger import ReportCounts
from ...runs.names import CHECKPOINTS, LEDGER, RUN_JSON
from ._bundle import SUFFIX, RefusedUpdateError, Stages, Tensors, check_files, read_regular, read_update, remove

SENT, SUM, DEADLINE = "sent.safetensors", "sum.safetensors", "deadline.json"
UPDATES, TAKEN, MODELS = "updates", "taken", "models"
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# Endings of the scalars in a sum that count the updates that the graphs scaled, or replaced with zero.
SCALED, ZEROED = "__clipped", "__zeroed"
_KEYS, _ROUND = "__noise__keys", "__noise__round"
_WEIGHTS = "state__global_model_weights__"
# Texts are stored as bytes.
_TEXT = "text:"


@dataclasses.dataclass(kw_only=True)
class RoundSum:
    """The sum of a round's updates, and the number of reports by what became of them.

    Attributes:
        counted: The devices in the sum.
        refused: Numbers of refused reports by reason.
        batches: Number of batches of files that were taken.
    """

    stages: Stages
    chosen: Collection[str]
    total: Tensors
    counted: set[str] = dataclasses.field(default_factory=set)
    refused: Counter[str] = dataclasses.field(default_factory=Counter)
    batches: int = 0

    def take(self, device: str, read: Callable[[], Tensors]) -> None:
        """Adds the report of a device, or counts it as refused by its reason."""
        try:
            if device not in self.chosen:
                raise RefusedUpdateError("not chosen")
            if device in self.counted:
                raise RefusedUpdateError("duplicate")
            self.total = self.stages.accumulate(self.total, read())
            self.counted.add(device)
        except RefusedUpdateError as error:
            self.refused[str(error)] += 1

    def counts(self) -> ReportCounts:
        """Returns the exact numbers of reports that came, were added, scaled, zeroed or refused: for the operator."""
        scaled, zeroed = (
            sum(int(value) for name, value in self.total.items() if name.endswith(ending))
            for ending in (SCALED, ZEROED)
        )
        counted = len(self.counted)
        return ReportCounts(
            came=counted + self.refused.total(),
            counted=counted,
            clipped=scaled,
            zeroed=zeroed,
            refused=dict(sorted(self.refused.items())),
        )


class States(Checkpoints):
    """The states of a deployment, of which only the newest is kept.

    If the bundle has a stage that draws the rows of noise again, the keys are stored in place of the rows.
    """

    def __init__(self, deployment: pathlib.Path, stages: Stages) -> None:
        super().__init__(deployment / CHECKPOINTS, {"bundle": stages.manifest["digest"]})
        self._stages = stages
        replay = stages.described.get("replay")
        self._drawn = frozenset(replay["outputs"] if replay else ())

    def save(self, round_number: int, state: Tensors, about: Mapping[str, Any]) -> None:
        """Saves a state of the stages; see `Checkpoints.save`."""
        kept = {}
        for name in state.keys() - self._drawn:
            array = np.asarray(state[name])
            if array.dtype.kind in "OSU":
                text = array[()]
                kept[_TEXT + name] = np.frombuffer(text.encode() if isinstance(text, str) else bytes(text), np.uint8)
            else:
                kept[name] = array
        if self._drawn:
            past = int(state[_one(state, _ROUND)])
            kept["keys"] = np.asarray(state[_one(state, _KEYS)])[:past]
        super().save(round_number, kept, about)

    def state(self, round_number: int) -> dict[str, Any]:
        """Returns a state, with its rows of noise drawn again if they are not stored."""
        kept, _ = self.load(round_number)
        state: dict[str, Any] = {name: value for name, value in kept.items() if not name.startswith(_TEXT)}
        state |= {name.removeprefix(_TEXT): value.tobytes() for name, value in kept.items() if name.startswith(_TEXT)}
        return {**state, **self._stages.replay(state.pop("keys"))} if self._drawn else state

    def model(self, round_number: int) -> dict[str, np.ndarray]:
        kept, _ = self.load(round_number)
        return {name.removeprefix(_WEIGHTS): value for name, value in kept.items() if name.startswith(_WEIGHTS)}


def _one(state: Tensors, ending: str) -> str:
    (name,) = (each for each in state if each.endswith(ending))
    return name


class Deployment:
    """A deployment on disk, made by `start` and opened by `opened`, by one process at a time.

    Formal guarantee: as for `server_loop.ServerLoop`: a round's devices are on disk before they are sent anything, its
    state before it is recorded as released, and that before its model is written; each state is stepped once. The next
    process finishes what a killed one left half done: a round whose state is on disk is released; of a round whose
    state is not on disk nothing was released, and it continues where it was.
    """

    def __init__(self, loop: server_loop.ServerLoop, stages: Stages) -> None:
        self._loop, self._stages, self._folder = loop, stages, loop.folder
        self._where = f"deployment={str(self._folder)!r}"
        self._states = States(self._folder, stages)
        if not loop.has_ended:
            self._resume()
        self._finish()

    def prepare(self, devices: Sequence[str], *, minutes: float | None = None, again: bool = False) -> dict[str, Any]:
        """Begins the next round.

        Args:
            devices: The chosen devices. The round counts as theirs from now on, whatever becomes of it.
            minutes: Time for reports: later ones are refused as late.
            again: Gives up a round that was begun, with every report in it.
        """
        number = self._loop.last_released + 1
        if self._loop.has_ended:
            raise InputValueError(f"round={number}: no round follows, the deployment was stopped.")
        if number > self._loop.rounds:
            raise InputValueError(f"round={number}: no round follows, of {self._loop.rounds}. Stop the deployment.")
        begun = self._loop.open_round
        if begun and not again:
            raise InputValueError(
                f"round={number} was begun: continue with accumulate and update. --again discards its reports."
            )
        if not devices:
            raise InputValueError(f"devices of round {number}: there are none. Name the chosen devices, one a line.")
        most = self._stages.most_devices
        if most is not None and len(devices) > most:
            raise InputValueError(
                f"devices of round {number}: {len(devices)} are more than the {most} that a sum has room for."
            )
        for device in devices:
            if not _DEVICE.fullmatch(device):
                raise InputValueError(f"device={device!r:.80} must be 1 to 200 letters, digits, dots, _ and -.")
        attempt = 1 + (begun.attempt if begun else 0)
        until = None if minutes is None else time.time() + 60 * minutes
        # Known before the round begins, however soon this process is killed.
        deadline = json.dumps({"round": number, "attempt": attempt, "until": until})
        files.write_atomically(self._folder / DEADLINE, deadline, mode=0o600)
        self._loop.goes_back_to(number)
        self._loop.begin(devices)
        self._clear()
        self._send()
        return self.status()

    def accumulate(self) -> dict[str, Any]:
        """Adds the reports in `updates/`, and deletes them; returns the status, with the round's counts so far."""
        begun = self._begun()
        found = self._sum(begun)
        found.batches += 1
        # If this process is killed, the next one takes these files first, unless the sum on disk has them already.
        batch = self._folder / TAKEN / f"{begun.number}-{begun.attempt}-{found.batches}"
        for other in (self._folder / TAKEN).iterdir():
            if other != batch:
                remove(other)
        batch.mkdir(mode=0o700, exist_ok=True)
        for path in sorted((self._folder / UPDATES).iterdir()):
            if not path.name.startswith(".") and not os.path.lexists(batch / path.name):
                path.rename(batch / path.name)
        for path in sorted(batch.iterdir()):
            found.take(path.name.removesuffix(SUFFIX), lambda path=path: self._read(path, begun))
        about = {**self._place(begun), "counted": sorted(found.counted), "refused": found.refused}
        about["batches"] = found.batches
        arrays = {name: np.asarray(value) for name, value in found.total.items()}
        checkpoint_files.write(self._folder / SUM, arrays, about, replaces=True)
        remove(batch)
        return self.status()

    def update(self) -> dict[str, Any]:
        """Steps the state, with momentum and noise, and writes the model; later reports of the round are not added."""
        found = self._sum(self._begun())
        state, _ = self._stages.update(self._state(), self._stages.report(found.total))
        self._loop.finish(state, reports=found.counts())
        self._finish()
        return self.status()

    def stop(self) -> dict[str, Any]:
        """Ends the deployment, and deletes every secret file."""
        if not self._loop.has_ended:
            self._loop.record_end()
        self._finish()
        return self.status()

    def status(self) -> dict[str, Any]:
        """Returns the progress of the deployment, as JSON."""
        begun, last = self._loop.open_round, self._loop.last_released
        found: dict[str, Any] = {"rounds": self._loop.rounds, "released": last, "ended": self._loop.has_ended}
        if counts := self._loop.reports(last):
            found |= {"model": str(self._model(last).relative_to(self._folder)), "counts": counts.as_json()}
        if begun:
            found |= {"round": begun.number, "attempt": begun.attempt, "chosen": len(begun.clients)}
            found |= {"until": self._until(begun), "counts": self._sum(begun).counts().as_json()}
        return found

    def _begun(self) -> server_loop.BegunRound:
        begun = self._loop.open_round
        if begun is None:
            raise InputValueError(f"{self._where} has no round that was begun: prepare one.")
        return begun

    def _read(self, path: pathlib.Path, begun: server_loop.BegunRound) -> dict[str, np.ndarray]:
        if not path.name.endswith(SUFFIX):
            raise RefusedUpdateError("not chosen")
        until = self._until(begun)
        if until is not None and path.lstat().st_mtime > until:
            raise RefusedUpdateError("late")
        update, about = read_update(path, self._stages.update_types)
        if any(about.get(name) != value for name, value in self._ticket(begun).items()):
            raise RefusedUpdateError("another round")
        return update

    def _until(self, begun: server_loop.BegunRound) -> float | None:
        """Returns the time until which reports of a round are taken, if it is limited."""
        path = self._folder / DEADLINE
        found = strict_json.read(path, "deadline") if path.exists() else {}
        of_round = (found.get("round"), found.get("attempt")) == (begun.number, begun.attempt)
        return found["until"] if of_round else None

    def _ticket(self, begun: server_loop.BegunRound) -> dict[str, str]:
        """Returns the metadata of this round's reports, which no other round, attempt or deployment shares."""
        of = hashlib.sha256(f"{self._loop.run} {begun.number} {begun.attempt}".encode()).hexdigest()[:32]
        return {"round": str(begun.number), "ticket": of}

    def _send(self) -> None:
        sent = {name: np.asarray(value) for name, value in self._stages.prepare(self._state()).items()}
        files.write_atomically(self._folder / SENT, encoded(sent, self._ticket(self._begun())), mode=0o600)

    def _place(self, begun: server_loop.BegunRound) -> dict[str, Any]:
        """Returns what tells a round's sum from those of other rounds, attempts and deployments."""
        return {"run": self._loop.run, "round": begun.number, "attempt": begun.attempt}

    def _sum(self, begun: server_loop.BegunRound) -> RoundSum:
        path, chosen = self._folder / SUM, frozenset(begun.clients)
        if path.exists():
            tensors, about = checkpoint_files.read(path)
            if {name: about[name] for name in ("run", "round", "attempt")} == self._place(begun):
                return RoundSum(
                    stages=self._stages,
                    chosen=chosen,
                    total=tensors,
                    counted=set(about["counted"]),
                    refused=Counter(about["refused"]),
                    batches=about["batches"],
                )
        return RoundSum(stages=self._stages, chosen=chosen, total=self._stages.zero())

    def _state(self) -> dict[str, Any]:
        return self._states.state(self._loop.last_released)

    def _resume(self) -> None:
        """Continues with the newest state, of a round that a killed process may not have recorded as released."""
        if not self._states.rounds():
            raise InputValueError(
                f"{self._where} has lost its state: it ends here. What was released keeps its guarantee."
            )
        models = (path.stem.removeprefix("round-") for path in (self._folder / MODELS).glob(f"round-*{SUFFIX}"))
        published = max((int(name) for name in models if name.isdecimal()), default=0)
        if published > self._loop.last_released:
            raise InputValueError(
                f"{self._where} has the model of round {published} and a ledger that is older than it: put the newest "
                "ledger and participation log back."
            )
        self._loop.resume(self._states, every_round=True, in_round=True)

    def _finish(self) -> None:
        """Finishes, from the files on disk, what a killed process left half done after its state was on disk."""
        if self._loop.has_ended:
            checkpoint_files.remove_all(self._folder / CHECKPOINTS)
            self._clear()
            for name in (UPDATES, DEADLINE):
                remove(self._folder / name)
            return
        for name in (UPDATES, TAKEN, MODELS):
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)
        self._clear_stale()
        number = self._loop.last_released
        if number and not self._model(number).exists():
            model = encoded(self._states.model(number), {"round": str(number)})
            files.write_atomically(self._model(number), model, mode=0o644)
        if self._loop.open_round and not (self._folder / SENT).exists():
            self._send()

    def _clear_stale(self) -> None:
        """Deletes what a killed process left of a round or an attempt that is over."""
        begun, sent = self._loop.open_round, self._folder / SENT
        if begun is None or ((self._folder / SUM).exists() and not self._sum(begun).batches):
            self._clear()
        elif sent.exists() and decoded(read_regular(sent))[1] != self._ticket(begun):
            sent.unlink()

    def _model(self, number: int) -> pathlib.Path:
        return self._folder / MODELS / f"round-{number:06d}{SUFFIX}"

    def _clear(self) -> None:
        for name in (SUM, SENT):
            (self._folder / name).unlink(missing_ok=True)
        for path in (self._folder / TAKEN).glob("*"):
            remove(path)


def start(
    folder: pathlib.Path, bundle: pathlib.Path, *, digest: str | None = None, test_only: bool = False
) -> dict[str, Any]:
    """Starts a deployment of a bundle.

    Args:
        folder: A new folder, or an empty one.
        bundle: The bundle.
        digest: The bundle's digest, if it is known from elsewhere.
        test_only: Whether to accept a bundle whose noise is repeatable, which protects nobody.
    """
    stages = check_files(bundle, digest)
    if stages.manifest["test_only"] is not False and not test_only:
        raise InputValueError(
            f"bundle={str(bundle)!r} is TEST ONLY: its noise is repeatable and protects nobody. Export it without "
            "--insecure-seed, or pass --test-only if no device has a person's data."
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    with alone(folder):
        # A process that was killed here leaves the state of round 0, and perhaps part of the first line.
        known = (FOLDER_LOCK, CHECKPOINTS, *(() if _has_begun(folder) else (LEDGER,)))
        if any(path.name not in known for path in folder.iterdir()):
            raise InputValueError(f"deployment={str(folder)!r} is not empty: resume it, or name another folder.")
        if checkpoint_files.saved_rounds(folder / CHECKPOINTS) not in ([], [0]):
            raise InputValueError(f"deployment={str(folder)!r} has states but no {LEDGER}: put its ledger back.")
        checkpoint_files.remove_all(folder / CHECKPOINTS)
        run = secrets.token_hex(16)
        States(folder, stages).save(0, stages.initialize(), {"run": run, "round": 0})
        with _loop(folder, stages, run) as loop:
            return Deployment(loop, stages).status()


@contextlib.contextmanager
def opened(folder: pathlib.Path, bundle: pathlib.Path) -> Iterator[Deployment]:
    """Yields a deployment that was started; no other process can open it meanwhile."""
    if not _has_begun(folder):
        raise InputValueError(f"deployment={str(folder)!r} is not a deployment: begin one with start.")
    stages = check_files(bundle)
    with alone(folder), _loop(folder, stages) as loop:
        yield Deployment(loop, stages)


@contextlib.contextmanager
def _loop(folder: pathlib.Path, stages: Stages, run: str | None = None) -> Iterator[server_loop.ServerLoop]:
    about = stages.folder / RUN_JSON
    with server_loop.open_loop(folder, bound_to=about, run=run, ended=True) as loop:
        # Who took part is nobody else's business.
        checkpoint_files.close(folder)
        yield loop


def _has_begun(folder: pathlib.Path) -> bool:
    """Returns whether a deployment was started: whether its ledger has a whole line."""
    path = folder / LEDGER
    return path.is_file() and b"\n" in read_regular(path)
