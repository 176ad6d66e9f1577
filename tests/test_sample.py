"""What CI leaves to `make check-long`: a fixed choice, in which every value of every parameter stays."""

import dataclasses
import itertools
import pathlib
import runpy
import types

import pytest

SAMPLE = runpy.run_path(str(pathlib.Path(__file__).with_name("conftest.py")))["sample"]
VALUES = {"one": range(5), "other": "abc", "third": [None, 7]}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """What a test of a matrix is, for the sample."""

    callspec: types.SimpleNamespace


@pytest.fixture
def cases():
    matrix = itertools.product(*VALUES.values())
    return [Case(types.SimpleNamespace(params=dict(zip(VALUES, values, strict=True)))) for values in matrix]


@pytest.mark.parametrize(("together", "fewer_than"), [(1, 6), (2, 30)])
def test_a_sample_has_every_value_or_pair_of_values(cases, together, fewer_than):
    chosen = SAMPLE(cases, together=together)
    assert chosen == SAMPLE(cases, together=together)
    assert len(chosen) < fewer_than
    for names in itertools.combinations(VALUES, together):
        found = {tuple(case.callspec.params[name] for name in names) for case in chosen}
        assert found == set(itertools.product(*(VALUES[name] for name in names)))


def test_a_sample_of_a_number_of_cases_is_spread_over_all():
    assert SAMPLE(list(range(7)), most=3) == [0, 2, 4]
    assert SAMPLE([0, 1], most=3) == [0, 1]
