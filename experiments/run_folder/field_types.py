"""Types and ranges of the fields of `run.json`: a file with a wrong value is refused by the name of the field."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tff_mf.errors import InputValueError

# More than the number of people, and small enough that no figure overflows.
MOST_CLIENTS = 10**12
_LARGEST = 1e100


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Type:
    words: str
    fits: Callable[[Any], bool]


def check(given: Mapping[str, Any]) -> None:
    """Raises unless every known field has the right type and range.

    Args:
        given: The fields, as read from JSON. Missing and unknown fields are not checked here.

    Raises:
        InputValueError: If one has not.

    Example:
        >>> check({"rounds": 8, "versions": None})
        Traceback (most recent call last):
        tff_mf.errors.InputValueError: versions=None must be an object of texts
    """
    for name, value in given.items():
        kind = _FIELDS.get(name)
        if kind is not None and not kind.fits(value):
            raise InputValueError(f"{name}={value!r:.80} must be {kind.words}")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts_by_name(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_text, value.values()))


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _or_none(kind: _Type) -> _Type:
    return _Type(words=f"{kind.words}, or null", fits=lambda value: value is None or kind.fits(value))


_COUNT = _Type(
    words=f"a whole number from 1 to {MOST_CLIENTS}", fits=lambda value: _whole(value) and 1 <= value <= MOST_CLIENTS
)
_SEED = _Type(words="a whole number of 64 bits", fits=lambda value: _whole(value) and -(2**63) <= value < 2**64)
_NUMBER = _Type(words=f"a number up to {_LARGEST}", fits=_number)
_TEXT = _Type(words="a text", fits=_text)
_TEXTS = _Type(words="a list of texts", fits=_list_of(_text))
_BY_NAME = _Type(words="an object of texts", fits=_texts_by_name)

_FIELDS: Mapping[str, _Type] = {
    **dict.fromkeys(("rounds", "min_sep", "max_participations", "clients_per_round", "cohort"), _COUNT),
    **dict.fromkeys(("restart_every", "population", "grid_bits", "grid_max_clients", "dimension"), _or_none(_COUNT)),
    **dict.fromkeys(("noise_multiplier", "delta", "clip_norm"), _NUMBER),
    **dict.fromkeys(("adaptive_count_stddev", "divisor"), _or_none(_NUMBER)),
    **dict.fromkeys(("participation", "mechanism_sha256", "adjacency", "sampler"), _TEXT),
    **dict.fromkeys(("cohorts", "evaluation_columns", "command"), _TEXTS),
    "insecure_seed": _or_none(_SEED),
    "simulation": _Type(words="true or false", fits=lambda value: isinstance(value, bool)),
    "released_without_noise": _Type(words="a list of objects of texts", fits=_list_of(_texts_by_name)),
    "settings": _Type(words="an object", fits=lambda value: isinstance(value, Mapping)),
    "versions": _BY_NAME,
}
