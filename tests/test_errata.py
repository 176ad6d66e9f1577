"""docs/errata.md: its tables are what benchmarks/errata.py computes, and the package agrees with both."""

import importlib
import itertools
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
from tests.tff_mf.samplings import cyclic_event
from tff_mf import MinSep, SingleParticipation
from tff_mf.experiments.cli import cli

HERE = pathlib.Path(__file__).parent.parent
PAGE = (HERE / "docs" / "errata.md").read_text()
STORED = json.loads((HERE / "docs" / "results" / "errata.json").read_text())

sys.path.insert(0, str(HERE / "benchmarks"))
errata, first, kairouz, blt, others = map(
    importlib.import_module, ("errata", "_first_principles", "_errata_kairouz", "_errata_blt", "_errata_others")
)
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


def test_the_page_repeats_figures_of_the_long_table():
    shown = " ".join(PAGE.split())
    for setting, sigma in (("6a MNIST", "4"), ("6b CIFAR-10", "10"), ("6c EMNIST", "8")):
        row = next(row for row in cells("kairouz-tables-6-and-7") if (row[0], row[6]) == (setting, sigma))
        assert f"between {row[9]} and {row[10]}, not {row[7]}" in shown


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


def test_what_the_estimators_release_is_as_sensitive_as_the_page_says():
    rounds, epoch = 64, 8
    patterns = np.arange(epoch)[:, None] + np.arange(0, rounds, epoch)
    indicator = np.zeros((rounds, epoch))
    indicator[patterns, np.arange(epoch)[:, None]] = 1
    # Without variance reduction: rows of B add nodes up, and the release has the covariance BBᵀ.
    nodes = first.node_matrix(rounds)
    levels = np.concatenate([np.full(rounds >> level, 2**level) for level in range(rounds.bit_length())])
    ends = np.concatenate([(np.arange(rounds >> level) + 1) << level for level in range(rounds.bit_length())])
    decoder = np.zeros((rounds, len(nodes)))
    for total, node in itertools.product(range(1, rounds + 1), range(len(nodes))):
        size, end = int(levels[node]), int(ends[node])
        # A digit 1 of t stands for the node of that size that ends where t without its lower digits does.
        decoder[total - 1, node] = bool(total & size) and end == total // size * size
    assert np.array_equal(decoder @ nodes, np.tri(rounds))
    sums = np.tri(rounds) @ indicator
    squares = np.sum(sums * np.linalg.solve(decoder @ decoder.T, sums), axis=0)
    assert squares == pytest.approx(first.squared_counts(patterns, rounds, vanilla=True))
    # The estimator from below reveals more, and all nodes most.
    online = np.sum(np.square(tff_mf.Tree(rounds, variant="online").encoder(rounds) @ indicator), axis=0)
    full = np.sum(np.square(nodes @ indicator), axis=0)
    assert np.all(squares < online)
    assert np.all(online < full)
    assert full == pytest.approx(first.squared_counts(patterns, rounds))


def test_the_noise_of_theorem_d1_does_not_suffice():
    epsilon, delta = 1.0, 1e-6
    # Three rounds: ⌈lg 3⌉ = 2 nodes hold the first, and all nodes are released.
    sigma = math.sqrt(2 * math.log(1 / delta)) / epsilon
    schema = SingleParticipation()
    assert tff_mf.sensitivity(tff_mf.Tree(3), 3, schema) ** 2 == pytest.approx(2)
    exact = tff_mf.epsilon(tff_mf.Tree(3), 3, schema, noise_multiplier=sigma, delta=delta)
    assert exact == pytest.approx(1.148, abs=5e-4)
    assert cells("kairouz-noise-of-theorems")[2] == ("1", "1.148", "0.790")


@pytest.mark.parametrize(("rounds", "min_sep", "most", "squares"), [(430, 91, 4, 43), (2350, 437, 5, 92)])
def test_trees_of_table_2(rounds, min_sep, most, squares):
    for each in (min_sep, min_sep + 1):
        schema = MinSep(min_sep=each, max_participations=most)
        assert tff_mf.zcdp_rho(tff_mf.Tree(rounds), rounds, schema, noise_multiplier=7) == pytest.approx(squares / 98)
    printed = {43: ("1.33", "11.27"), 92: ("0.94", "9.29")}[squares]
    sigma = {43: 4.03, 92: 7}[squares]
    rho = squares / (2 * sigma**2)
    epsilon = first.epsilon_of(rho, 1e-10)
    assert (f"{first.rounded_up(rho, 2):.2f}", f"{first.rounded_up(epsilon, 2):.2f}") == printed


@pytest.mark.parametrize("row", blt.TABLE_2, ids=str)
def test_blts_of_table_2_are_rounded_up_with_min_sep_as_the_rounds_between(row):
    _, matrix, sigma, rounds, min_sep, most, rho, digits, epsilon = row
    ours = {}
    for each in (min_sep, min_sep + 1):
        schema = MinSep(min_sep=each, max_participations=most)
        run = tff_mf.guarantee(tff_mf.BLT.production(matrix), rounds, schema, noise_multiplier=sigma)
        ours[each] = (first.rounded_up(run.zcdp_rho, digits), first.rounded_up(run.epsilon(1e-10), 2))
    assert ours[min_sep + 1] == (rho, epsilon)
    assert ours[min_sep] == (rho, epsilon) or row[0] in ("pt-PT", "id-ID")


def test_the_bound_of_remark_c1_is_tight_for_table_1_and_nowhere_else_that_the_page_names():
    for rounds, min_sep, pattern in blt.WITNESSES:
        schema = MinSep(min_sep=min_sep, max_participations=len(pattern))
        assert schema.allows(pattern)
        found = first.squared_counts([pattern], rounds)[0]
        assert tff_mf.sensitivity(tff_mf.Tree(rounds), rounds, schema) ** 2 == pytest.approx(found)
    earliest = first.squared_counts([[342 * each for each in range(6)]], 2052)[0]
    schema = MinSep(min_sep=342, max_participations=6)
    assert tff_mf.sensitivity(tff_mf.Tree(2052), 2052, schema) ** 2 == pytest.approx(earliest) == 118


def test_algorithm_5_as_printed_has_the_wrong_sign():
    theta, inverse = np.array([0.99, 0.6]), np.array([0.9, 0.3])
    omega = -blt._output_scale(theta, inverse)
    # Coefficients of C⁻¹ are sums of powers of the decays θ̂: they solve the recurrence that has these roots.
    coefficients = tff_mf.BLT(theta=theta, omega=omega).inverse_coefficients(12)
    _, one, two = np.poly(inverse)
    assert coefficients[3:] == pytest.approx(-one * coefficients[2:-1] - two * coefficients[1:-2], abs=1e-12)


def test_algorithm_3_of_the_supplement_is_below_the_sensitivity():
    for name, _, true, twice, once in cells("banded-algorithm-3"):
        assert float(once) >= float(true)
        assert (float(twice) < float(true)) == (name != "identity")
    schema = MinSep(min_sep=1, max_participations=4)
    dense = tff_mf.Dense(matrix=np.tril(np.ones((4, 4))))
    assert f"{tff_mf.sensitivity(dense, 4, schema):.4f}" == cells("banded-algorithm-3")[0][2]


def test_printed_accounting_code_samples_with_more_than_probability_one():
    assert all(float(row[1]) > 1 for row in cells("banded-code")[1:])
    for bands, *_, probability, count in cells("banded-code"):
        event = cyclic_event(
            tff_mf.BandedToeplitz(column=[1.0] * bands),
            2052,
            population=342_477,
            clients_per_round=1000,
            noise_multiplier=1.0,
        )
        assert f"{event.event.sampling_probability:.4g}" == probability
        assert event.count == count
