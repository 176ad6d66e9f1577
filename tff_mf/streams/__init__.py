"""Streams the correlated noise C⁻¹z in NumPy, for any framework: the mechanisms, keys and limits of `tff_mf.noise`.

Imports no TensorFlow.
"""

from tff_mf.streams._files import load_state as load_state
from tff_mf.streams._files import save_state as save_state
from tff_mf.streams._restarts import RestartedStream as RestartedStream
from tff_mf.streams._states import NoiseState as NoiseState
from tff_mf.streams._stream import NoiseStream as NoiseStream
from tff_mf.streams._stream import build_stream as build_stream
