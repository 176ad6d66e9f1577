"""Streams the correlated noise C⁻¹z in JAX, on the device of the parameters, in compiled functions too."""

from tff_mf.base import required_packages
from tff_mf.base.errors import MissingDependencyError

required_packages.packages("Noise in JAX", "jax")

import jax  # noqa: E402

if jax.__version_info__ < (0, 10):
    raise MissingDependencyError(
        f"Noise in JAX needs jax 0.10 or newer, and this is {jax.__version__}, as TensorFlow Federated requires it. In "
        f"another environment, run: {required_packages.JAX_COMMAND}"
    )

from tff_mf.noise.jax._stream import NoiseState as NoiseState  # noqa: E402
from tff_mf.noise.jax._stream import NoiseStream as NoiseStream  # noqa: E402
from tff_mf.noise.jax._stream import build_stream as build_stream  # noqa: E402
