"""Streams that are stepped on the host, one round after another, with a dictionary of arrays as their state."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms.recursion import Step
from tff_mf.noise._keyed import KEY_WORDS, OTHER_NOISE, KeyedStream, float32_at_least

REMEDY = "take the newest state that next returned, or rebuild it from its keys with replay"


class DictStream(KeyedStream):
    """The state machine of engines whose arrays are at hand: `KeyedStream` has arguments and guarantee.

    A state has `fingerprint`, int64 `[4]`; `round`, int64 `[]`; `keys`, int64 `[round, 2]`; and rows of memory `row_0`,
    `row_1`, …, each `[dimension]`. Secret: with it, the noise of past rounds can be subtracted. Rows of memory that a
    round leaves as they are belong to the state before it and to the state after it: do not write into them.
    """

    # The engine's arrays, and what they are called.
    _arrays: ClassVar[tuple[type, str]]

    def init(self) -> dict[str, Any]:
        types = self._types(0)
        # One for all rows: they are never written into.
        zeros = {kind: self._zeros(kind) for kind in set(types)}
        return self._new_state([zeros[kind] for kind in types], np.zeros([0, KEY_WORDS], np.int64))

    def check(self, state: Mapping[str, Any]) -> int:
        """Returns the number of rounds that a state has drawn, if this stream continues it.

        Raises:
            InputTypeError: If the state is no dict of arrays.
            InputValueError: For a state of other noise, or a damaged one.
        """
        kind, called = self._arrays
        check_arrays(state, kind, called)
        expect(state, "fingerprint", "int64", (4,))
        if self._as_numpy(state["fingerprint"]).astype("<i8").tobytes() != self._fingerprint:
            raise InputValueError(OTHER_NOISE)
        expect(state, "round", "int64", ())
        done = int(state["round"])
        if done < 0:
            raise InputValueError(f"state is damaged: round={done} must be at least 0; {REMEDY}.")
        rows = {f"row_{index}": dtype for index, dtype in enumerate(self._types(done))}
        expect(state, "keys", "int64", (done, KEY_WORDS))
        for name, dtype in rows.items():
            expect(state, name, dtype, (self._dimension,))
        more = sorted(set(state) - {"fingerprint", "round", "keys", *rows})
        if more:
            raise InputValueError(f"state is damaged: {', '.join(more)} must not be there; {REMEDY}.")
        return done

    def _admitted(self, state: Any, ends: list[tuple[int, str]]) -> tuple[Any, int, np.floating]:
        done = self.check(state)
        for end, message in ends:
            if done >= end:
                raise InputValueError(message)
        return state, done, self._stddev

    def _advanced(self, state: Any, done: int, key: np.ndarray, stddev: Any) -> tuple[Any, dict[str, Any]]:
        keys = np.vstack([self._as_numpy(state["keys"]), key])
        memory = [state[f"row_{index}"] for index in range(self._recursion.rows)]
        row, rows = self._computed(self._recursion.step(done), memory, key, stddev)
        return row, self._new_state(rows, keys)

    def _replayed(self, keys: np.ndarray, ends: list[tuple[int, str]]) -> dict[str, Any]:
        del ends
        state = self.init()
        for done, key in enumerate(keys):
            _, state = self._advanced(state, done, key, self._stddev)
        return state

    def _scale(self, step: Step) -> np.floating:
        scale = float(self._stddev) * step.scale
        return np.float64(scale) if self._grid is not None else float32_at_least("stddev", scale)

    def _as_keys(self, keys: Any) -> np.ndarray:
        return np.asarray(keys)

    def _new_state(self, rows: list[Any], keys: np.ndarray) -> dict[str, Any]:
        small = {
            "fingerprint": np.frombuffer(self._fingerprint, "<i8").astype(np.int64),
            "round": np.array(len(keys), np.int64),
            "keys": keys,
        }
        return {name: self._from_numpy(value) for name, value in small.items()} | {
            f"row_{index}": row for index, row in enumerate(rows)
        }

    @abc.abstractmethod
    def _computed(self, step: Step, rows: list[Any], key: np.ndarray, stddev: Any) -> tuple[Any, list[Any]]:
        """Returns the noise of a round, of a key, and the rows of memory after it."""

    @abc.abstractmethod
    def _zeros(self, kind: str) -> Any:
        """Returns a row of zeros of a type."""

    def _from_numpy(self, array: np.ndarray) -> Any:
        """Returns an array of the engine, on the host."""
        return array

    def _as_numpy(self, array: Any) -> np.ndarray:
        """Returns an array of NumPy."""
        return array


def check_arrays(state: Mapping[str, Any], kind: type, called: str) -> Mapping[str, Any]:
    """Returns a state if it is a mapping of arrays of a type."""
    if not isinstance(state, Mapping) or not all(isinstance(value, kind) for value in state.values()):
        raise InputTypeError(f"state of type {type(state).__name__} must be a dict of {called}, as init returns it.")
    return state


def expect(state: Mapping[str, Any], name: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Raises unless a state has an array of this name, type and shape."""
    if name not in state:
        raise InputValueError(f"state is damaged: {name} is missing; {REMEDY}.")
    actual = str(state[name].dtype).removeprefix("torch."), tuple(state[name].shape)
    if actual != (dtype, shape):
        raise InputValueError(
            f"state is damaged: {name} is {actual[0]} {list(actual[1])} and must be {dtype} {list(shape)}; {REMEDY}."
        )
