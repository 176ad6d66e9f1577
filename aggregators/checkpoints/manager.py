"""Checkpoints of a training program that are no larger than its model."""

import asyncio
import base64
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tree

from tff_mf import _validate
from tff_mf.errors import InputValueError
from tff_mf.noise import NoiseState

from ..factories.factory import MFAggregationFactory
from . import checkpoint_file

_PREFIX, _SUFFIX = "checkpoint_", ".safetensors"
_ROWS = ("replay", "save")


class CheckpointManager(tff.program.ProgramStateManager):
    """Saves program states in O(d) and durably; with TFF's own interface, for `train_model` and plain loops.

    Of the noise only the keys of the past rounds are saved. The rows, up to thousands of times the
    model, are drawn again from them when a state is loaded, at the cost of the noise of every past
    round; `rows="save"` writes the rows too, where they are few or the past is long.

    Formal guarantee: `save` returns when the state would survive a power cut. A program that saves a
    round's state before it releases anything of the round (write-ahead) therefore goes on after
    every round that it has released, and never runs one of them again. What was computed after the
    last checkpoint was released to nobody, and is run again with fresh keys on the same past.

    A checkpoint is as secret as the noise that is in it: with the keys the noise of every released
    model can be taken off. Folder and files are for their owner alone (modes 0700 and 0600). Call
    `remove_all` when a program has ended.

    Args:
        root_dir: Folder of the checkpoints, and of nothing else.
        aggregator: The aggregator of the program's process, whose keys are drawn again. With `None`
            the rows are saved.
        rows: `replay` or `save`.
        keep: How many of the newest checkpoints are kept.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
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
            _validate.instance("aggregator", aggregator, MFAggregationFactory, "pass what build_mf_aggregator returns")
        self._aggregator = aggregator
        self._replays = _validate.one_of("rows", rows, _ROWS) == "replay" and aggregator is not None
        self._keep = _validate.whole("keep", keep)
        self._folder = pathlib.Path(root_dir)
        checkpoint_file.make_private(self._folder)
        self._saving: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._checks: list[Callable[[Any, int], None]] = []

    def check_with(self, check: Callable[[Any, int], None]) -> None:
        """Calls `check(program_state, version)` before each state is written: if it raises, the state is not saved.

        Nothing is released any more by a `WriteAheadReleaseManager` then, as after every save that failed.
        """
        self._checks.append(check)

    async def get_versions(self) -> list[int] | None:
        """Returns the versions that there are, in order, or `None`."""
        return sorted(self._versions()) or None

    async def save(self, program_state: Any, version: int) -> None:
        """Saves a state, and deletes the checkpoints that are older than the newest `keep`.

        Args:
            program_state: Structure of arrays, references, numbers, texts and `tff.Serializable`s.
            version: Number of the state, mostly the round.

        Raises:
            tff.program.ProgramStateExistsError: If there is one of this version.
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
        """Returns when every state whose saving has begun is on disk.

        Raises:
            RuntimeError: If one could not be saved.
        """
        if self._saving:
            await asyncio.wait(self._saving)
        if self._failure is not None:
            raise RuntimeError(f"A checkpoint in {str(self._folder)!r} could not be saved.") from self._failure

    async def _write(self, path: pathlib.Path, program_state: Any, version: int) -> None:
        for check in self._checks:
            check(program_state, version)
        tensors: list[Any] = []
        leaves = [_encoded(leaf, tensors) for leaf in tree.flatten(self._without_rows(program_state))]
        description = {"leaves": leaves, "replay": self._replays, "noise": self._noise()}
        await _in_thread(lambda: checkpoint_file.write(path, tensors, description))
        for old in sorted(self._versions())[: -self._keep]:
            self._path(old).unlink()

    async def load(self, version: int, structure: Any) -> Any:
        """Returns the state of a version, its rows of noise drawn again if they were not saved.

        Args:
            version: Number of the state.
            structure: A state of the same structure, such as the one that a program starts from.

        Raises:
            InputValueError: If the file is damaged, of another structure, or of other noise.
            tff.program.ProgramStateNotFoundError: If there is none of this version.
        """
        path = self._path(version)
        if not path.exists():
            raise tff.program.ProgramStateNotFoundError(version)
        tensors, description = await _in_thread(lambda: checkpoint_file.read(path))
        replays = description["replay"]
        if replays and self._aggregator is None:
            raise InputValueError(
                f"checkpoint {str(path)!r} has keys in place of rows of noise: pass aggregator= to CheckpointManager, "
                "so that they can be drawn again."
            )
        if None not in (description["noise"], self._noise()) and description["noise"] != self._noise():
            raise _other_noise(path)
        shape = self._without_rows(structure) if replays else structure
        kept = tree.flatten(shape)
        if len(kept) != len(description["leaves"]):
            raise InputValueError(
                f"checkpoint {str(path)!r} is of another structure than the one that it is loaded as."
            )
        leaves = [_decoded(leaf, tensors, like) for leaf, like in zip(description["leaves"], kept, strict=True)]
        loaded = tree.unflatten_as(shape, leaves)
        for found, expected in zip(_noise_states(loaded), _noise_states(structure), strict=True):
            if not np.array_equal(found.fingerprint, expected.fingerprint):
                raise _other_noise(path)
        return _each_noise(self._with_rows, loaded, structure) if replays else loaded

    async def remove_all(self) -> None:
        """Deletes every checkpoint, the newest last: what is left is the newest one at any moment."""
        for version in sorted(self._versions()):
            self._path(version).unlink()

    def _versions(self) -> list[int]:
        names = [path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in self._folder.glob(f"{_PREFIX}*")]
        return [int(name) for name in names if name.isdecimal()]

    def _path(self, version: int) -> pathlib.Path:
        return self._folder / f"{_PREFIX}{int(version)}{_SUFFIX}"

    def _noise(self) -> str | None:
        return None if self._aggregator is None else self._aggregator.fingerprint

    def _without_rows(self, structure: Any) -> Any:
        return _each_noise(_keys_alone, structure) if self._replays else structure

    def _with_rows(self, noise: NoiseState, like: NoiseState) -> NoiseState:
        assert self._aggregator is not None
        if not like.rows:
            keys = np.zeros((max(len(np.asarray(like.keys)), len(noise.keys)), noise.keys.shape[1]), noise.keys.dtype)
            keys[: len(noise.keys)] = noise.keys
            return like._replace(round=noise.round, keys=keys)
        return self._aggregator.replay(noise.keys, dimension=like.rows[0].shape[0])


def _keys_alone(noise: NoiseState) -> NoiseState:
    past = np.asarray(noise.keys)[: int(np.asarray(noise.round))]
    return noise._replace(keys=past, rows=(), coefficients=())


def _other_noise(path: pathlib.Path) -> InputValueError:
    return InputValueError(
        f"checkpoint {str(path)!r} is of other noise than this program's: mechanism, clip_norm, noise_multiplier, "
        "restart_every, adaptive_clipping or insecure_seed differ. Resume with the aggregator that the run was started "
        "with."
    )


def _each_noise(change: Callable[..., NoiseState], structure: Any, *others: Any) -> Any:
    """Returns a structure with each noise state changed, given the ones in its place in the others."""
    found = [iter(_noise_states(other)) for other in others]

    def replaced(part: object) -> NoiseState | None:
        return change(part, *map(next, found)) if isinstance(part, NoiseState) else None

    return tree.traverse(replaced, structure)


def _noise_states(structure: Any) -> list[NoiseState]:
    found: list[NoiseState] = []

    def remember(part: object) -> object | None:
        if not isinstance(part, NoiseState):
            return None
        found.append(part)
        return part

    tree.traverse(remember, structure)
    return found


def _encoded(leaf: Any, tensors: list[Any]) -> dict[str, Any]:
    """Returns how a leaf is described, and appends it to the tensors if it is one."""
    if not checkpoint_file.is_tensor(leaf) and hasattr(leaf, "numpy"):
        leaf = leaf.numpy()
    if checkpoint_file.is_tensor(leaf):
        tensors.append(leaf)
        return {"tensor": len(tensors) - 1}
    if hasattr(leaf, "to_bytes") and hasattr(type(leaf), "from_bytes") and not isinstance(leaf, int):
        return {"serializable": base64.b64encode(leaf.to_bytes()).decode()}
    if isinstance(leaf, np.ndarray | np.generic):
        leaf = leaf.tolist()
    if isinstance(leaf, bytes):
        return {"bytes": base64.b64encode(leaf).decode()}
    return {"json": leaf}


def _decoded(leaf: dict[str, Any], tensors: list[np.ndarray], like: Any) -> Any:
    ((kind, value),) = leaf.items()
    if kind == "tensor":
        return tensors[value][()]
    if kind == "json":
        return value
    data = base64.b64decode(value)
    return data if kind == "bytes" else type(like).from_bytes(data)


async def _in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)
