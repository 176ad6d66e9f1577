"""Text of others, shown so that nothing in it hides or reorders the rest; and figures, rounded up."""

import unicodedata

from tff_mf.numerics.digits import rounded_up

# Unicode categories of invisible characters, which can hide or reorder the visible ones; joiners cannot.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"


def seen(text: str) -> str:
    """Returns a text in one line, with a mark for each character that would hide or reorder the others.

    Example:
        >>> seen(f"us {chr(27)}[8m"), seen(f"{chr(0x202e)}ε≤0")
        ('us �[8m', '�ε≤0')
    """
    line = " ".join(text.split())
    return "".join(
        "\ufffd" if unicodedata.category(character) in _UNSEEN and character not in _JOINERS else character
        for character in line
    )


def up(value: float | None) -> str:
    """Returns a figure of a guarantee, rounded up; `None` in JSON is infinite."""
    return "∞" if value is None else rounded_up(value)
