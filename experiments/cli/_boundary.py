"""The boundary of the command line: what is typed is checked, and what is refused is one line with field and file."""

import errno
import os
import re
import unicodedata
from typing import Any

import rich_click as click

from tff_mf.base import validation
from tff_mf.base.errors import InputError, InputValueError

# The machine lacks space or handles, which no other path mends.
SHORTAGES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)
_LONGEST = 4095
# Values of more characters are cut in messages, to so many.
_READ, _SHOWN = 160, 60
_LONG = re.compile(rf"""(?<!\w)(?:'[^']{{{_READ},}}'|"[^"]{{{_READ},}}")(?!\w)|\S{{{_READ},}}""")
# They reorder the text on a terminal; other format characters are needed by some scripts.
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# They name no field; an apostrophe inside a word is not a quote.
_QUOTED = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")


class Command(click.RichCommand):
    """A command whose texts and numbers are checked, and which refuses a path that cannot be used."""

    def invoke(self, ctx: click.Context) -> Any:
        """Invokes the command."""
        for name, given in ctx.params.items():
            for value in given if isinstance(given, tuple) else (given,):
                _check(name, value)
        try:
            return super().invoke(ctx)
        except OSError as error:
            given = [name for name, value in ctx.params.items() if _is_in(error.filename, value)]
            if not given or error.errno in SHORTAGES:
                raise
            raise InputValueError(
                f"{given[0]}={ctx.params[given[0]]!r} cannot be used: {error.filename}: {error.strerror}; name another."
            ) from error


def _is_in(path: object, given: object) -> bool:
    """Returns whether the path of a system's error is one that was given, or inside it."""
    return isinstance(path, str) and isinstance(given, str) and bool(given) and path.startswith(given)


def _check(name: str, value: Any) -> None:
    """Refuses empty and endless texts, characters that are no text, and numbers of more than 64 bits."""
    if isinstance(value, int) and abs(value) > validation.MAX_WHOLE:
        raise InputValueError(f"{name}={value} does not fit in 64 bits: at most {validation.MAX_WHOLE}.")
    if not isinstance(value, str):
        return
    if not value.strip():
        raise InputValueError(f"{name}={value!r} is empty: give a value, or leave it out.")
    if len(os.fsencode(value)) > _LONGEST:
        raise InputValueError(f"{name}={value!r} has {len(value)} characters: paths and names have at most {_LONGEST}.")
    if any(unicodedata.category(char) in ("Cc", "Cs") or char in _REORDERING for char in value):
        raise InputValueError(f"{name}={value!r} has characters that are not text: leave them out, or rename the file.")


def line(message: str) -> str:
    r"""Returns a message as one printable line, with long values cut.

    Example:
        >>> print(line("out='" + 5000 * "x" + "' is\nno\x1b[2J folder"))
        out='xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx … xxxxxx' is no\x1b[2J folder
    """
    shown = _LONG.sub(lambda long: f"{long.group()[:_SHOWN]} … {long.group()[-7:]}", " ".join(message.split()))
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)


def with_origin(error: InputError) -> str:
    """Returns the message of an error, with the files of the fields in it that it does not name itself."""
    message, origins = str(error), dict[str, list[str]]()
    for name, source in error.sources.items():
        # A word without an underscore may be no field, unless its value follows.
        end = r"(?!\w)" if "_" in name else "="
        if re.search(rf"(?<![\w.-]){name}{end}", _QUOTED.sub("", message)) and source not in message:
            origins.setdefault(source, []).append(name)
    return message + "".join(f" ({', '.join(names)}: from {source})" for source, names in origins.items())
