"""Inputs made from valid ones: changed bytes, and changed values in structures that stay readable."""

import copy
import random
from typing import Any

_WORDS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"null",
    b"NaN",
    b"1e999",
    b"-1",
    b"0",
    b"\x00",
    b"\xff\xff\xff\xff",
)
_WORDS += (b"\r", b"\n", b"[[", b"=", b"'", b"9" * 400, b"\xe2\x80\xa8", b"\xed\xa0\x80", b"\x80" * 10, b"[" * 3000)
VALUES = (None, True, False, 0, 1, -1, 2, 2**31, 2**63, 10**30, 10**400, -(10**30), 0.0, -0.0, 0.5, 1e-320, 1e308)
VALUES += (float("nan"), float("inf"), -float("inf"), "", "x", "0", "1e9999", "\x00", "\ud800", "٣", "a" * 5000)
VALUES += ([], [1], [[]], {}, {"a": 1}, [float("nan")], (), b"x", 1j)


def of_bytes(data: bytes, generator: random.Random) -> bytes:
    """Returns bytes with one to four changes."""
    found = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(len(found) + 1)
        kind = generator.randrange(7)
        if kind == 0 and found:
            found[place % len(found)] ^= 1 << generator.randrange(8)
        elif kind == 1 and found:
            found[place % len(found)] = generator.randrange(256)
        elif kind == 2:
            del found[place:]
        elif kind == 3:
            del found[place : place + generator.randint(1, 16)]
        elif kind == 4:
            found[place:place] = generator.choice(_WORDS)
        elif kind == 5:
            start = generator.randrange(len(found) + 1)
            found[place:place] = found[start : start + generator.randint(1, 64)]
        else:
            # Like the numbers in headers: sizes and offsets of eight bytes.
            found[place : place + 8] = generator.choice((0, 1, 2**31, 2**63 - 1, 2**64 - 1)).to_bytes(8, "little")
    return bytes(found)


def of_structure(value: Any, generator: random.Random, allowed: tuple[type, ...] = (object,)) -> Any:
    """Returns a structure of dictionaries and lists with one or two parts replaced, left out, doubled or renamed."""
    found = copy.deepcopy(value)
    choices = [each for each in VALUES if isinstance(each, allowed)]
    for _ in range(generator.randint(1, 2)):
        found = _changed(found, generator, choices)
    return found


def _changed(value: Any, generator: random.Random, choices: list[Any]) -> Any:
    if isinstance(value, dict) and value and generator.random() < 0.9:
        key = generator.choice(list(value))
        kind = generator.randrange(8)
        if kind == 0:
            del value[key]
        elif kind == 1:
            value["unknown"] = value[key]
        else:
            value[key] = _changed(value[key], generator, choices)
        return value
    if isinstance(value, list) and value and generator.random() < 0.8:
        index = generator.randrange(len(value))
        kind = generator.randrange(8)
        if kind == 0:
            del value[index]
        elif kind == 1:
            value.append(copy.deepcopy(value[index]))
        else:
            value[index] = _changed(value[index], generator, choices)
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and generator.random() < 0.5:
        return generator.choice(
            (
                value + 1,
                value - 1,
                -value,
                value * 2,
                value * 10**6,
                f"{value}",
                value / 2 if abs(value) < 2**53 else 0.5,
            )
        )
    # A copy, since later mutations change it in place.
    return copy.deepcopy(generator.choice(choices))
