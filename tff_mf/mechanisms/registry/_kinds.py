"""`register_mechanism`: what a kind of mechanism has, and how it is found again."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.registry._codec import Codec
from tff_mf.problem.participation import Participation

# Name of the tensor with the first rows and columns of C.
SAMPLE = "encoder_sample"

# Of the mechanism, the rounds and the schema; `None` where there is no closed form.
Sensitivity = Callable[[Any, int, Participation], Any]
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
    """A registered kind of mechanism: the arguments of `register_mechanism`.

    Attributes:
        kind: Its name in artifacts, reports and errors.
        outside: Whether the mechanism is defined outside of this package, so that everything is checked.
    """

    kind: str
    mechanism: type[Mechanism]
    codec: Codec
    outside: bool
    sensitivity: Sensitivity | None = None
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


_KINDS: dict[str, MechanismKind] = {}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


class UnknownKindError(InputValueError):
    """A kind that is not registered."""


def register_mechanism(
    mechanism: type[Mechanism],
    *,
    codec: Codec | None = None,
    sensitivity: Sensitivity | None = None,
    search: Search | None = None,
    named: Named | None = None,
) -> MechanismKind:
    """Makes a kind of mechanism known: to artifacts, sensitivity, noise, queries, aggregators and the command line.

    The mechanisms of this package register with the same call. `docs/adding-a-mechanism.md` goes through an example.

    Formal guarantee:
        Of a class from outside of this package, a careless error is found: `tff_mf.check_mechanism` runs before a
        sensitivity or ε is stated, and whenever it is saved or loaded.
        Sensitivity: always by this package's rules for the structure of C, exact or a proven upper bound. A closed
        form that is below what clients attain is refused.
        Noise: in the first 32 rounds, the recursion must be C⁻¹; checked whenever a stream is built.
        Artifacts: loading a file never imports code.
        A subclass inherits nothing: kinds are found by the exact class.

    Args:
        mechanism: The class, a frozen dataclass with a `kind` of its own: lower-case letters, digits and underscores.
        codec: How parameters are written; by default `Codec.of_fields(mechanism)`.
        sensitivity: Closed form: a function of mechanism, rounds and participation that returns a float, or `None`
            where it knows none. In this package it is the sensitivity; from outside it is checked, and the rules for
            Toeplitz, banded or any matrices are used.
        search: How one is found for a setting, for the command line.
        named: Mechanisms that the command line knows by a name: functions of the rounds, which may be `None`.

    Returns:
        What was registered.

    Example:
        >>> from tff_mf.mechanisms import registry
        >>> registry.named("blt").mechanism
        <class 'tff_mf.mechanisms.blt.BLT'>

    Raises:
        InputTypeError: If an argument is of the wrong type, or the class is not a frozen dataclass.
        InputValueError: If the kind, the class or a name is registered already.
    """
    _check_class(mechanism)
    record = MechanismKind(
        kind=mechanism.kind,
        mechanism=mechanism,
        codec=Codec.of_fields(mechanism) if codec is None else codec,
        sensitivity=sensitivity,
        search=search,
        named={} if named is None else dict(named),
        outside=not mechanism.__module__.startswith("tff_mf."),
    )
    _check_parts(record)
    _check_new(record)
    _KINDS[record.kind] = record
    return record


def kinds() -> tuple[MechanismKind, ...]:
    """Returns all that is registered, in the order in which it was.

    Example:
        >>> [record.kind for record in kinds()][:3]
        ['blt', 'scaled_blt', 'banded']
    """
    return tuple(_KINDS.values())


def named(kind: str) -> MechanismKind:
    """Returns what is registered for the `kind` of an artifact.

    Example:
        >>> named("identity").command_name
        'identity'

    Raises:
        UnknownKindError: If no such kind is registered: an `InputValueError`.
    """
    validation.instance("kind", kind, str, f"one of {', '.join(_KINDS)}")
    if kind not in _KINDS:
        raise UnknownKindError(
            f"kind={kind!r} is none of the registered kinds {', '.join(_KINDS)}: import the module that registers it "
            "first (tff-mf --plugin MODULE); loading a file never imports code"
        )
    return _KINDS[kind]


def find(mechanism: Mechanism) -> MechanismKind | None:
    """Returns what is registered for the exact class of a mechanism; `None` for one that is not.

    Example:
        >>> from tff_mf import Identity
        >>> find(Identity()).kind
        'identity'
    """
    record = next((each for each in _KINDS.values() if each.mechanism is type(mechanism)), None)
    if record is not None and mechanism.kind != record.kind:
        raise InputValueError(
            f"mechanism of the class {type(mechanism).__name__} says kind={mechanism.kind!r} and is registered as "
            f"{record.kind!r}: a kind must not change."
        )
    return record


def registered(mechanism: Mechanism) -> MechanismKind:
    """Returns what `find` does.

    Raises:
        InputTypeError: If the exact class is not registered.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism, such as the result of tff_mf.load")
    record = find(mechanism)
    if record is None:
        raise InputTypeError(
            f"mechanism of the class {type(mechanism).__name__} is not registered; a subclass inherits nothing: call "
            f"tff_mf.register_mechanism({type(mechanism).__name__}, ...)."
        )
    return record


def _check_class(mechanism: type[Mechanism]) -> None:
    if not isinstance(mechanism, type) or not issubclass(mechanism, Mechanism):
        raise InputTypeError(f"mechanism={mechanism!r} must be a subclass of tff_mf.Mechanism.")
    if inspect.isabstract(mechanism):
        missing = ", ".join(sorted(mechanism.__abstractmethods__))
        raise InputTypeError(f"mechanism {mechanism.__name__} must define {missing}.")
    if mechanism.check is not Mechanism.check:
        raise InputTypeError(f"mechanism {mechanism.__name__} must not override check: define max_rounds instead.")
    own = vars(mechanism)
    if "__dataclass_params__" not in own or not own["__dataclass_params__"].frozen:
        raise InputTypeError(f"mechanism {mechanism.__name__} must be decorated @dataclasses.dataclass(frozen=True).")
    kind = own.get("kind")
    if not isinstance(kind, str) or not _NAME.fullmatch(kind):
        raise InputValueError(
            f"{mechanism.__name__}.kind={kind!r} must be a name of its own: lower-case letters, digits and underscores."
        )


def _check_parts(record: MechanismKind) -> None:
    validation.instance("codec", record.codec, Codec, "pass registry.Codec, or None for one of the fields")
    if record.sensitivity is not None and not callable(record.sensitivity):
        raise InputTypeError(f"sensitivity={record.sensitivity!r} must be a function, or None.")
    if record.search is not None:
        validation.instance("search", record.search, Search, "pass registry.Search, or None")


def _check_new(record: MechanismKind) -> None:
    if record.kind in _KINDS or any(each.mechanism is record.mechanism for each in _KINDS.values()):
        raise InputValueError(
            f"kind={record.kind!r} is registered already: choose another kind; what is registered is never replaced."
        )
    taken = {name for each in _KINDS.values() for name in (each.command_name, *each.named)}
    for name in (record.command_name, *record.named):
        if name in taken:
            raise InputValueError(f"the name {name!r} is taken on the command line: choose another.")
