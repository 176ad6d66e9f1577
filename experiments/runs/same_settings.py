"""Whether a run that is resumed has the settings that it began with."""

from collections.abc import Mapping
from typing import Any

from ...base.errors import InputValueError


def check_same(given: Mapping[str, Any], begun: Mapping[str, Any], *, run: str) -> None:
    """Raises unless the settings of a run are those that it began with.

    `run.json`, `configuration.toml` and the description in the run's checkpoints are compared by this function.

    Args:
        given: The settings now, by name.
        begun: The settings that the run began with, by name, as read from its folder.
        run: The run's folder, or the file with `begun`, for the message.

    Raises:
        InputValueError: If a setting differs, or is in only one of them.

    Example:
        >>> check_same({"rounds": 8}, {"rounds": 8}, run="out")
        >>> check_same({}, {"rounds": 8}, run="out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: rounds=… missing, a setting that the run in 'out' began with, 8: ...
        >>> check_same({"rounds": 9}, {"rounds": 8}, run="out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: rounds=9 is not the setting that the run in 'out' began with, 8: ...
    """
    for name in {**given, **begun}:
        if given.get(name) != begun.get(name):
            now = f"{name}={given[name]!r} is not the" if name in given else f"{name}=… missing, a"
            then = repr(begun[name]) if name in begun else "which has none"
            raise InputValueError(
                f"{now} setting that the run in {run!r} began with, {then}: resume it with the same settings, or start "
                "another run in another folder."
            )
