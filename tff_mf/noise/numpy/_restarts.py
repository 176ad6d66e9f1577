"""Noise that is restarted periodically."""

from collections.abc import Mapping

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.noise._dict_stream import check_arrays, expect
from tff_mf.noise.numpy._states import NoiseState
from tff_mf.noise.numpy._stream import NoiseStream

# Rounds over all restarts.
_DONE = "rounds_done"


class RestartedStream:
    """Restarts the noise of a stream after every `restart_every` rounds: DP-FTRL-TR, for any mechanism.

    With restarts, a mechanism of r rounds runs for any number of rounds.

    Formal guarantee: as for the stream, for the strategy matrix of the whole run, which is block-diagonal: C for each
    restart, with keys of its own. Account for it with `tff_mf.guarantee(..., restart_every=restart_every)`: a client's
    participations after a restart add to those before. A state of a stream that restarts at other rounds is refused.

    Args:
        stream: The stream; it must have at least `restart_every` rounds. If it was limited (`limited_to`), the whole
            run is.
        restart_every: Number of rounds between restarts, at least 1.
        rounds: Number of rounds of the whole run, over all restarts: the next one is refused. `None` for any number.

    Source: Kairouz et al. (2021), appendix D.

    Example:
        >>> from tff_mf import Tree
        >>> from tff_mf.noise import numpy as streams
        >>> stream = RestartedStream(streams.build_stream(Tree(4), dimension=3, stddev=2.0), restart_every=4, rounds=8)
        >>> state = stream.init()
        >>> for _ in range(8):
        ...     noise, state = stream.next(state)
        >>> int(state["rounds_done"]), int(state["round"])
        (8, 0)
    """

    def __init__(self, stream: NoiseStream, *, restart_every: int, rounds: int | None = None) -> None:
        validation.instance("stream", stream, NoiseStream, "pass what streams.build_stream returns")
        self._restart_every = validation.whole("restart_every", restart_every)
        # Refuses more rounds than the stream has.
        stream.limited_to(self._restart_every)
        self._stream = stream.bound_to(f"restart_every={self._restart_every}")
        given = None if rounds is None else validation.whole("rounds", rounds)
        self._rounds = min((each for each in (given, stream.run_rounds) if each is not None), default=None)

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on except its keys."""
        return self._stream.fingerprint

    @property
    def dimension(self) -> int:
        """Number of coordinates of a row."""
        return self._stream.dimension

    def init(self) -> NoiseState:
        """Returns the state before round 0."""
        return self._stream.init() | {_DONE: np.array(0, np.int64)}

    def next(self, state: Mapping[str, np.ndarray]) -> tuple[np.ndarray, NoiseState]:
        """Returns this round's noise and the state of the next round: see `NoiseStream.next`."""
        inner = dict(check_arrays(state, np.ndarray, "NumPy arrays"))
        expect(inner, _DONE, "int64", ())
        done = int(inner.pop(_DONE))
        self._stream.check(inner)
        if done < 0 or done % self._restart_every != int(inner["round"]):
            raise InputValueError(
                f"state is damaged: {_DONE}={done} does not fit round={int(inner['round'])} with restart_every="
                f"{self._restart_every}; take the newest state that next returned."
            )
        if self._rounds is not None and done >= self._rounds:
            raise InputValueError(f"The restarted run is defined for {self._rounds} rounds, and all of them have run.")
        noise, inner = self._stream.next(inner)
        if int(inner["round"]) == self._restart_every:
            inner = self._stream.init()
        return noise, inner | {_DONE: np.array(done + 1, np.int64)}

    def replay(self, keys: np.ndarray, *, rounds_done: int) -> NoiseState:
        """Returns the state after `rounds_done` rounds, by running those since the last restart again.

        Formal guarantee: as for `NoiseStream.replay`; nothing of the noise before a restart is in a state.

        Args:
            keys: Keys of the rounds since the last restart, int64 `[rounds, 2]`: `state["keys"]`.
            rounds_done: Rounds over all restarts.

        Raises:
            InputValueError: If the keys do not belong to the rounds since the last restart, or there are more rounds
                than the run has.
        """
        done = validation.whole("rounds_done", rounds_done, at_least=0)
        if self._rounds is not None and done > self._rounds:
            raise InputValueError(f"rounds_done={done} must be at most {self._rounds}, the rounds of the run.")
        state = self._stream.replay(keys)
        if int(state["round"]) != done % self._restart_every:
            raise InputValueError(
                f"keys of {int(state['round'])} rounds do not fit rounds_done={done} with restart_every="
                f"{self._restart_every}: pass the keys of the newest state."
            )
        return state | {_DONE: np.array(done, np.int64)}
