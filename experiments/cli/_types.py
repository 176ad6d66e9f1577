"""Types of options whose values are words: errors name the nearest word, and the shell completes them."""

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from tff_mf import validation
from tff_mf.accounting import ADJACENCIES

from ..configuration import mechanism_names
from ..configuration.grid import WORDS as GRID_WORDS
from ..configuration.settings import ALGORITHMS, ARCHITECTURES, SERVER_OPTIMIZERS, VALIDATION_SPLITS
from ..privacy import amplification
from ..sampling.settings import SAMPLING_KINDS, SCHEMAS

_LONGEST_METAVAR = 16


class Words(click.ParamType):
    """One of a few words."""

    name = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        listed = "|".join(self._words)
        return f"[{listed}]" if len(listed) <= _LONGEST_METAVAR else self.name.upper()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self._words:
            known = ", ".join(self._words)
            self.fail(f"{value!r} is none of {known}{validation.did_you_mean(str(value), self._words)}", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completed(self._words, incomplete)


class Named(click.ParamType):
    """A file, or one of a few words; whether it is valid is checked on use."""

    name = "name"

    def __init__(self, words: Callable[[], Sequence[str]]) -> None:
        # A function, because plugins register more names when a command runs.
        self._words = words

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [*_completed(self._words(), incomplete), CompletionItem(incomplete, type="file")]


class Known(click.ParamType):
    """One of a few words; a wrong one is refused on use, with the nearest word."""

    name = "name"

    def __init__(self, words: Callable[[], Sequence[str]]) -> None:
        self._words = words

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completed(self._words(), incomplete)


def _presets() -> list[str]:
    from ..configuration import presets

    return presets.names()


def _central_presets() -> list[str]:
    from ..central_training.settings import PRESETS

    return PRESETS.names()


class Spec(click.ParamType):
    """The name of a packaged specification; a wrong one is refused on use, with the nearest name."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from ..comparison import specs

        return _completed(specs.names(), incomplete)


class NumberOr(click.ParamType):
    """A number, or a word in its place."""

    def __init__(self, number: click.ParamType, *words: str) -> None:
        self.name, self._number, self._words = number.name, number, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | int | str:
        if value in self._words:
            return value
        try:
            return self._number.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is neither a valid {self.name} nor {' nor '.join(map(repr, self._words))}.", param, ctx
            )


def _completed(words: Sequence[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


ADJACENCY = Words(ADJACENCIES)
OBJECTIVE = Words(("rms", "max"))
WORKLOAD = Words(mechanism_names.WORKLOADS)
SAMPLING = Words(SAMPLING_KINDS)
SCHEMA = Words(SCHEMAS)
ALGORITHM = Words(ALGORITHMS)
MODEL = Words(ARCHITECTURES)
SERVER_OPTIMIZER = Words(SERVER_OPTIMIZERS)
VALIDATION_SPLIT = Words(VALIDATION_SPLITS)
DATASET = Named(lambda: ("pydoc", "stackoverflow", "synthetic", "sqlite:"))
MECHANISM = Named(lambda: (*mechanism_names.names(), *mechanism_names.production()))
AMPLIFIED = Words((*amplification.KINDS, amplification.BALLS_IN_BINS))
GRID = NumberOr(click.INT, *GRID_WORDS)
PRESET = Known(_presets)
CENTRAL_PRESET = Known(_central_presets)
SPEC = Spec()
