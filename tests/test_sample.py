"""What CI leaves to `make check-long`: a fixed choice, in which every value of every parameter stays."""

import functools
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
TESTS = """
import pytest

@pytest.mark.sampled
@pytest.mark.parametrize("one", range(5))
@pytest.mark.parametrize("other", "abc")
@pytest.mark.parametrize("third", [None, 7])
def test_values(one, other, third): pass

@pytest.mark.sampled(together=2)
@pytest.mark.parametrize("one", range(5))
@pytest.mark.parametrize("other", "abc")
@pytest.mark.parametrize("third", [None, 7])
def test_pairs(one, other, third): pass

@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("number", range(7))
def test_most(number): pass

@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("number", range(2))
def test_few(number): pass

@pytest.mark.long
def test_long(): pass

@pytest.mark.once
def test_once(): pass

def test_short(): pass
"""
OF_THE_LAYER = """
import pytest

@pytest.mark.parametrize("number", range(7))
def test_layer(number): pass
"""


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """A function from flags to the tests that run with them, in an environment with TensorFlow or without."""
    folder = tmp_path_factory.mktemp("tests")
    (folder / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (folder / "test_some.py").write_text(TESTS)
    (folder / "tff_mf").mkdir()
    (folder / "tff_mf" / "test_layer.py").write_text(OF_THE_LAYER)
    (folder / "pyproject.toml").write_text((HERE.parent / "pyproject.toml").read_text())
    (folder / "tensorflow.py").touch()

    @functools.cache
    def collect(*flags):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *flags, "."]
        printed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
        return [line.split("::")[1] for line in printed.splitlines() if "::" in line]

    return collect


def cases(names, test):
    return {tuple(name[:-1].split("[")[1].split("-")) for name in names if name.startswith(f"{test}[")}


def test_a_sample_has_every_value_and_the_same_one_each_time(collected):
    names = collected()
    assert names == collected.__wrapped__()
    found = cases(names, "test_values")
    assert [set(values) for values in zip(*found, strict=True)] == [{"None", "7"}, set("abc"), set("01234")]
    # As few as there are values of the largest parameter, and none of the others' values nearly all the time.
    assert len(found) == 5
    assert all(1 <= sum(other in case for case in found) <= 2 for other in "abc")
    pairs = cases(names, "test_pairs")
    assert len(pairs) < 30
    for first, second in ((0, 1), (0, 2), (1, 2)):
        sizes = (2, 3, 5)
        assert len({(case[first], case[second]) for case in pairs}) == sizes[first] * sizes[second]


def test_a_sample_of_a_number_of_cases_is_spread_over_all(collected):
    assert cases(collected(), "test_most") == {("0",), ("2",), ("4",)}
    assert cases(collected(), "test_few") == {("0",), ("1",)}


def test_nothing_is_left_out_of_the_long_check(collected):
    names = collected("--long")
    assert len(cases(names, "test_most")) == 7
    assert cases(names, "test_layer") == {(str(number),) for number in range(7)}
    assert cases(collected(), "test_layer") == {("0",), ("3",), ("6",)}
    assert len(cases(names, "test_values")) == len(cases(names, "test_pairs")) == 30
    assert {"test_long", "test_once", "test_short"} <= set(names)
    assert not {"test_long", "test_once"} & set(collected())
    assert "test_short" in collected()
