"""Streams the correlated noise C⁻¹z in NumPy, for any framework: keys and limits as in `noise.tensorflow`.

Imports no TensorFlow.
"""

from tff_mf.noise._keyed import KeyedStream as KeyedStream
from tff_mf.noise.numpy._states import NoiseState as NoiseState
from tff_mf.noise.numpy._states import load_state as load_state
from tff_mf.noise.numpy._states import save_state as save_state
from tff_mf.noise.numpy._stream import NoiseStream as NoiseStream
from tff_mf.noise.numpy._stream import build_stream as build_stream
