"""Lines of a report for people, figures with four digits rounded to the safe side, and texts that stay the same."""

import decimal
import re
import textwrap
from collections.abc import Iterable, Sequence

from ..output.text import seen

WIDTH = 79
_DIGITS = 4
# Text that begins a heading, a list or a table in Markdown at the beginning of a line.
_MARKUP = re.compile(r" (?=[#>*|]|`{3}|~{3}|[-+=_]+(?: |$)|\d+[.)](?: |$))")
# Text that begins a tag, a comment or a character reference in HTML, which Markdown passes on.
_HTML = re.compile(r"<(?=[A-Za-z/!?])|&(?=#|\w+;)")
_UNBROKEN = "\0"


def section(title: str, lines: Iterable[str]) -> str:
    """Returns a heading and lines below it."""
    return f"## {title}\n\n" + "\n".join(lines)


def paragraph(text: str) -> str:
    """Returns a text, wrapped."""
    return _wrapped(text, "")


def bullets(texts: Iterable[str]) -> list[str]:
    """Returns texts as a list, each wrapped below its dash."""
    return [f"- {_wrapped(text, '  ')[2:]}" for text in texts]


def below(text: str) -> str:
    """Returns a text, wrapped, as a further paragraph of the bullet above it."""
    return _wrapped(text, "  ")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table with columns as wide as their content; the first row is the head."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def digits(value: float | None, rounding: str) -> str:
    """Returns a figure with four significant digits.

    Args:
        value: The figure; `None` if there is none.
        rounding: `decimal.ROUND_FLOOR` or `decimal.ROUND_CEILING`, whichever claims less.

    Example:
        >>> digits(4.33329, decimal.ROUND_FLOOR), digits(1.2513, decimal.ROUND_CEILING), digits(10.0, "ROUND_CEILING")
        ('4.333', '1.252', '10')
    """
    if value is None:
        return "none"
    context = decimal.Context(prec=_DIGITS, rounding=rounding)
    shown = format(context.plus(decimal.Decimal(value)), "f")
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def tiny(value: float | None) -> str:
    """Returns a figure that may be far below 1, with three significant digits, rounded up.

    Example:
        >>> tiny(6.4571e-25), tiny(0.0)
        ('6.46e-25', '0')
    """
    if not value:
        return "none" if value is None else "0"
    return f"{decimal.Context(prec=3, rounding=decimal.ROUND_CEILING).create_decimal(value):.2e}"


def plain(value: float | None) -> str:
    """Returns a setting with all of its digits.

    Example:
        >>> plain(1.0), plain(0.25), plain(None)
        ('1', '0.25', 'none')
    """
    return "none" if value is None else repr(value).removesuffix(".0")


def _wrapped(text: str, indent: str) -> str:
    # An answer must not look like a part of the report: it has no line breaks, and no wrapped line begins with markup.
    line = _MARKUP.sub(_UNBROKEN, _HTML.sub(r"\\\g<0>", seen(text)))
    filled = textwrap.fill(
        line, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return filled.replace(_UNBROKEN, " ")


NOT_COVERED = [
    "the choice of settings, and any tuning",
    "the vocabulary, and anything else that was made from the clients' data before the run",
    "evaluation, which is on clients that do not train and is released without noise",
    "clients that evaluate, as far as their metrics give them away",
]

# Of a sampling that amplifies where cohorts are secret, and of which a report states no amplified ε at all.
NOT_IN_SECRET = (
    "an amplified ε: sampling={sampling!r} amplifies only where clients' rounds are drawn independently, once for the "
    "run, and stay secret; here they follow from a seed, and the cohorts are logged"
)

_ACCOUNTING = "float64 for the parameters as cast to float32; every figure is rounded up"

ARITHMETIC_IN_FLOATS = {
    "noise": "float32, continuous Gaussian; the standard deviation is rounded up",
    "accounting": _ACCOUNTING,
    "severity": "critical for an adversary who knows all other updates: low bits of float32 sums and normals can give "
    "away that a client took part, and the statement does not cover them",
}

ARITHMETIC_ON_GRID = {
    "noise": "integers in units of the grid: normals are rounded inside the recursion, and added to exact sums",
    "accounting": f"{_ACCOUNTING}; what the errors of the noise cost is part of μ, and what lies beyond its tail of δ",
    "severity": "theoretical: the proof takes the words of the generator for random ones",
}

AS_REAL_NUMBERS = (
    "the guarantee is about real numbers, and floats are released: an adversary who knows all other updates can read "
    "in low bits that a client took part; --grid auto closes that"
)

CAVEATS = (
    "This says how much anybody can learn about one client from everything that the training published, whatever else "
    "they know. A small number means: very little more than if the client had stayed away. It does not say that the "
    "model is fair or right, and it protects nobody from conclusions that hold for people like them. It holds only if "
    "what is assumed above is true, and only for this run: every further run on the same clients adds to it."
)
