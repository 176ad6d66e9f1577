"""Error messages with the names of flags in place of the names of Python arguments."""

import re
from collections.abc import Mapping

import click

from tff_mf.errors import InputError

# Quoted values are never rewritten; an apostrophe inside a word is not a quote.
_QUOTED = re.compile(r"""(?<!\w)((?:b?'[^']*')|(?:b?"[^"]*"))(?!\w)""")
# Names of arguments in functions that read or write files, or take a mechanism's name, whatever the flag is.
_BY_VALUE = re.compile(r"(?<![\w.-])(path|mechanism)=$")


def as_typed(error: InputError, context: click.Context | None) -> str:
    """Returns the message of an error in which arguments have the names of their flags, or of their keys in a file.

    A word with an underscore is always the name of an argument; any other word is one if `=` follows. A value from a
    file keeps its key, and the message names the file.

    Args:
        error: The error of a command.
        context: Context of the command; `None` leaves the message unchanged.
    """
    message = str(error)
    if context is None:
        return message
    flags = _flags(context)
    for name in error.sources:
        flags.pop(name, None)
    parts = _QUOTED.split(message)
    for index in range(0, len(parts), 2):
        parts[index] = _renamed(parts[index], flags)
    for index in range(1, len(parts), 2):
        parts[index - 1] = _flag_of_value(parts[index - 1], parts[index], error.sources, context)
    return _without_truth_values("".join(parts), context) + _origin(message, error.sources)


def _without_truth_values(text: str, context: click.Context) -> str:
    """Returns a text with `--this=False` as the flag that is typed for it, `--that`."""
    for option in context.command.params:
        if isinstance(option, click.Option) and option.is_flag and option.secondary_opts:
            on, off = max(option.opts, key=len), max(option.secondary_opts, key=len)
            text = text.replace(f"{on}=False", off).replace(f"{on}=True", on)
    return text


def _flags(context: click.Context) -> dict[str, str]:
    options = [each for each in context.command.params if isinstance(each, click.Option)]
    flags = [max(each.opts, key=len) for each in options]
    by_flag = {flag.removeprefix("--").replace("-", "_"): flag for flag in flags}
    return by_flag | {each.name: flag for each, flag in zip(options, flags, strict=True) if each.name}


def _renamed(text: str, flags: Mapping[str, str]) -> str:
    for name in _names(text):
        if name in flags:
            text = re.sub(rf"(?<![\w.-]){name}{'' if '_' in name else '(?==)'}(?!\w)", flags[name], text)
    return text


def _names(text: str) -> list[str]:
    """Returns the names of arguments in a text: words with an underscore, and other words that `=` follows."""
    return list(dict.fromkeys(re.findall(r"(?<![\w.-])(?:[a-z]+_[a-z_]+|[a-z]+(?==))(?!\w)", text)))


def _flag_of_value(before: str, quoted: str, sources: Mapping[str, str], context: click.Context) -> str:
    """Returns `before`, in which a final `path=` is replaced with the flag or argument whose value follows."""
    found = _BY_VALUE.search(before)
    if found is None or found[1] in sources:
        return before
    for argument in context.command.params:
        if isinstance(argument, click.Argument) and repr(context.params.get(argument.name or "")) == quoted:
            return f"{before[: found.start()]}{argument.human_readable_name}="
    flags = _flags(context)
    for name, value in context.params.items():
        if name in flags and value and repr(value) == quoted:
            return f"{before[: found.start()]}{flags[name]}="
    return before


def _origin(message: str, sources: Mapping[str, str]) -> str:
    """Returns the files of the keys in a message, unless it names them."""
    named: dict[str, list[str]] = {}
    for name in _names("".join(_QUOTED.split(message)[::2])):
        if name in sources and sources[name] not in message:
            named.setdefault(sources[name], []).append(name)
    return "".join(f" ({', '.join(names)}: from {source})" for source, names in named.items())
