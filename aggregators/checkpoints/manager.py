"""Saves and loads a training program's state; the noise in it is saved as its keys."""

import asyncio
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tree

from tff_mf import checkpoint_files, files, validation
from tff_mf.errors import InputValueError
from tff_mf.noise.tensorflow import NoiseState

from ..factories.factory import MFAggregationFactory
from . import _program_state

_PREFIX, _SUFFIX = "checkpoint_", ".safetensors"
_ROWS = ("replay", "save")


class CheckpointManager(tff.program.ProgramStateManager):
    """Saves program states durably in O(d), with TFF's own interface, for `train_model` and plain loops.

    Of the noise, only the keys of past rounds are saved. Its rows, which may take thousands of times the memory of the
    model, are drawn again from the keys when a state is loaded, which takes as long as the noise of all past rounds
    did. `rows="save"` also writes the rows, for few rows or many past rounds.

    Formal guarantee: `save` returns when the state would survive a power failure. A program that saves a round's state
    before it releases anything from the round (write-ahead) therefore resumes after the last released round, and never
    runs a released round again. Anything computed after the last checkpoint was never released, and is run again with
    fresh keys on the same past.

    A checkpoint is as secret as the noise: its keys allow removing the noise from every released model. Folder and
    files are accessible only to their owner (modes 0700 and 0600). Call `remove_all` when a program has ended.

    Args:
        root_dir: Folder for the checkpoints and nothing else.
        aggregator: The aggregator of the program's process, with which the rows are drawn again. If `None`, the rows
            are saved.
        rows: `replay` or `save`.
        keep: Number of newest checkpoints to keep.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the aggregator has `grid="auto"`, which depends on the
            values.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str],
        *,
        aggregator: MFAggregationFactory | None = None,
        rows: str = "replay",
        keep: int = 2,
    ) -> None:
        if aggregator is not None:
            validation.instance("aggregator", aggregator, MFAggregationFactory, "pass what build_mf_aggregator returns")
        self._aggregator = aggregator
        # Here, so that a grid that depends on the values is refused before a round is trained.
        self._noise = None if aggregator is None else aggregator.fingerprint
        self._replays = validation.one_of("rows", rows, _ROWS) == "replay" and aggregator is not None
        self._keep = validation.whole("keep", keep)
        self._folder = pathlib.Path(root_dir)
        checkpoint_files.make_private(self._folder)
        self._saving: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._checks: list[Callable[[Any, int], None]] = []

    def check_with(self, check: Callable[[Any, int], None]) -> None:
        """Calls `check(program_state, version)` before each state is written; if it raises, the state is not saved.

        A `WriteAheadReleaseManager` then releases nothing more, as after any failed save.
        """
        self._checks.append(check)

    async def get_versions(self) -> list[int] | None:
        """Returns the saved versions in ascending order, or `None` if there are none."""
        return sorted(self._versions()) or None

    async def save(self, program_state: Any, version: int) -> None:
        """Saves a state, and deletes all but the newest `keep` checkpoints.

        Args:
            program_state: Structure of arrays, references, numbers, strings and `tff.Serializable`s.
            version: Number of the state, usually the round.

        Raises:
            tff.program.ProgramStateExistsError: If this version has been saved already.
        """
        path = self._path(version)
        if path.exists():
            raise tff.program.ProgramStateExistsError(version=version, path=str(self._folder))
        saving = asyncio.create_task(self._write(path, program_state, version))
        self._saving.add(saving)
        try:
            await saving
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._saving.discard(saving)

    async def saved(self) -> None:
        """Returns when every save that has been started is on disk.

        Raises:
            RuntimeError: If a save failed.
        """
        if self._saving:
            await asyncio.wait(self._saving)
        if self._failure is not None:
            raise RuntimeError(f"A checkpoint in {str(self._folder)!r} could not be saved.") from self._failure

    async def _write(self, path: pathlib.Path, program_state: Any, version: int) -> None:
        for check in self._checks:
            check(program_state, version)
        tensors: list[Any] = []
        leaves = [_program_state.encoded(leaf, tensors) for leaf in tree.flatten(self._without_rows(program_state))]
        description = {"leaves": leaves, "replay": self._replays, "noise": self._noise}
        await _in_thread(lambda: checkpoint_files.write(path, tensors, description))
        for old in sorted(self._versions())[: -self._keep]:
            self._path(old).unlink()

    async def load(self, version: int, structure: Any) -> Any:
        """Returns a saved state; rows of noise that were not saved are drawn again.

        Args:
            version: Number of the state.
            structure: A state of the same structure, such as the program's initial state.

        Raises:
            InputValueError: If the file is damaged, or has another structure or other noise.
            tff.program.ProgramStateNotFoundError: If this version has not been saved.
        """
        path = self._path(version)
        if not path.exists():
            raise tff.program.ProgramStateNotFoundError(version)
        tensors, description = await _in_thread(lambda: checkpoint_files.read(path))
        replays = description["replay"]
        if replays and self._aggregator is None:
            raise InputValueError(
                f"checkpoint {str(path)!r} contains the keys and not the rows of the noise: pass aggregator= to "
                "CheckpointManager, so that the rows can be drawn again."
            )
        if None not in (description["noise"], self._noise) and description["noise"] != self._noise:
            raise _other_noise(path)
        shape = self._without_rows(structure) if replays else structure
        kept = tree.flatten(shape)
        if len(kept) != len(description["leaves"]):
            raise InputValueError(
                f"checkpoint {str(path)!r} has another structure than the state that it is loaded into. Resume with "
                "the process with which the run was started: with grid=None if it began in floating point."
            )
        leaves = [
            _program_state.decoded(leaf, tensors, like) for leaf, like in zip(description["leaves"], kept, strict=True)
        ]
        loaded = tree.unflatten_as(shape, leaves)
        for found, expected in zip(
            _program_state.noise_states(loaded), _program_state.noise_states(structure), strict=True
        ):
            if not np.array_equal(found.fingerprint, expected.fingerprint):
                raise _other_noise(path)
        return _program_state.each_noise(self._with_rows, loaded, structure) if replays else loaded

    async def remove_all(self) -> None:
        """Deletes every checkpoint, the newest last, so that a crash in between leaves the newest."""
        files.remove_unfinished(self._folder)
        for version in sorted(self._versions()):
            self._path(version).unlink()

    def _versions(self) -> list[int]:
        names = [path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in self._folder.glob(f"{_PREFIX}*")]
        return [int(name) for name in names if name.isdecimal()]

    def _path(self, version: int) -> pathlib.Path:
        return self._folder / f"{_PREFIX}{int(version)}{_SUFFIX}"

    def _without_rows(self, structure: Any) -> Any:
        return _program_state.each_noise(_program_state.keys_alone, structure) if self._replays else structure

    def _with_rows(self, noise: NoiseState, like: NoiseState) -> NoiseState:
        assert self._aggregator is not None
        if not like.rows:
            keys = np.zeros((max(len(np.asarray(like.keys)), len(noise.keys)), noise.keys.shape[1]), noise.keys.dtype)
            keys[: len(noise.keys)] = noise.keys
            return like._replace(round=noise.round, keys=keys)
        return self._aggregator.replay(noise.keys, dimension=like.rows[0].shape[0])


def _other_noise(path: pathlib.Path) -> InputValueError:
    return InputValueError(
        f"checkpoint {str(path)!r} was saved with other noise than this program's: mechanism, clip_norm, "
        "noise_multiplier, restart_every, adaptive_clipping, grid or insecure_seed differ. Resume with the aggregator "
        "with which the run was started: with grid=None if it began in floating point."
    )


async def _in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)
