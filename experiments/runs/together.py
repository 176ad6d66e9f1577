"""Checks that are made all at once: whoever is refused learns everything that is wrong, and not one thing a start."""

from collections.abc import Callable, Iterable, Sequence

from tff_mf.base.errors import InputError, InputValueError


class TogetherError(InputValueError):
    """Several values that are wrong at once.

    Attributes:
        errors: What is wrong with each.
    """

    def __init__(self, errors: Sequence[InputError]) -> None:
        numbered = (f"({number}) {error}" for number, error in enumerate(errors, start=1))
        super().__init__(" ".join(numbered))
        self.errors = errors
        self.sources = {name: source for error in errors for name, source in error.sources.items()}


def check_together(checks: Iterable[Callable[[], object]]) -> None:
    """Makes all checks, and raises what they raised: a single error as it is.

    Example:
        >>> def refuse(text):
        ...     raise InputValueError(text)
        >>> check_together([lambda: refuse("rounds=0."), lambda: None, lambda: refuse("delta=2.")])
        Traceback (most recent call last):
        tff_mf.experiments.runs.together.TogetherError: (1) rounds=0. (2) delta=2.
    """
    found: dict[str, InputError] = {}
    for check in checks:
        try:
            check()
        except TogetherError as error:
            found |= {str(each): each for each in error.errors}
        except InputError as error:
            found[str(error)] = error
    if len(found) > 1:
        raise TogetherError(list(found.values()))
    for error in found.values():
        raise error
