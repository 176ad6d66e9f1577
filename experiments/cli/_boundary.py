"""Contexts and groups of commands: every value is checked, and a message about a wrong one is a line with its flag."""

import contextvars
import os
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, NoReturn

import rich_click as click
from click.core import ParameterSource

from tff_mf.base import validation
from tff_mf.base.errors import InputError

_LONGEST = 4095
_SHOWN = 60
# Longer values are cut in messages.
_READ = 160
_LONG = re.compile(rf"""(?<!\w)(?:'[^']{{{_READ},}}'|"[^"]{{{_READ},}}")(?!\w)|\S{{{_READ},}}""")
# They reorder the text on a terminal; other format characters are needed by some scripts.
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

# Quoted values name no argument; an apostrophe inside a word is not a quote.
_QUOTED = re.compile(r"""(?<!\w)((?:b?'[^']*')|(?:b?"[^"]*"))(?!\w)""")

_latest: contextvars.ContextVar[click.Context | None] = contextvars.ContextVar("latest", default=None)


class Context(click.RichContext):
    """The context of a command; the last one remains known after its end, for messages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _latest.set(self)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """Invokes a command, whose values were checked."""
        _check_values(self)
        return super().invoke(*args, **kwargs)


class Command(click.RichCommand):
    """A command whose values are checked."""

    context_class = Context


def invoked() -> click.Context | None:
    """Returns the context of the last invoked command, even after its end."""
    return _latest.get()


def _check_values(context: click.Context) -> None:
    """Refuses empty and endless texts, control characters, bytes that are no text, and numbers of more than 64 bits."""
    for each in context.command.params:
        typed = each.name and context.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
        given = context.params.get(each.name or "") if typed else None
        for value in given if isinstance(given, tuple) else (given,):
            _check(value, each, context)


def _check(value: Any, parameter: click.Parameter, context: click.Context) -> None:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    label = called(parameter, context)

    def refuse(why: str) -> NoReturn:
        raise click.UsageError(f"{label}={value!r} {why}", context)

    if isinstance(value, str):
        if not value.strip():
            refuse("is empty: give a value." if parameter.required else "is empty: give a value, or leave it out.")
        if len(os.fsencode(value)) > _LONGEST:
            refuse(f"has {len(value)} characters: paths and names have at most {_LONGEST}.")
        if any(unicodedata.category(each) in ("Cc", "Cs") or each in _REORDERING for each in value):
            refuse("has characters that are not text: leave them out, or rename the file.")
    elif isinstance(value, int) and abs(value) > validation.MAX_WHOLE:
        refuse(f"does not fit in 64 bits: give a number of at most {validation.MAX_WHOLE}.")


def called(parameter: click.Parameter, context: click.Context) -> str:
    """Returns the name of an option or an argument on the command line."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.make_metavar(context).strip("[]")


def unusable(error: OSError, context: click.Context | None) -> str | None:
    """Returns the message for a system error about a given path, or one inside it; `None` for other errors."""
    if context is None or not isinstance(error.filename, str):
        return None
    for each in context.command.params:
        value = context.params.get(each.name or "")
        if isinstance(value, str | os.PathLike) and value and error.filename.startswith(os.fspath(value)):
            where = "" if error.filename == os.fspath(value) else f"{error.filename!r}: "
            return (
                f"{called(each, context)}={os.fspath(value)!r} cannot be used: {where}{error.strerror}; name another."
            )
    return None


def line(message: str) -> str:
    r"""Returns a message as one printable line, with long values cut.

    Example:
        >>> print(line("--out='" + 5000 * "x" + "' is\nno\x1b[2J folder"))
        --out='xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx … xxxxxx' is no\x1b[2J folder
    """
    shown = _LONG.sub(lambda found: f"{found.group()[:_SHOWN]} … {found.group()[-7:]}", " ".join(message.split()))
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)


def with_origin(error: InputError) -> str:
    """Returns the message of an error, with the files of the keys in it that it does not name itself."""
    message = str(error)
    return message + _origin(message, error.sources)


def _names(text: str) -> list[str]:
    """Returns the names of arguments in a text: words with an underscore, and other words that `=` follows."""
    return list(dict.fromkeys(re.findall(r"(?<![\w.-])(?:[a-z]+_[a-z_]+|[a-z]+(?==))(?!\w)", text)))


def _origin(message: str, sources: Mapping[str, str]) -> str:
    """Returns the files of the keys in a message, unless it names them."""
    named: dict[str, list[str]] = {}
    for name in _names("".join(_QUOTED.split(message)[::2])):
        if name in sources and sources[name] not in message:
            named.setdefault(sources[name], []).append(name)
    return "".join(f" ({', '.join(names)}: from {source})" for source, names in named.items())
