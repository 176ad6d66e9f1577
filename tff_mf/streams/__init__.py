"""Streams the correlated noise C⁻¹z in NumPy, for any framework: the mechanisms, keys and limits of `tff_mf.noise`.

Imports no TensorFlow.
"""

from tff_mf.streams._stream import NoiseState as NoiseState
from tff_mf.streams._stream import NoiseStream as NoiseStream
from tff_mf.streams._streams import build_stream as build_stream
