"""Fuzzing that looks for inputs which reach new code: atheris, an optional extra (`pip install .[fuzz]`).

    .venv/bin/python tests/fuzz/guided.py all -runs=100000
    .venv/bin/python tests/fuzz/guided.py artifact -runs=100000

The readers are those of `readers.py`; inputs are bytes, and start from valid ones. Ends with an error, and writes the
input to a file, if a reader raises anything but an input error.
"""

import contextlib
import pathlib
import random
import subprocess
import sys
import tempfile

import atheris

with atheris.instrument_imports(include=["tff_mf"]):
    from readers import Reader, all_readers

from tff_mf.base.errors import InputError

_BYTES = (
    "artifact",
    "matrix",
    "comparison (TOML)",
    "run settings (TOML)",
    "preset (TOML)",
    "ledger",
    "participation log",
)
_BYTES += ("report (JSON)", "run.json", "answers.json", "checkpoint", "bundle", "policy of a bundle", "vocabulary")
_VALID = 40


def main() -> None:
    name = sys.argv.pop(1)
    if name == "all":
        # A process each: libFuzzer ends the one that it runs in.
        for each in _BYTES:
            subprocess.run([sys.executable, __file__, each, *sys.argv[1:]], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (reader,) = [each for each in all_readers(work) if each.name == name and name in _BYTES]
        corpus = work / "corpus"
        corpus.mkdir()
        for index in range(_VALID):
            (corpus / str(index)).write_bytes(reader.made(random.Random(index)))

        def one(data: bytes) -> None:
            _read(reader, data)

        atheris.Setup([*sys.argv, str(corpus)], one)
        atheris.Fuzz()


def _read(reader: Reader, data: bytes) -> None:
    with contextlib.suppress(InputError):
        reader.read(data)


if __name__ == "__main__":
    main()
