"""A deployment: rounds that are prepared, summed and released, in files that survive a kill at any moment."""

import hashlib
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._errors import RefusedError, RefusedUpdateError
from ._files import read_regular, remove, remove_partial, write_lasting
from ._journal import Journal
from ._names import JOURNAL, MODELS, SENT, SETTINGS, STATES, SUFFIX, SUM, TAKEN, UPDATES
from ._participation import check_devices
from ._round_sum import RoundSum
from ._safetensors import decoded, encoded, sealed, unsealed
from ._stages import Stages
from ._states import StateStore
from ._times import check_times
from ._updates import read_update

_WEIGHTS = "state__global_model_weights__"


class Deployment:
    """A deployment on disk, made by `start` and opened by `opened`, by one process at a time.

    Formal guarantee: the state of a round is on disk before its model is written, and each state is stepped once. The
    next process finishes what a killed one left half done: a round whose state is on disk is released; of a round whose
    state is not on disk nothing was released, and it continues where it was.

    Args:
        folder: The deployment.
        stages: The stages of its bundle.

    Raises:
        RefusedError: If it is of another bundle, its files are of different times, or its state is lost.
    """

    def __init__(self, folder: pathlib.Path, stages: Stages) -> None:
        self._folder, self._stages = folder, stages
        self._where = f"deployment={str(folder)!r}"
        self._journal = Journal(folder / JOURNAL)
        first = self._journal.entries[0] if self._journal.entries else {}
        if first.get("kind") != "opened":
            raise RefusedError(f"{self._where} is not a deployment: begin one with start.")
        if first["bundle"] != stages.manifest["digest"]:
            raise RefusedError(f"{self._where} is of another bundle, {first['bundle'][:8]}…: use that one.")
        self._run, self._settings = first["run"], json.loads((stages.folder / SETTINGS).read_text("utf-8"))
        self._states = StateStore(folder / STATES, stages)
        for each in (folder, folder / MODELS):
            remove_partial(each)
        self._finish()

    @property
    def released(self) -> int:
        """The last round that was released; 0 if none was."""
        entry = self._journal.last("released")
        return entry["round"] if entry else 0

    @property
    def open_round(self) -> dict[str, Any] | None:
        """The journal's entry of the round that was begun and not released."""
        entry = self._journal.last("begun")
        return entry if entry and entry["round"] > self.released and not self.ended else None

    @property
    def ended(self) -> bool:
        """Whether the deployment was stopped."""
        return self._journal.last("ended") is not None

    def prepare(self, devices: Sequence[str], *, minutes: float | None = None, again: bool = False) -> dict[str, Any]:
        """Begins the next round.

        Args:
            devices: The chosen devices. The round counts as theirs from now on, whatever becomes of it.
            minutes: Time for reports: later ones are refused as late.
            again: Gives up a round that was begun, with every report in it.

        Raises:
            RefusedError: If no round is left, the round was begun already, or a device may not take part.
        """
        number = self.released + 1
        if self.ended:
            raise RefusedError(f"round={number}: no round follows, the deployment was stopped.")
        if number > self._settings["rounds"]:
            raise RefusedError(f"round={number}: no round follows, of {self._settings['rounds']}. Stop the deployment.")
        if self.open_round and not again:
            raise RefusedError(
                f"round={number} was begun: continue with accumulate and update. --again discards its reports."
            )
        if not devices:
            raise RefusedError(f"devices of round {number}: there are none. Name the chosen devices, one a line.")
        most = self._stages.most_devices
        if most is not None and len(devices) > most:
            raise RefusedError(
                f"devices of round {number}: {len(devices)} are more than the {most} that a sum has room for."
            )
        check_devices(devices, number, self._settings, self._journal.entries)
        attempt = 1 + sum((each["kind"], each.get("round")) == ("begun", number) for each in self._journal.entries)
        until = None if minutes is None else time.time() + 60 * minutes
        self._journal.add("begun", round=number, attempt=attempt, devices=list(devices), until=until)
        self._clear()
        self._send()
        return self.status()

    def accumulate(self) -> dict[str, Any]:
        """Adds the reports in `updates/`, and deletes them; returns the status, with the round's counts so far."""
        begun = self._begun()
        total, done = self._sum(begun)
        # If this process is killed, the next one takes these files first, unless the sum on disk has them already.
        batch = self._folder / TAKEN / f"{begun['round']}-{begun['attempt']}-{done + 1}"
        for other in (self._folder / TAKEN).iterdir():
            if other != batch:
                remove(other)
        batch.mkdir(mode=0o700, exist_ok=True)
        for path in sorted((self._folder / UPDATES).iterdir()):
            if not path.name.startswith(".") and not os.path.lexists(batch / path.name):
                path.rename(batch / path.name)
        for path in sorted(batch.iterdir()):
            total.take(path.name.removesuffix(SUFFIX), lambda path=path: self._read(path, begun))
        about = {
            "counted": sorted(total.counted),
            "refused": total.refused,
            "counts": total.counts(),
            "batch": done + 1,
        }
        about |= {"run": self._run, "round": begun["round"], "attempt": begun["attempt"]}
        arrays = {name: np.asarray(value) for name, value in total.total().items()}
        write_lasting(self._folder / SUM, sealed(arrays, {"about": json.dumps(about)})[0])
        remove(batch)
        return self.status()

    def update(self) -> dict[str, Any]:
        """Steps the state, with momentum and noise, and writes the model; later reports of the round are not added."""
        begun = self._begun()
        total, _ = self._sum(begun)
        state, _ = self._stages.update(self._state(), self._stages.report(total.total()))
        about = {"run": self._run, "round": begun["round"], "attempt": begun["attempt"], "counts": total.counts()}
        # A deployment does not continue with a journal that lacks devices chosen for this round.
        self._states.save(state, begun["round"], {**about, "journal": self._journal.head})
        self._finish()
        return self.status()

    def stop(self) -> dict[str, Any]:
        """Ends the deployment, and deletes every secret file."""
        if not self.ended:
            self._journal.add("ended", rounds=self.released)
        self._finish()
        return self.status()

    def status(self) -> dict[str, Any]:
        """Returns the progress of the deployment, as JSON."""
        begun, last = self.open_round, self._journal.last("released")
        found = {"rounds": self._settings["rounds"], "released": self.released, "ended": self.ended}
        if last:
            found |= {"model": f"{MODELS}/round-{last['round']:06d}{SUFFIX}", "counts": last["counts"]}
        if begun:
            counts = self._sum(begun)[0].counts()
            found |= {"round": begun["round"], "attempt": begun["attempt"], "chosen": len(begun["devices"])}
            found |= {"until": begun["until"], "counts": counts}
        return found

    def _begun(self) -> dict[str, Any]:
        if self.open_round is None:
            raise RefusedError(f"{self._where} has no round that was begun: prepare one.")
        return self.open_round

    def _read(self, path: pathlib.Path, begun: Mapping[str, Any]) -> dict[str, np.ndarray]:
        if not path.name.endswith(SUFFIX):
            raise RefusedUpdateError("not chosen")
        if begun["until"] is not None and path.lstat().st_mtime > begun["until"]:
            raise RefusedUpdateError("late")
        update, about = read_update(path, self._stages.update_types)
        if any(about.get(name) != value for name, value in self._ticket(begun).items()):
            raise RefusedUpdateError("another round")
        return update

    def _ticket(self, begun: Mapping[str, Any]) -> dict[str, str]:
        """Returns the metadata of this round's reports, which no other round, attempt or deployment shares."""
        of = hashlib.sha256(f"{self._run} {begun['round']} {begun['attempt']}".encode()).hexdigest()[:32]
        return {"round": str(begun["round"]), "ticket": of}

    def _send(self) -> None:
        begun = self._begun()
        sent = {name: np.asarray(value) for name, value in self._stages.prepare(self._state()).items()}
        write_lasting(self._folder / SENT, encoded(sent, self._ticket(begun)))

    def _sum(self, begun: Mapping[str, Any]) -> tuple[RoundSum, int]:
        """Returns the sum of a round so far, and the number of batches of files that are in it."""
        path = self._folder / SUM
        if path.exists():
            tensors, metadata, _ = unsealed(path)
            about = json.loads(metadata["about"])
            if (self._run, begun["round"], begun["attempt"]) == (about["run"], about["round"], about["attempt"]):
                earlier = tensors, about["counted"], about["refused"]
                return RoundSum(self._stages, begun["devices"], earlier), about["batch"]
        return RoundSum(self._stages, begun["devices"]), 0

    def _state(self) -> dict[str, Any]:
        """Returns the state after the last round; raises RefusedError unless the journal names it."""
        _, about, digest = self._states.read(self.released)
        entry = self._journal.last("released") or self._journal.entries[0]
        if about["run"] != self._run or digest != entry["state"]:
            raise RefusedError(
                f"{self._where} has another state of round {self.released} than it released: put "
                "its own newest state back."
            )
        return self._states.load(self.released)

    def _finish(self) -> None:
        """Finishes, from the files on disk, each step that a killed process left half done."""
        if self.ended:
            self._states.remove_all()
            self._clear()
            remove(self._folder / UPDATES)
            return
        for name in (UPDATES, TAKEN, MODELS):
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)
        check_times(self._where, self._states.rounds(), self._journal, self._models())
        number = self._states.rounds()[-1]
        if number > self.released:
            _, about, digest = self._states.read(number)
            if (about["run"], about["journal"]) != (self._run, self._journal.head):
                raise RefusedError(
                    f"{self._where} has another journal than when its state was made: put that journal back."
                )
            self._journal.add("released", round=number, state=digest, attempt=about["attempt"], counts=about["counts"])
        self._clear_stale()
        if self.released and not self._model(number).exists():
            state, _, _ = self._states.read(number)
            model = {name.removeprefix(_WEIGHTS): each for name, each in state.items() if name.startswith(_WEIGHTS)}
            write_lasting(self._model(number), encoded(model, {"round": str(number)}), mode=0o644)
        if self.open_round and not (self._folder / SENT).exists():
            self._send()

    def _clear_stale(self) -> None:
        """Deletes what a killed process left of a round or an attempt that is over."""
        begun, sent = self.open_round, self._folder / SENT
        if begun is None or ((self._folder / SUM).exists() and not self._sum(begun)[1]):
            self._clear()
        elif sent.exists() and decoded(read_regular(sent))[1] != self._ticket(begun):
            sent.unlink()

    def _model(self, number: int) -> pathlib.Path:
        return self._folder / MODELS / f"round-{number:06d}{SUFFIX}"

    def _models(self) -> list[int]:
        """Returns the rounds whose models are stored."""
        names = (path.stem.removeprefix("round-") for path in (self._folder / MODELS).glob(f"round-*{SUFFIX}"))
        return [int(name) for name in names if name.isdecimal()]

    def _clear(self) -> None:
        """Deletes the files of a round that is over."""
        for name in (SUM, SENT):
            (self._folder / name).unlink(missing_ok=True)
        for path in (self._folder / TAKEN).glob("*"):
            remove(path)
