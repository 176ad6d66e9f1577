"""Counts the rounds of noise that a server's state has gone through."""

from typing import Any

import numpy as np
import tree

from tff_mf.noise import NoiseState

_RESTARTED = ("inner_query_state", "indicator_state")


def rounds_drawn(state: Any) -> dict[str, int]:
    """Returns for each noise in a state the number of rounds for which it was drawn, over all its restarts.

    This is the state's own count: every `next` of the process adds one, whatever the program counts.

    Args:
        state: A process's state, or any structure that contains one.

    Returns:
        Rounds by the fingerprint of the noise, which is `MFAggregationFactory.fingerprint` for the aggregator's sums.
        The smaller number if two noises have the same fingerprint.

    Example:
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> from tff_mf import queries
        >>> query = queries.build_query(tff_mf.Identity(), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                             noise_multiplier=8.0)
        >>> _, state, _ = query.get_noised_result(tf.zeros([2]), query.initial_global_state())
        >>> rounds_drawn({"server": state}) == {query.fingerprint.hex(): 1}
        True
    """
    found: dict[str, int] = {}

    def note(fingerprint: str, rounds: int) -> None:
        found[fingerprint] = min(rounds, found.get(fingerprint, rounds))

    def visit(part: object) -> object | None:
        if isinstance(part, NoiseState):
            note(np.asarray(part.fingerprint).astype("<i8").tobytes().hex(), int(np.asarray(part.round)))
            return part
        if isinstance(part, tuple) and getattr(part, "_fields", ()) == _RESTARTED:
            # A restart resets the noise's own round to 0, whereas this counter continues.
            inner, total = part
            for fingerprint in rounds_drawn(inner):
                note(fingerprint, int(np.asarray(total)))
            return part
        return None

    tree.traverse(visit, state)
    return found
