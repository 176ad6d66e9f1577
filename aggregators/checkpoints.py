"""Saves and loads a training program's state, the noise in it as its keys; releases wait for the checkpoint."""

import asyncio
import base64
import concurrent.futures
import json
import os
import pathlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tree

from tff_mf.base import checkpoint_files, tensor_files, validation
from tff_mf.base.errors import InputValueError
from tff_mf.noise.tensorflow import NoiseState

from .factory import MFAggregationFactory
from .metrics import rounds_drawn


def each_noise(change: Callable[..., NoiseState], structure: Any, *structures: Any) -> Any:
    """Returns a structure with `change` applied to each noise state and those in its place in `structures`."""
    iterators = [iter(noise_states(other)) for other in structures]

    def replaced(node: object) -> NoiseState | None:
        return change(node, *map(next, iterators)) if isinstance(node, NoiseState) else None

    return tree.traverse(replaced, structure)


def noise_states(structure: Any) -> list[NoiseState]:
    """Returns the noise states in a structure, in order."""
    states: list[NoiseState] = []

    def remember(node: object) -> object | None:
        if not isinstance(node, NoiseState):
            return None
        states.append(node)
        return node

    tree.traverse(remember, structure)
    return states


def encoded(leaf: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """Returns the description of a leaf, and adds the leaf to `tensors` if it is a tensor."""
    if not tensor_files.is_tensor(leaf) and hasattr(leaf, "numpy"):
        leaf = leaf.numpy()
    if tensor_files.is_tensor(leaf):
        name = str(len(tensors))
        tensors[name] = leaf
        return {"tensor": name}
    if hasattr(leaf, "to_bytes") and hasattr(type(leaf), "from_bytes") and not isinstance(leaf, int):
        return {"serializable": base64.b64encode(leaf.to_bytes()).decode()}
    if isinstance(leaf, np.ndarray | np.generic):
        leaf = leaf.tolist()
    if isinstance(leaf, bytes):
        return {"bytes": base64.b64encode(leaf).decode()}
    return {"json": leaf}


def decoded(leaf: dict[str, Any], tensors: Mapping[str, np.ndarray], like: Any) -> Any:
    """Returns the leaf that `encoded` described; `like` is one of the same type."""
    ((kind, value),) = leaf.items()
    if kind == "tensor":
        return tensors[value][()]
    if kind == "json":
        return value
    data = base64.b64decode(value)
    return data if kind == "bytes" else type(like).from_bytes(data)


# Newest checkpoints that are kept: one more than is needed, should the last one be damaged.
_KEPT = 2


class CheckpointManager(tff.program.ProgramStateManager):
    """Saves program states durably in O(d), with TFF's own interface, for `train_model` and plain loops.

    Of the noise, only the keys of past rounds are saved. Its rows, which may take thousands of times the memory of the
    model, are drawn again from the keys when a state is loaded, which takes as long as the noise of all past rounds
    did.

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

    Raises:
        InputTypeError: If `aggregator` does not come from `build_mf_aggregator`.
        InputValueError: If the folder cannot be made private.
    """

    def __init__(self, root_dir: str | os.PathLike[str], *, aggregator: MFAggregationFactory | None = None) -> None:
        if aggregator is not None:
            validation.instance("aggregator", aggregator, MFAggregationFactory, "pass what build_mf_aggregator returns")
        self._aggregator = aggregator
        self._folder = pathlib.Path(root_dir)
        checkpoint_files.make_private(self._folder)
        self._saving: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def get_versions(self) -> list[int] | None:
        """Returns the saved versions in ascending order, or `None` if there are none."""
        return checkpoint_files.saved_rounds(self._folder) or None

    async def save(self, program_state: Any, version: int) -> None:
        """Saves a state, and deletes all but the newest two checkpoints.

        Args:
            program_state: Structure of arrays, references, numbers, strings and `tff.Serializable`s.
            version: Number of the state, usually the round.

        Raises:
            tff.program.ProgramStateExistsError: If this version has been saved already.
        """
        path = self._path(version)
        if path.exists():
            raise tff.program.ProgramStateExistsError(version=version, path=str(self._folder))
        saving = asyncio.create_task(self._write(path, program_state))
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

    async def _write(self, path: pathlib.Path, program_state: Any) -> None:
        tensors: dict[str, Any] = {}
        replays = self._aggregator is not None
        saved = each_noise(_keys_alone, program_state) if replays else program_state
        description = {"leaves": [encoded(leaf, tensors) for leaf in tree.flatten(saved)], "replay": replays}
        await asyncio.to_thread(checkpoint_files.write, path, tensors, description)
        for old in checkpoint_files.saved_rounds(self._folder)[:-_KEPT]:
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
        tensors, description = await asyncio.to_thread(checkpoint_files.read, path)
        replays = description["replay"]
        if replays and self._aggregator is None:
            raise InputValueError(
                f"checkpoint {str(path)!r} contains the keys and not the rows of the noise: pass aggregator= to "
                "CheckpointManager, so that the rows can be drawn again."
            )
        shape = each_noise(_keys_alone, structure) if replays else structure
        templates = tree.flatten(shape)
        if len(templates) != len(description["leaves"]):
            raise InputValueError(
                f"checkpoint {str(path)!r} has another structure than the state that it is loaded into. Resume with "
                "the process with which the run was started: with grid=None if it began in floating point."
            )
        leaves = [decoded(leaf, tensors, like) for leaf, like in zip(description["leaves"], templates, strict=True)]
        loaded = tree.unflatten_as(shape, leaves)
        for noise, expected in zip(noise_states(loaded), noise_states(structure), strict=True):
            if not np.array_equal(noise.fingerprint, expected.fingerprint):
                raise InputValueError(
                    f"checkpoint {str(path)!r} was saved with other noise than this program's: mechanism, clip_norm, "
                    "noise_multiplier, restart_every, adaptive_clipping, grid or insecure_seed differ. Resume with the "
                    "aggregator with which the run was started: with grid=None if it began in floating point."
                )
        return each_noise(self._with_rows, loaded, structure) if replays else loaded

    async def remove_all(self) -> None:
        """Deletes every checkpoint, the newest last, so that a crash in between leaves the newest."""
        checkpoint_files.remove_all(self._folder)

    def _path(self, version: int) -> pathlib.Path:
        return checkpoint_files.path_of(self._folder, int(version))

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


class SavedStates:
    """The states of a run in its checkpoints, each with facts about it as JSON: the storage of a guard.

    Attributes:
        state: The newest state when this was made; `start` if there was none.
        newest: Its round, 0 for `start`.

    Args:
        checkpoints: The checkpoints.
        start: The state that a run begins with.
    """

    def __init__(self, checkpoints: CheckpointManager, start: Any) -> None:
        self._checkpoints = checkpoints
        saved, self.newest = _waited(checkpoints.load_latest({"state": start, "about": ""}))
        self.state = start if saved is None else saved["state"]
        self._about: dict[str, Any] | None = None if saved is None else json.loads(saved["about"])

    def rounds(self) -> list[int]:
        """Returns the round of the state that was loaded, or none."""
        return [] if self._about is None else [self.newest]

    def save(self, round_number: int, state: Any, about: Mapping[str, Any]) -> None:
        """Saves the state after a round with facts about it."""
        _waited(self._checkpoints.save({"state": state, "about": json.dumps(about)}, round_number))

    def about(self, round_number: int) -> dict[str, Any]:
        """Returns the facts that were saved with the state that was loaded."""
        assert round_number == self.newest
        return self._about or {}

    def drawn(self, state: Any = None) -> dict[str, int]:
        """Returns `rounds_drawn` of a state, of the newest if not given."""
        return rounds_drawn(self.state if state is None else state)


def _waited(work: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of asynchronous work, also in a notebook, whose thread has a loop of its own."""
    stack = tff.framework.get_context_stack()
    context = stack.current

    def done() -> Any:
        # Each thread has a context of its own.
        with stack.install(context):
            return asyncio.run(work)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(done).result()


def without_noise(value: Any) -> Any:
    """Returns a structure, such as the state of a learning process, with `()` in place of each state of noise.

    Formal guarantee: the result has no key and no row of the noise. It can be released, and no process can continue it.

    Args:
        value: A structure of tensors, or of references to them.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> from tff_mf import queries
        >>> query = queries.build_query(tff_mf.Identity(), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                             noise_multiplier=8.0)
        >>> without_noise({"model": 0.5, "server": query.initial_global_state()})
        {'model': 0.5, 'server': QueryState(noise=())}
    """

    def removed(node: object) -> tuple[()] | None:
        # Results of a computation that was serialized are dictionaries.
        serialized = isinstance(node, Mapping) and node.keys() == set(NoiseState._fields)
        return () if serialized or isinstance(node, NoiseState) else None

    return tree.traverse(removed, value)


class WriteAheadReleaseManager(tff.program.ReleaseManager):
    """Releases through another manager, once every save that was started earlier is on disk, and without noise states.

    `tff.learning.programs.train_model` starts saving a round's state and then releasing its metrics and state, all
    concurrently. With this manager, the releases wait for the save, and the other one gets `without_noise` of the
    state.

    Formal guarantee: a value is released only after every save that `checkpoints` started earlier is durable; after a
    save has failed, nothing more is released. No released value has a key or a row of the noise.

    Args:
        release_manager: The manager that releases.
        checkpoints: The manager with which the program saves its state.

    Example:
        checkpoints = CheckpointManager("checkpoints", aggregator=aggregator)
        metrics = WriteAheadReleaseManager(tff.program.LoggingReleaseManager(), checkpoints)
    """

    def __init__(self, release_manager: tff.program.ReleaseManager, checkpoints: CheckpointManager) -> None:
        validation.instance("release_manager", release_manager, tff.program.ReleaseManager, "such as one for CSV files")
        validation.instance("checkpoints", checkpoints, CheckpointManager, "the one that saves the program's state")
        self._release_manager = release_manager
        self._checkpoints = checkpoints

    async def release(self, value: Any, key: Any) -> None:
        """Releases a value without states of noise, once every save that was started earlier is on disk.

        Raises:
            RuntimeError: If a save failed; nothing is released then.
        """
        await self._checkpoints.saved()
        await self._release_manager.release(without_noise(value), key)
