"""Damaged and forged files in every reader: read, or refused with an input error. `make fuzz` tries millions."""

import pathlib
import random
import sys
import tracemalloc

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from readers import all_readers, outcome
from seeds import SEEDS

INPUTS = 150
_MOST_BYTES = 200 * 2**20


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return {each.name: each for each in all_readers(tmp_path_factory.mktemp("readers"))}


def test_every_reader_takes_what_is_damaged_or_forged(readers):
    for name, reader in readers.items():
        generator = random.Random(f"short {name}")
        outcomes = [outcome(reader, reader.made(generator)) for _ in range(INPUTS)]
        assert [each for each in outcomes if not each.allowed] == []


@pytest.mark.parametrize("name", SEEDS)
def test_what_was_once_taken_badly(readers, name):
    for data in SEEDS[name]:
        tracemalloc.start()
        try:
            assert outcome(readers[name], data).allowed
            assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES
        finally:
            tracemalloc.stop()
