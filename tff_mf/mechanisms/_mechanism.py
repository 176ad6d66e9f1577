"""Base classes of mechanisms: a strategy matrix C with a name and parameters."""

import abc
import collections.abc
import dataclasses
import hashlib
import re
import typing
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from tff_mf.base import in_order, matrices, validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms.recursion import Recursion, of_diagonals, of_rows, rows_of
from tff_mf.problem.participation import Participation
from tff_mf.problem.workloads import PrefixSum, Workload

# Whole numbers up to here are exact in float64.
_LARGEST_WHOLE = 2**53
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

# Every class that has a kind of its own.
_KINDS: dict[str, type["Mechanism"]] = {}


class UnknownKindError(InputValueError):
    """A kind of which no class is imported."""


def of_kind(kind: str) -> type["Mechanism"]:
    """Returns the class of a kind; its module must have been imported.

    Example:
        >>> of_kind("blt")
        <class 'tff_mf.mechanisms.blt.BLT'>

    Raises:
        UnknownKindError: If there is none: an `InputValueError`.
    """
    validation.instance("kind", kind, str, f"one of {', '.join(_KINDS)}")
    if kind not in _KINDS:
        raise UnknownKindError(
            f"kind={kind!r} is of no class that is imported: import the module that defines it first; loading a file "
            f"never imports code; there are {', '.join(_KINDS)}"
        )
    return _KINDS[kind]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchStatus:
    """How an optimizer's search ended. It describes one search in this process and is not stored in artifacts.

    Whether the search converged, and its duality gap, are fields of `OptimizedFor`, which artifacts store.

    Attributes:
        objective: The loss that was minimized, "max" or "rms".
        loss: That loss, recomputed from the parameters of the mechanism that the optimizer returned.
        message: How the search ended, in words.
        iterations: Iterations of the optimizer, over all its starts.
        seconds: Wall-clock time.
        gradient_norm: Largest entry of the gradient of log(loss) at the end, or the measure of stationarity that the
            optimizer's docstring names instead.
        history: Losses during the search; each optimizer's docstring says at which points.
    """

    objective: str
    loss: float
    message: str
    iterations: int
    seconds: float
    gradient_norm: float
    history: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizedFor:
    """The setting that a mechanism was optimized for. It may be used in another.

    Attributes:
        rounds: Number of rounds n.
        participation: The participation schema.
        workload: The workload A, whose error was minimized.
        duality_gap: Relative duality gap of the squared loss reported by the optimizer, or `None` if it has none.
        converged: Whether the optimizer's search ended at a stationary point or with a small enough gap; `None` if the
            matrix was not optimized.
        search: How the optimizer's search ended; `None` if the matrix was not optimized in this process, for artifacts
            do not store it. It takes no part in comparisons and hashes.
    """

    rounds: int
    participation: Participation
    workload: Workload = dataclasses.field(default_factory=PrefixSum)
    duality_gap: float | None = None
    converged: bool | None = None
    search: SearchStatus | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        remedy = "pass MinSep, FixedEpoch or SingleParticipation"
        validation.instance("participation", self.participation, Participation, remedy)
        validation.instance("workload", self.workload, Workload, "pass a workload such as tff_mf.Momentum")
        object.__setattr__(self, "rounds", self.workload.check(self.participation.check(self.rounds)))
        if self.duality_gap is not None:
            object.__setattr__(self, "duality_gap", validation.nonnegative("duality_gap", self.duality_gap))
        if self.converged is not None:
            validation.instance("converged", self.converged, bool, "True, False or None")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism(abc.ABC):
    """A lower-triangular strategy matrix C; noise is C⁻¹z for independent Gaussian rows z.

    Attributes:
        optimized_for: Setting that C was optimized for, or `None`.
    """

    kind: ClassVar[str]
    optimized_for: OptimizedFor | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Keeps the class by its kind, so that a file can be read. A class without a kind of its own is a base class.

        Raises:
            InputValueError: If the kind is no name, or the kind of another class.
        """
        super().__init_subclass__(**options)
        if "kind" not in vars(cls):
            return
        if not isinstance(cls.kind, str) or not _NAME.fullmatch(cls.kind):
            raise InputValueError(
                f"{cls.__name__}.kind={cls.kind!r} must be a name: lower-case letters, digits and underscores."
            )
        earlier = _KINDS.setdefault(cls.kind, cls)
        # The same class may be defined a second time: a cell of a notebook runs twice, a decorator makes a copy.
        if (earlier.__module__, earlier.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputValueError(f"{cls.__name__}.kind={cls.kind!r} is the kind of {earlier!r}: choose another.")
        _KINDS[cls.kind] = cls

    @property
    def is_outside(self) -> bool:
        """Whether the class is defined outside of this package, so that its recursion is compared with its C."""
        return not type(self).__module__.startswith("tff_mf.")

    def __post_init__(self) -> None:
        if self.optimized_for is not None:
            validation.instance("optimized_for", self.optimized_for, OptimizedFor, "pass tff_mf.OptimizedFor or None")
            self.check(self.optimized_for.rounds)

    def content(self) -> tuple[Any, ...]:
        """Returns the class and all fields but `optimized_for`, for comparisons: arrays by their values."""
        fields = [field.name for field in dataclasses.fields(self) if field.name != "optimized_for"]
        return type(self), *(_comparable(getattr(self, name)) for name in fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mechanism):
            return NotImplemented
        return self.optimized_for == other.optimized_for and self.content() == other.content()

    def __hash__(self) -> int:
        return hash((self.optimized_for, *self.content()))

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """Returns the annotations of all fields but `optimized_for`.

        Raises:
            InputTypeError: If one does not say how its field is written as a tensor.
        """
        hints = typing.get_type_hints(cls)
        names = [field.name for field in dataclasses.fields(cls) if field.init and field.name != "optimized_for"]
        for name in names:
            sequence = typing.get_origin(hints[name]) in (tuple, collections.abc.Sequence)
            of_floats = sequence and typing.get_args(hints[name])[0] is float
            if hints[name] not in (float, int, np.ndarray) and not of_floats:
                raise InputTypeError(
                    f"{cls.__name__}.{name} is annotated as {hints[name]!r}, which is no float, int, array or sequence "
                    "of floats: override tensors and of_tensors."
                )
        return {name: hints[name] for name in names}

    def tensors(self) -> dict[str, np.ndarray]:
        """Returns all parameters as float64 arrays by name: what a file holds and a fingerprint covers.

        They are the fields but `optimized_for`, as far as these are numbers, sequences of floats or arrays.

        Example:
            >>> from tff_mf import BLT
            >>> BLT(theta=[0.5], omega=[0.25]).tensors()
            {'theta': array([0.5]), 'omega': array([0.25])}
        """
        return {name: np.atleast_1d(np.array(getattr(self, name), np.float64)) for name in self._parameters()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, np.ndarray], optimized_for: OptimizedFor | None = None) -> Self:
        """Returns the mechanism of finite tensors, which a file may have changed.

        Raises:
            InputError: If no mechanism of this class has them.
        """
        hints = cls._parameters()
        check_names(tensors, hints)
        fields = {name: _read(name, tensors[name], hint) for name, hint in hints.items()}
        return cls(**fields, optimized_for=optimized_for)

    def content_digest(self) -> bytes:
        """Returns the SHA-256 of kind and parameters: equal for equal strategy matrices of one kind.

        The setting that a mechanism was optimized for is no part of it.

        Example:
            >>> from tff_mf import BLT, Identity
            >>> blt = BLT(theta=[0.5], omega=[0.25])
            >>> blt.content_digest() == BLT(theta=[0.5], omega=[0.25]).content_digest() != Identity().content_digest()
            True

        Raises:
            InputTypeError: If the class has no kind of its own.
        """
        self.check_kind()
        digest = hashlib.sha256(self.kind.encode())
        for name, tensor in sorted(self.tensors().items()):
            digest.update(f"{name} {tensor.shape}".encode() + tensor.astype("<f8").tobytes())
        return digest.digest()

    def check_kind(self) -> None:
        """Raises unless the kind stands for exactly this class: a subclass may have another C."""
        if _KINDS.get(getattr(self, "kind", "")) is not type(self):
            raise InputTypeError(f"mechanism of the class {type(self).__name__} has no kind of its own: give it one.")

    @property
    def max_rounds(self) -> int | None:
        """Number of rounds that C is defined for; `None` for any number."""
        return None

    def check(self, rounds: int) -> int:
        """Returns `rounds` if C is defined for that many, else raises."""
        rounds = validation.whole("rounds", rounds)
        if self.max_rounds is not None and rounds > self.max_rounds:
            raise InputValueError(
                f"rounds={rounds} is more than the {self.max_rounds} that this {self.kind} mechanism is defined for: "
                "optimize one for as many rounds as will run."
            )
        return rounds

    @abc.abstractmethod
    def encoder(self, rounds: int) -> np.ndarray:
        """Returns C, lower-triangular, float64 `[rounds, rounds]`."""

    @abc.abstractmethod
    def inverse(self, rounds: int) -> np.ndarray:
        """Returns C⁻¹, lower-triangular, float64 `[rounds, rounds]`."""

    @abc.abstractmethod
    def cast_to_float32(self) -> Self:
        """Returns the mechanism with its parameters cast to float32, as the noise uses them.

        Privacy is accounted for the result: rounding a parameter changes C, and the released noise is correlated by
        the rounded C.
        """

    def recursion(self) -> Recursion:
        """Returns what a round of the noise computes.

        Without a recursion of its own, a mechanism keeps the noise of all earlier rounds:
        x_t = (z_t − Σ_{i<t} C_{t,i} x_i) / C_{t,t}.

        Raises:
            InputTypeError: If the mechanism has no last round.
        """
        if self.max_rounds is None:
            raise InputTypeError(
                f"mechanism of kind {self.kind!r} has no last round, so the rows of its C cannot be stored: give it "
                "max_rounds, or a recursion."
            )
        return of_rows(rows_of(self.encoder(self.max_rounds)))


def check_names(tensors: Mapping[str, np.ndarray], expected: Sequence[str] | Mapping[str, Any]) -> None:
    """Raises unless tensors have the expected names."""
    if set(tensors) != set(expected):
        raise InputValueError(f"its tensors are {sorted(tensors)} instead of {sorted(expected)}")


def whole_number(name: str, tensor: np.ndarray) -> int:
    """Returns the whole number that a tensor holds."""
    value = _number(name, tensor)
    if not value.is_integer() or abs(value) > _LARGEST_WHOLE:
        raise InputValueError(f"its tensor {name!r} must be one whole number")
    return int(value)


def _number(name: str, tensor: np.ndarray) -> float:
    if tensor.shape != (1,):
        raise InputValueError(f"its tensor {name!r} must be one number")
    return float(tensor[0])


def _read(name: str, tensor: np.ndarray, hint: Any) -> Any:
    """Returns a field of this annotation."""
    if hint is int:
        return whole_number(name, tensor)
    if hint is float:
        return _number(name, tensor)
    if hint is np.ndarray:
        matrix = np.array(tensor)
        matrix.flags.writeable = False
        return matrix
    if tensor.ndim != 1:
        raise InputValueError(f"its tensor {name!r} has {tensor.ndim} axes instead of one")
    return tuple(tensor.tolist())


def _comparable(value: Any) -> Any:
    """Returns a hashable value that is equal for equal fields; for unknown types, one that equals no other."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    return value if isinstance(value, Hashable) else object()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ToeplitzMechanism(Mechanism):
    """A strategy matrix that is constant along each diagonal."""

    @abc.abstractmethod
    def coefficients(self, rounds: int) -> np.ndarray:
        """Returns the first column of C, float64 `[rounds]`."""

    @abc.abstractmethod
    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        """Returns the first column of C⁻¹, float64 `[rounds]`."""

    def encoder(self, rounds: int) -> np.ndarray:
        return matrices.lower_toeplitz(self.coefficients(validation.dense(self.check(rounds))))

    def inverse(self, rounds: int) -> np.ndarray:
        return matrices.lower_toeplitz(self.inverse_coefficients(validation.dense(self.check(rounds))))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BandedMechanism(Mechanism):
    """A strategy matrix with entries only on its main diagonal and the `bands` − 1 diagonals below.

    If it is also constant along each diagonal, make it a `ToeplitzMechanism`, for which sensitivity is tighter.
    """

    @property
    @abc.abstractmethod
    def bands(self) -> int:
        """Number of diagonals b̂, including the main one."""

    @abc.abstractmethod
    def diagonals(self, rounds: int) -> np.ndarray:
        """Returns the diagonals of C, float64 `[bands, rounds]`.

        Entry `[i, t]` is C_{t+i,t}: a column holds a column of C, from the main diagonal downwards.
        Entries with t + i ≥ rounds belong to no row and are ignored.
        """

    def checked_diagonals(self, rounds: int) -> np.ndarray:
        """Returns the diagonals down to the last one that is not all zero, and 0 below the last row of C."""
        claimed = matrices.shaped("diagonals", self.diagonals(validation.listable(rounds)), (self.bands, rounds))
        diagonals = np.array(claimed[:rounds])
        for offset, diagonal in enumerate(diagonals):
            diagonal[rounds - offset :] = 0
        return diagonals[: 1 + int(np.max(np.flatnonzero(diagonals.any(axis=1)), initial=0))]

    def encoder(self, rounds: int) -> np.ndarray:
        return matrices.of_diagonals(self.diagonals(validation.dense(self.check(rounds))))

    def inverse(self, rounds: int) -> np.ndarray:
        return in_order.solve(self.encoder(rounds), np.eye(rounds))

    def recursion(self) -> Recursion:
        """x_t = (z_t − Σ_{0<i<b̂} C_{t,t−i} x_{t−i}) / C_{t,t}: the last b̂ − 1 rows of noise are kept."""
        return (
            super().recursion() if self.max_rounds is None else of_rows(of_diagonals(self.diagonals(self.max_rounds)))
        )
