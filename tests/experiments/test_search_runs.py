"""A search by `tff-mf compare` is drawn once, and publishes the best run alone, whenever it is killed.

What a search costs is in tests/tff_mf/test_search.py.
"""

import collections
import itertools
import json
import math
import os
import pathlib
import signal

import forking
import msgspec
import numpy as np
import pytest
import searched_runs
from scipy import stats

import tff_mf
from tff_mf.experiments import compare, reports
from tff_mf.experiments.compare import search
from tff_mf.experiments.runs import names

from . import shared

HERE = pathlib.Path(__file__).parent
RATES = sorted(searched_runs.SCORES)
FINISHED = f"""
[run]
rounds = 9
clients_per_round = 2
min_sep = 3
max_participations = 3
delta = 1e-6
mechanism = "identity"
model = "conv"
vocab_size = 60
embedding_size = 4
units = 4
epsilon = 8.0
search = 2.0
dataset = "sqlite:DATA"

[search]
server_learning_rate = {RATES}
client_learning_rate = {{ low = 0.1, high = 10 }}
"""


@pytest.fixture
def spec(tmp_path):
    """A specification whose runs take no time, with data that nothing trains on."""
    data, path = tmp_path / "data.sqlite", tmp_path / "table.toml"
    shared.write_sentences(data, {("a", "train"): 2, ("b", "heldout"): 2, ("c", "test"): 2}, lambda: "the one of them")
    path.write_text(FINISHED.replace("DATA", str(data)))
    return path


@pytest.fixture
def at_once(monkeypatch):
    """Runs that take no time; a list of those that were done."""
    done = []

    def run_missing(waiting, out, **more):
        done.extend(waiting)
        return searched_runs.run_missing(waiting, out, **more)

    monkeypatch.setattr(compare, "run_missing", run_missing)
    return done


def drawn_runs(out):
    """The content of the file with what was drawn, while there is one."""
    path = out / "unpublished" / "drawn.json"
    return path.read_bytes() if path.exists() else None


def assert_published(out, drawn):
    """Asserts that the best of the runs that were drawn is published, and nothing of the others."""
    runs = json.loads(drawn)["runs"]
    content = {path.name for path in out.iterdir() if not path.name.endswith(".tff-mf.tmp")}
    assert content == {".comparison", ".lock", "comparison.json", "comparison.md", "selected"}
    name = pathlib.Path(json.loads((out / "selected" / names.RUN_JSON).read_text())["command"][-1]).name
    best = max(searched_runs.SCORES[run["server_learning_rate"]] for run in runs.values())
    result = json.loads((out / "comparison.json").read_text())
    assert result["settings"] == runs.pop(name)
    assert result["score"] == searched_runs.SCORES[result["settings"]["server_learning_rate"]] == best
    everything = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file()).decode(errors="replace")
    for other, run in runs.items():
        assert other not in everything
        assert repr(run["client_learning_rate"]) not in everything
    assert reports.check(out / "selected").problems == []


def test_the_best_run_is_published_alone_and_nothing_is_said_of_others(spec, tmp_path, at_once, typed, monkeypatch):
    rates = itertools.cycle(RATES)
    monkeypatch.setattr(tff_mf.Search, "draw", lambda self: 5)
    monkeypatch.setattr(search.secrets, "choice", lambda values: next(rates))
    status, out, err = typed("compare", str(spec), "--out", "out")
    assert status == 0, err
    assert "accuracy" not in err
    assert "8" not in err.splitlines()[-1]
    assert "the best of a search of 2 runs on average, which is covered" in " ".join(out.split())
    runs = {run.name: run.settings for run in at_once}
    fields = ("server_learning_rate", "client_learning_rate")
    drawn = {name: {field: getattr(settings, field) for field in fields} for name, settings in runs.items()}
    assert_published(tmp_path / "out", json.dumps({"runs": drawn}))
    # Asked again, it says the same, and draws nothing.
    again = typed("compare", str(spec), "--out", "out")
    assert (again[:2], len(at_once), len(runs)) == ((0, out), 5, 5)


PROGRAM = f"""
import sys
sys.path += [{str(HERE)!r}, {str(HERE.parent / "faults")!r}]
import searched_runs
searched_runs.main()
"""


def struck(spec, out, number=0):
    """Goes on with a search, and kills it before the change of a number to its files; returns whether it was killed."""
    counted = out.with_name("counted")
    counted.write_bytes(b"")
    given = [str(spec), str(out), str(counted), str(number)]
    ended = forking.run_program(PROGRAM, given, folder=out.parent, environment=dict(os.environ))
    # Near its end there are fewer changes.
    assert ended.returncode in ((0, -signal.SIGKILL) if number else (0,)), ended.stderr
    return ended.returncode != 0


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("first", range(8, 28))
def test_however_often_it_is_killed_it_draws_and_selects_once(spec, tmp_path, first):
    """Each process some changes later than the one before it; once all runs are done, at each change."""
    out, drawn, chosen, number, step, before = tmp_path / "out", set(), set(), first, 5 + first % 4, None
    selected = out / "selected" / names.RUN_JSON
    while struck(spec, out, number):
        content = {path.name for path in out.iterdir() if not path.name.endswith(".tff-mf.tmp")}
        assert content <= {".comparison", ".lock", "unpublished", "selected", "comparison.json", "comparison.md"}
        drawn |= {drawn_runs(out)} - {None}
        chosen |= {selected.read_bytes()} if selected.exists() else set()
        if drawn_runs(out):
            assert (out / "unpublished" / "drawn.json").stat().st_mode & 0o777 == 0o600
            assert (out / "unpublished").stat().st_mode & 0o777 == 0o700
        left = len(json.loads(drawn_runs(out) or b'{"runs": [1]}')["runs"]) - len([*out.rglob("report.md")])
        number = number + step if left == before else first if left > 0 else 1
        step, before = 20 if "comparison.json" in content else 1 if left == 0 else step, left
    (content,) = drawn
    assert chosen <= {selected.read_bytes()}
    assert_published(out, content)


KILLED_WHEN_IT_SELECTS = """
import os, pathlib, signal
renamed = pathlib.Path.rename
def rename(path, target):
    renamed(path, target)
    if pathlib.Path(target).name == "selected":
        os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.rename = rename
"""


def test_the_search_of_the_page_selects_once(forks, tmp_path):
    """From Python; killed between its selection and its end, it trains and selects nothing more."""
    code, folder = (HERE.parents[1] / "docs" / "search.py").read_text(), tmp_path / "search"

    def run(code):
        return forking.run_program(code, [str(folder)], server=forks, folder=tmp_path, environment=dict(os.environ))

    assert run(KILLED_WHEN_IT_SELECTS + code).returncode == -signal.SIGKILL
    assert len(json.loads((folder / "drawn.json").read_text())) - 1 == len([*folder.glob("run-*")])
    assert (folder / "drawn.json").stat().st_mode & 0o777 == 0o600
    before = (folder / "selected" / names.LEDGER).read_bytes()
    again = run(code)
    assert "the best of a search of 2 runs on average, which is covered" in again.stdout, again.stderr
    assert [path.name for path in folder.iterdir()] == ["selected"]
    assert (folder / "selected" / names.LEDGER).read_bytes() == before
    assert run(code).stdout == again.stdout


def test_no_run_at_all_is_said_and_never_drawn_again(spec, tmp_path, at_once, typed, monkeypatch):
    text = spec.read_text().replace("search = 2.0\n", 'search = 2.0\nsearch_runs = "poisson"\n')
    spec.write_text(text)
    monkeypatch.setattr(tff_mf.Search, "draw", lambda self: 0)
    with monkeypatch.context() as stopped:
        stopped.setattr(search, "page", None)
        with pytest.raises(TypeError):
            search.run_search(spec, tmp_path / "out")
    monkeypatch.setattr(tff_mf.Search, "draw", None)
    status, out, _ = typed("compare", str(spec), "--out", "out")
    assert (status, at_once) == (0, [])
    assert "No run was drawn, and nothing is released" in " ".join(out.split())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *(".comparison", ".lock", "comparison.json", "comparison.md"),
    ]
    assert typed("compare", str(spec), "--out", "out")[:2] == (0, out)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("search = 2.0\n", "", "search=None"),
        ("[search]\nserver_learning_rate = [0.1, 0.2, 0.4]", "[[grid]]\nseed = [1, 2]\n[search]", "give no lists"),
        ("server_learning_rate = [0.1, 0.2, 0.4]", "epsilon = [2.0, 8.0]", "'epsilon' is none of"),
        ("server_learning_rate = [0.1, 0.2, 0.4]", "server_learning_rate = [0.1, -3]", "server_learning_rate=-3"),
        ("low = 0.1, high = 10", "low = 10, high = 0.1", "client_learning_rate="),
        ("search = 2.0\n", "search = 0.5\n", "search=0.5"),
        (FINISHED[FINISHED.index("[search]") :], "", "search=2.0"),
    ],
)
def test_what_is_no_search_is_refused(spec, tmp_path, typed, before, after, named):
    assert before in spec.read_text()
    spec.write_text(spec.read_text().replace(before, after))
    assert named in shared.refused(typed, "compare", str(spec), "--out", "out")
    assert not (tmp_path / "out").exists()


def test_a_score_on_clients_that_train_is_refused(spec, tmp_path, typed):
    both = {("a", "train"): 2, ("a", "heldout"): 2, ("c", "test"): 2}
    (tmp_path / "data.sqlite").unlink()
    shared.write_sentences(tmp_path / "data.sqlite", both, lambda: "the one of them")
    assert "1 clients that train" in shared.refused(typed, "compare", str(spec), "--out", "out")


def test_a_search_goes_on_with_its_own_settings_and_draw(spec, tmp_path, typed, at_once, monkeypatch):
    """Also after a run that failed, which selects nothing."""
    with monkeypatch.context() as patched:
        patched.setattr(compare, "run_missing", lambda *given, **more: {"one": "round 3: accuracy 50 %"})
        said = typed("compare", str(spec), "--out", "out")
        assert "failed" in said[0]
        assert "50" not in "".join(said)
        assert not (tmp_path / "out" / "selected").exists()
    text = spec.read_text()
    for changed in (text.replace("search = 2.0", "search = 3.0"), text.replace("[0.1, 0.2, 0.4]", "[0.1, 0.2]")):
        spec.write_text(changed)
        assert "other settings" in typed("compare", str(spec), "--out", "out")[2]
    spec.write_text(text)
    drawn = tmp_path / "out" / "unpublished" / "drawn.json"
    drawn.rename(tmp_path / "drawn.json")
    assert "is lost" in typed("compare", str(spec), "--out", "out")[2]
    (tmp_path / "drawn.json").rename(drawn)
    assert typed("compare", str(spec), "--out", "out")[0] == 0
    spec.write_text(changed)
    assert "other settings" in typed("compare", str(spec), "--out", "out")[2]


OTHER = {"client_learning_rate": 0.3, "client_epochs": 2, "batch_size": 3, "max_examples": 7, "clip_norm": 0.2}
OTHER |= {"zeroing": 50.0, "server_learning_rate": 3.0, "server_momentum": 0.1, "server_warmup": 0.0}
OTHER |= {"server_cooldown": 0.5}


@pytest.mark.parametrize("name", search.SEARCHED)
def test_no_setting_that_is_drawn_changes_the_guarantee_of_a_run(spec, name):
    (run,) = compare.read(spec)
    one, other = run.settings, msgspec.structs.replace(run.settings, **{name: OTHER[name]})
    plans = [settings.privacy_plan(tff_mf.BLT.production("b100")) for settings in (one, other)]
    assert getattr(one, name) != getattr(other, name)
    assert plans[0].guarantee == plans[1].guarantee
    assert plans[0].noise_multiplier == plans[1].noise_multiplier
    assert plans[0].search == tff_mf.Search(mean=2.0)


@pytest.mark.parametrize(("word", "shape"), [("logarithmic", 0.0), ("geometric", 1.0), ("poisson", math.inf)])
def test_the_words_of_distributions_are_those_of_the_library(spec, word, shape):
    (run,) = compare.read(spec)
    assert msgspec.structs.replace(run.settings, search_runs=word).chosen_search() == tff_mf.Search(mean=2, shape=shape)


def test_settings_are_drawn_from_their_distribution():
    drawn = [search._draw(search.LogUniform(low=0.1, high=10.0)) for _ in range(2000)]
    uniform = (np.log10(drawn) + 1) / 2
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6
    counts = collections.Counter(search._draw(RATES) for _ in range(2000))
    assert stats.chisquare([counts[rate] for rate in RATES]).pvalue > 1e-6
