"""The journal of a deployment: what happened, in an order that cannot be changed unnoticed."""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ._errors import RefusedError
from ._files import read_regular, sync

# Fields of each kind of entry.
_EVENTS: dict[str, dict[str, Any]] = {
    "opened": {"run": str, "bundle": str, "state": str},
    "begun": {"round": int, "attempt": int, "devices": list, "until": float | None},
    "released": {"round": int, "state": str, "attempt": int, "counts": dict},
    "ended": {"rounds": int},
}


class Journal:
    """Events, one line of JSON each, written to disk before the next step; a last line that was cut off is dropped.

    Each line holds the SHA-256 of all lines before it, so that a line that was changed, removed or inserted is noticed.

    Args:
        path: The journal's file; made by the first `add`.

    Attributes:
        entries: The events, in order.
        head: SHA-256 of all lines; an empty text before the first.

    Raises:
        RefusedError: If the file was changed.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        content = read_regular(path) if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        self.entries: list[dict[str, Any]] = []
        self.head = ""
        try:
            for line in whole.splitlines(keepends=True):
                entry = json.loads(line)
                if entry.pop("after") != self.head or not _is_event(entry):
                    raise ValueError("a line does not follow from those before it")
                self._append(entry, line)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RefusedError(f"journal={str(path)!r} was changed ({error}): put it back as it was.") from error

    def add(self, kind: str, **about: Any) -> None:
        """Adds an event, and returns once it would survive a power cut."""
        entry = {"kind": kind, **about}
        line = json.dumps({**entry, "after": self.head}).encode() + b"\n"
        with open(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        sync(self._path.parent)
        self._append(entry, line)

    def last(self, kind: str) -> dict[str, Any] | None:
        """Returns the last event of a kind."""
        return next((entry for entry in reversed(self.entries) if entry["kind"] == kind), None)

    def _append(self, entry: dict[str, Any], line: bytes) -> None:
        self.entries.append(entry)
        self.head = hashlib.sha256(self.head.encode() + line).hexdigest()


def _is_event(entry: Mapping[str, Any]) -> bool:
    fields = _EVENTS[entry["kind"]]
    whole = entry.keys() == {"kind", *fields} and all(isinstance(entry[name], kind) for name, kind in fields.items())
    return whole and all(isinstance(device, str) for device in entry.get("devices", ()))
