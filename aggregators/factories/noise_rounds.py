"""How many rounds of noise a server's state has behind it."""

from typing import Any

import numpy as np
import tree

from tff_mf.noise import NoiseState

_RESTARTED = ("inner_query_state", "indicator_state")


def rounds_drawn(state: Any) -> dict[str, int]:
    """Returns of each noise in a state how many rounds it was drawn for, over all its restarts.

    It is the state's own count: it grows by one with every `next` of the process, whatever a program counts.

    Args:
        state: A process's state, or any structure with one in it.

    Returns:
        Rounds, by the fingerprint of the noise: `MFAggregationFactory.fingerprint` is that of the aggregator's sums.
        Of two noises with one fingerprint, the fewer rounds.

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
            # A restart sets the round of the noise back to 0; what restarts it counts on.
            inner, total = part
            for fingerprint in rounds_drawn(inner):
                note(fingerprint, int(np.asarray(total)))
            return part
        return None

    tree.traverse(visit, state)
    return found
