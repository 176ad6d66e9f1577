"""Slow and direct oracles that several files compare with, and strategies of what they are compared on."""

import numpy as np
from hypothesis import strategies as st

import tff_mf

from .mechanism_laws import largest_norm as largest_norm


@st.composite
def schemas(draw, rounds, most=None):
    """A schema of either kind whose participations fit into `rounds`, and are at most `most`."""
    min_sep = draw(st.integers(1, rounds))
    fitting = (rounds - 1) // min_sep + 1
    kind = draw(st.sampled_from([tff_mf.MinSep, tff_mf.FixedEpoch]))
    return kind(
        min_sep=min_sep, max_participations=draw(st.integers(1, fitting if most is None else min(most, fitting)))
    )


def restarted(block, rounds, every):
    """The block-diagonal C of noise that restarts: `block` again and again, the last one cut off at the end."""
    whole = np.zeros((rounds, rounds))
    for begin in range(0, rounds, every):
        size = min(every, rounds - begin)
        whole[begin : begin + size, begin : begin + size] = block[:size, :size]
    return whole
