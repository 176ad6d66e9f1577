"""Streams the correlated noise C⁻¹z in PyTorch, on the device of the parameters."""

from tff_mf.base import required_packages

required_packages.packages("Noise in PyTorch", "torch")

from tff_mf.noise.torch._stream import NoiseStream as NoiseStream  # noqa: E402
from tff_mf.noise.torch._stream import build_stream as build_stream  # noqa: E402
