"""docs/papers.md: its tables are what benchmarks/errata.py computes, and the package agrees with both."""

import importlib
import json
import math
import pathlib
import re
import shlex
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf import MinSep
from tff_mf.experiments.cli import cli

HERE = pathlib.Path(__file__).parent.parent
PAGE = (HERE / "docs" / "papers.md").read_text()
STORED = json.loads((HERE / "docs" / "results" / "errata.json").read_text())

sys.path.insert(0, str(HERE / "benchmarks"))
errata = importlib.import_module("errata")
sys.path.pop(0)


def cells(name):
    """Returns the rows of a check below its header."""
    return errata.rows(name)[1:]


@pytest.mark.parametrize("name", errata.CHECKS)
def test_the_page_or_its_file_has_the_table_that_is_computed(name):
    if name in STORED:
        assert STORED[name] == json.loads(json.dumps(errata.rows(name)))
    else:
        assert errata.table(name) in PAGE
    assert f"{name}`" in PAGE


COMMANDS = {
    "show tree-full --rounds 4800": ("sensitivity", math.sqrt(798)),
    "account identity --epsilon 1": ("noise_multiplier", 4.22468),
    "account tree-full --noise-multiplier 7": ("zcdp_rho", 43 / 98),
}


@pytest.mark.parametrize("begin", COMMANDS)
def test_the_command_lines_of_the_page_print_its_figures(begin):
    (line,) = re.findall(rf"`tff-mf ({begin}[^`]*)`", PAGE)
    done = CliRunner().invoke(cli, [*shlex.split(line), "--json"])
    assert done.exit_code == 0, done.output
    key, value = COMMANDS[begin]
    assert json.loads(done.stdout)[key] == pytest.approx(value, rel=1e-6)


def rounded_up(value, digits):
    return math.ceil(value * 10**digits) / 10**digits


@pytest.mark.parametrize("row", errata.TABLE_2, ids=str)
def test_blts_of_table_2_are_rounded_up_with_min_sep_as_the_rounds_between(row):
    _, matrix, sigma, rounds, min_sep, most, rho, digits, epsilon = row
    ours = {}
    for each in (min_sep, min_sep + 1):
        schema = MinSep(min_sep=each, max_participations=most)
        run = tff_mf.guarantee(tff_mf.BLT.production(matrix), rounds, schema, noise_multiplier=sigma)
        ours[each] = (rounded_up(run.zcdp_rho, digits), rounded_up(run.epsilon(1e-10), 2))
    assert ours[min_sep + 1] == (rho, epsilon)
    assert ours[min_sep] == (rho, epsilon) or row[0] in ("pt-PT", "id-ID")


def test_algorithm_3_of_the_supplement_is_below_the_sensitivity():
    for name, _, true, twice, once in cells("banded-algorithm-3"):
        assert float(once) >= float(true)
        assert (float(twice) < float(true)) == (name != "identity")
    schema = MinSep(min_sep=1, max_participations=4)
    dense = tff_mf.Dense(matrix=np.tril(np.ones((4, 4))))
    assert f"{tff_mf.sensitivity(dense, 4, schema):.4f}" == cells("banded-algorithm-3")[0][2]
