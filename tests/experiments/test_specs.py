"""What specifications plan: the papers' tables what the papers say, at full size."""

import itertools

import pytest

from tff_mf.base.errors import InputError
from tff_mf.experiments import compare

from .shared import result_of

SMALL = """
title = "A small table"

[run]
rounds = 40
clients_per_round = 2
min_sep = 2
max_participations = 20
delta = 1e-6
model = "conv"
vocab_size = 100
embedding_size = 4
units = 4
max_examples = 4
evaluate_every = 8
evaluation_examples = 20
"""


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFF_MF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def written(tmp_path, text):
    path = tmp_path / "table.toml"
    path.write_text(SMALL + text)
    return path


@pytest.fixture(scope="module")
def full(own_cache):
    """The runs of every specification at full size."""
    return {name: compare.read(compare.SPECS.file(name)) for name in compare.SPECS.names()}


def planned(tmp_path, text, **more):
    return compare.read(written(tmp_path, text), **more)


def test_lists_are_multiplied_within_a_grid_and_grids_are_added(tmp_path):
    grids = """
    epsilon = 4.0
    [[grid]]
    mechanism = "identity"
    seed = [0, 1]
    epsilon = [2, 8.0]
    [[grid]]
    mechanism = "blt"
    buffers = [2, 3]
    """
    runs = planned(tmp_path, grids)
    assert len(runs) == len({run.name for run in runs}) == 6
    assert {run.label for run in runs} == {"identity", "blt, buffers 2", "blt, buffers 3"}
    assert {(run.settings.seed, run.privacy) for run in runs if run.label == "identity"} == set(
        itertools.product([0, 1], [("epsilon", 2.0), ("epsilon", 8.0)])
    )
    assert [run.name for run in planned(tmp_path, grids)] == [run.name for run in runs]


def test_equal_settings_are_one_run_and_other_settings_or_data_another(tmp_path):
    assert len(planned(tmp_path, "epsilon = 4.0\n[[grid]]\nseed = [1, 1]\n[[grid]]\nseed = 1\n")) == 1
    texts = [f"epsilon = 4.0\nclip_norm = {clip}\n" for clip in (1.0, 1.0, 2.0)]
    assert len({planned(tmp_path, text)[0].name for text in texts}) == 2
    data = [{"pydoc": tmp_path / name} for name in ("one.sqlite", "two.sqlite")]
    assert len({planned(tmp_path, texts[0], data_of=files)[0].name for files in data}) == 2


def one(runs, label, **settings):
    (found,) = [
        run
        for run in runs
        if run.label == label and all(getattr(run.settings, name) == value for name, value in settings.items())
    ]
    return found


# A row of each table: its label and what is chosen of it, its settings, and what the paper has for it.
TABLES = [
    (
        "banded-table-4", "Band MF", {"epsilon": 2.0},
        {"cohort": 1000, "server_learning_rate": 0.5882}, {"test_accuracy": 23.19},
    ),

    (
        "banded-table-5", "Band MF, w/ ampl.", {"bands": 18},
        {"server_learning_rate": 0.5882, "noise_multiplier": pytest.approx(0.64708 * 6**0.5, abs=1e-5)},
        {"epsilon": 2.0},
    ),

    (
        "kairouz-table-3", "DP-FTRL", {"noise_multiplier": 2.33, "seed": 4},
        {"mechanism": "tree-vanilla", "server_momentum": 0, "server_learning_rate": 3.0, "clip_norm": 0.3},
        {"test_accuracy": 15.46, "epsilon": 8.5},
    ),
    # McMahan et al. (2024), table 1.
    (
        "blt-table-1", "BLT (nbuf=2,k=1)", {"epsilon": 8.0},
        {"max_participations": 6}, {"test_accuracy": 24.64, "max_loss": 11.80},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "label", "chosen", "settings", "published"), TABLES)
def test_rows_of_tables_have_the_settings_and_results_of_the_papers(full, name, label, chosen, settings, published):
    row = one(full[name], label, **chosen)
    assert {field: getattr(row.settings, field) for field in settings} == settings
    assert published.items() <= row.published.items()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[[grid]]\nlabel = "A"\nepsilon = 2.0\nclip_norm = [1.0, 2.0]\n', ["label='A'", "two different runs"]),
        ('[[grid]]\nlabel = ""\nepsilon = 2.0\n', ["label=''"]),
        ('[[grid]]\npublished = { accuracy = "3" }\nepsilon = 2.0\n', ["published=", "'3'"]),
        ('[[grid]]\npreset = "choquette"\nepsilon = 2.0\n', ["preset='choquette'"]),
        ("[[grid]]\noptimize = { roundz = 2 }\nepsilon = 2.0\n", ["'roundz'", "'rounds'"]),
        ("[[grid]]\noptimize = { max_participations = 99 }\nepsilon = 2.0\n", ["99"]),
    ],
)
def test_wrong_keys_of_tables_are_named(tmp_path, text, named):
    with pytest.raises(InputError) as caught:
        planned(tmp_path, text)
    for part in named:
        assert part in str(caught.value)


def test_a_dry_run_counts_what_will_run(tmp_path):
    path = written(tmp_path, '[[grid]]\nepsilon = [2.0, 8.0]\nmechanism = "banded"\nbands = 8\n')
    assert result_of("compare", path, "--dry-run") == {"runs": 2, "rounds": 80, "client_updates": 160}
