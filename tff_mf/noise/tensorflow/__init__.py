"""Streams the correlated noise C⁻¹z in TensorFlow.

In `tff_mf` only `noise.tensorflow`, `queries` and `keras` import TensorFlow.
"""

from tff_mf.base import required_packages

required_packages.packages("Noise", "tensorflow")

from tff_mf.noise.tensorflow._normals import exact_normal as exact_normal  # noqa: E402
from tff_mf.noise.tensorflow._normals import in_parts as in_parts  # noqa: E402
from tff_mf.noise.tensorflow._stream import NoiseState as NoiseState  # noqa: E402
from tff_mf.noise.tensorflow._stream import NoiseStream as NoiseStream  # noqa: E402
from tff_mf.noise.tensorflow._stream import build_stream as build_stream  # noqa: E402
