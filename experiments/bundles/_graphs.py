"""The program that `building` starts: builds the graphs of a bundle from the files of a folder."""

import json
import logging
import os
import pathlib
import sys
from typing import Any, TextIO

from tff_mf import registry
from tff_mf.base.errors import InputError

from ... import aggregators
from ..training import learning_process, task
from ._source import deployed_again
from .runner import TOKENIZE


class _Warnings(logging.Handler):
    """Sends warnings of this package to the process that waits."""

    def __init__(self, to: TextIO) -> None:
        super().__init__(logging.WARNING)
        self._to = to

    def emit(self, record: logging.LogRecord) -> None:
        _say(self._to, "warning", record.getMessage())


def main() -> None:
    folder, writer = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    # TFF's worker must not keep it open.
    os.set_inheritable(writer, False)
    with open(writer, "w", encoding="utf-8") as to:
        logging.getLogger("tff_mf").addHandler(_Warnings(to))
        try:
            registry.import_plugins()
            _say(to, "exported", _write(folder, to))
        except InputError as error:
            _say(to, "refused", str(error))


def _say(to: TextIO, kind: str, value: Any) -> None:
    to.write(json.dumps([kind, value]) + "\n")
    to.flush()


def _write(folder: pathlib.Path, to: TextIO) -> dict[str, Any]:
    settings, privacy, vocabulary = deployed_again(folder)
    _say(to, "step", "process")
    with aggregators.tff_session():
        language_task = task.build_task(settings, vocabulary)
        process, mean = learning_process.build_process(
            settings, privacy, language_task, loop=learning_process.DEVICE_LOOP
        )
        _say(to, "step", "graphs")
        exported = aggregators.export_process(
            process,
            folder,
            initial_weights=language_task.initial_weights,
            batch_size=settings.batch_size,
            client_epochs=settings.client_epochs,
            max_examples=settings.max_examples,
            aggregator=mean,
        )
        aggregators.export_computation(
            task.build_tokenizer(vocabulary), folder / TOKENIZE, inputs="sentences", outputs="examples"
        )
    return exported


if __name__ == "__main__":
    main()
