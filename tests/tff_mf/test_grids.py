"""The grid: its bits, and the integers in which sums are exact."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 5, 2**20, 2**20 + 1, 2**22, 2**22 + 1, 4_050_748, 2**40])
def test_auto_takes_half_the_bits_of_the_dimension_and_five(dimension):
    bits = math.ceil(math.log2(dimension) / 2) + 5
    assert tff_mf.Grid.auto(dimension=dimension, max_clients=10).bits == min(max(bits, 14), 22)


@given(bits=st.integers(8, 26), max_clients=st.integers(1, 2**26))
def test_every_sum_fits(bits, max_clients):
    grid = tff_mf.Grid(bits=bits, max_clients=max_clients)
    largest = max_clients * 2**bits
    assert grid.largest_sum == largest <= 2**52
    assert (grid.integers == "int32") == (largest <= 2**31 - 1)
    modulus = 2**grid.bits_per_coordinate
    assert modulus // 2 < 2 * largest + 1 <= modulus


def test_the_largest_grid():
    assert tff_mf.Grid(bits=16, max_clients=2**36).integers == "int64"
