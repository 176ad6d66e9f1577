"""Inputs that were once handled wrongly, by reader. They must be refused, or read."""

import json

from tff_mf import artifacts


def _lines(*entries: dict[str, object]) -> bytes:
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


_OPENED = {"kind": "opened", "version": 1, "run": "x", "bound_to": "y", "time": "2026-01-02T03:04:05+00:00"}

SEEDS: dict[str, list[object]] = {
    # A number of the manifest that is an infinity once it is read: a ValueError of json without a name.
    "artifact": [artifacts.pack('{"format_version":1,"kind":"identity","losses":1e999}', {})],
    # A RecursionError of tomllib.
    "run settings (TOML)": [
        b"preset = " + b"[" * 3000,
        # An OverflowError of float.
        b"[run]\nserver_learning_rate = 1" + b"0" * 400 + b"\n",
    ],
    "comparison (TOML)": [
        b"preset = " + b"[" * 3000,
        # Neither ε nor σ: a TypeError of a format.
        b"[run]\nrounds = 8\nclients_per_round = 2\ndelta = 1e-6\nmin_sep = 2\nmax_participations = 2\n",
        # More runs than fit in memory, from a small file.
        b"[run]\nrounds = 8\nclients_per_round = 2\ndelta = 1e-6\n[[grid]]\n"
        + b"".join(
            name + b" = [" + b", ".join(str(number).encode() for number in range(1, 60)) + b"]\n"
            for name in (b"buffers", b"bands", b"cohort", b"units", b"batch_size", b"max_examples", b"seed")
        ),
    ],
    # KeyErrors, and an AttributeError, of a preset without title, rows or conditions.
    "preset (TOML)": [b"", b'title = "x"\nrow = 3\n', b'title = "x"\n[[row]]\nsource = "y"\n', b"title = 3\n"],
    # A RecursionError of json.
    "ledger": [b"[" * 100_000, b'{"kind": ' + b"[" * 100_000],
    # Lines that no release writes: KeyErrors.
    "ledger, forged": [
        _lines(_OPENED, {"kind": "x"}),
        _lines(_OPENED, {"kind": "begun"}),
        _lines({"kind": "ended", "rounds": 1}),
        _lines({"version": 1}),
    ],
    "run.json": [b"[" * 100_000],
    "report (JSON)": [b"[" * 100_000],
    "checkpoint": [b"\xff" * 8, b"\x02" + bytes(7) + b"{}", b""],
}
