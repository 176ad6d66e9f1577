"""What a kind of mechanism has."""

import dataclasses
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from tff_mf.mechanisms import Mechanism
from tff_mf.participation import Participation
from tff_mf.registry._codec import Codec

# Name of the tensor with the first rows and columns of C.
SAMPLE = "encoder_sample"

# Of the mechanism, the rounds and the schema; `None` where there is no closed form.
Sensitivity = Callable[[Any, int, Participation], Any]
# Of the mechanism, and `dimension`, `stddev` and `insecure_seed` by name: a `tff_mf.noise.NoiseStream`.
Stream = Callable[..., Any]
Named = Mapping[str, Callable[[int | None], Mechanism]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """How a mechanism of a kind is found for a setting: what `tff-mf optimize` and `train --mechanism` call.

    Attributes:
        optimizer: A function of `rounds`, `participation` and the `options`, all by name, that returns what the
            optimizers of this package do.
        options: Options of the command line that the optimizer takes: some of "bands", "buffers", "objective",
            "unit_norms", "workload" and "progress".
        objective: The loss that it minimizes by default, "rms" or "max".
        toeplitz: Whether it takes only workloads that are constant along diagonals.
    """

    optimizer: Callable[..., Any]
    options: tuple[str, ...] = ()
    objective: str = "rms"
    toeplitz: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismKind:
    """A registered kind of mechanism; see `register_mechanism`.

    Attributes:
        kind: Its name in artifacts, reports and errors.
        mechanism: The class of its mechanisms.
        codec: How its parameters are written and read.
        sensitivity: Its own closed form, or `None`.
        stream: What builds its stream of noise, or the dotted name of that, or `None`.
        search: How one is found for a setting, or `None`.
        named: Mechanisms that need no search, by the names of the command line: functions of the rounds, which may be
            `None`.
        outside: Whether the mechanism is defined outside of this package, so that everything is checked.
    """

    kind: str
    mechanism: type[Mechanism]
    codec: Codec
    outside: bool
    sensitivity: Sensitivity | None = None
    stream: Stream | str | None = None
    search: Search | None = None
    named: Named = dataclasses.field(default_factory=dict)

    @property
    def command_name(self) -> str:
        """The kind as the command line spells it."""
        return self.kind.replace("_", "-")

    @property
    def axes(self) -> Mapping[str, int]:
        """Number of axes of each tensor of an artifact: the codec's, and a sample of C for a class from outside.

        With the sample, an artifact and the noise of a state belong to one C, also if the code that defines C changes.
        """
        return {**self.codec.axes, **({SAMPLE: 2} if self.outside else {})}

    def stream_builder(self) -> Stream | None:
        """Returns what builds the stream of noise, imported now if it was registered by name; `None` if there is none.

        Raises:
            ImportError: If there is no module of the name.
            AttributeError: If the module has nothing of the name.
        """
        return pkgutil.resolve_name(self.stream) if isinstance(self.stream, str) else self.stream
