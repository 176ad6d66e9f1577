"""Modules as clients: their docstrings' sentences, read by one process a core."""

import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from ..output import progress as _progress
from ._extract import MIN_SENTENCES
from ._sources import Source

TRAIN, HELDOUT, TEST = SPLIT_NAMES = ("train", "heldout", "test")

_SECONDS_BETWEEN_LINES = 5.0
_BATCH = 32  # files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Client:
    """A module.

    Attributes:
        name: Its name.
        split: The split that it is in.
        examples: Title and tokens of each sentence.
    """

    name: str
    split: str
    examples: Sequence[tuple[str, str]]


def split_of(client_id: str) -> str:
    """Returns the split that a client is in: eight, one and one tenth of all, by its name alone.

    Example:
        >>> split_of("json.decoder")
        'train'
    """
    share = int.from_bytes(hashlib.sha256(client_id.encode()).digest()[:8], "big") / 2**64
    return TRAIN if share < 0.8 else HELDOUT if share < 0.9 else TEST


def read_clients(modules: Sequence[Source], *, progress: bool) -> list[Client]:
    """Returns the modules that have enough sentences, by name; a sentence belongs to the first module that has it.

    Args:
        modules: The files to read.
        progress: Whether to show on standard error how far the work is.
    """
    found = collections.defaultdict(list)
    for module, pairs in zip(modules, _extracted([module.path for module in modules], progress), strict=True):
        found[module.name].extend((module.name + inner, text) for inner, text in pairs)
    seen: set[str] = set()
    clients = []
    for name in sorted(found):
        if len(found[name]) < MIN_SENTENCES:
            continue
        own = {}
        for title, text in found[name]:
            if text not in seen:
                seen.add(text)
                own[text] = title
        if len(own) >= MIN_SENTENCES:
            examples = [(title, text) for text, title in own.items()]
            clients.append(Client(name=name, split=split_of(name), examples=examples))
    return clients


def shown(items: Iterable, total: int, what: str, progress: bool) -> Iterator:
    """Yields `items` and shows on standard error how many are done: a bar on a terminal, else a line now and then."""
    if not progress:
        yield from items
        return
    if sys.stderr.isatty():
        yield from _progress.steps(items, total, f"pydoc: {what}")
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"pydoc: {what}, {100 * done // total} %", file=sys.stderr, flush=True)
        yield item


def _extracted(paths: Sequence[str], progress: bool) -> Iterator[list[tuple[str, str]]]:
    """Yields what `_extract.extract` returns for each of `paths`, in their order, from one worker a core."""
    own = threading.local()
    workers: list[subprocess.Popen] = []

    def ask(batch: Sequence[str]) -> list[list[tuple[str, str]]]:
        if not hasattr(own, "worker"):
            own.worker = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}._extract"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for this process, which then ends its workers.
            )
            workers.append(own.worker)
        own.worker.stdin.write(json.dumps(batch) + "\n")
        own.worker.stdin.flush()
        answer = own.worker.stdout.readline()
        if not answer:
            raise RuntimeError(
                f"The process that reads {batch[0]!r} and {len(batch) - 1} more ended without an answer."
            )
        return json.loads(answer)

    batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        answers = pool.map(ask, batches)
        for answer in shown(answers, len(batches), "reading modules", progress):
            yield from answer
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()
        pool.shutdown()
        for worker in workers:
            worker.communicate()
