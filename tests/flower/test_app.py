"""The app of Flower that tff-mf writes, and the notebook that trains on Flower."""

import doctest
import importlib
import io
import logging
import pathlib
import runpy
import sys
import tomllib
import zipfile

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk

import tff_mf
from tff_mf.base.errors import InputValueError, MissingDependencyError
from tff_mf.experiments import flower, reports
from tff_mf.experiments.flower import __main__ as app
from tff_mf.experiments.runs.ledger import read_ledger

from .fleet import Fleet


@pytest.mark.parametrize("name", ["__main__", "clipping", "cohorts", "mods", "strategy", "updates"])
def test_examples_of_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"tff_mf.experiments.flower.{name}")).failed == 0


class Nodes(Fleet):
    """Nodes that run a ClientApp."""

    def __init__(self, count, client_app, run_config):
        super().__init__([f"node {index}" for index in range(count)], None)
        self._app, self._config = client_app, run_config

    def pull_messages(self, message_ids):
        messages = [self._waiting.pop(each) for each in message_ids if each in self._waiting]
        return [self._app(message, self._context(message.metadata.dst_node_id)) for message in messages]

    def _context(self, node):
        place = {"partition-id": node % 1000, "num-partitions": len(self.ids)}
        return Context(run_id=1, node_id=node, node_config=place, state=RecordDict(), run_config=self._config)


def test_the_app_trains_and_its_report_is_clean(tmp_path, monkeypatch, capsys):
    app.write(tmp_path / "app")
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config = {
        **project["config"],
        "out": str(tmp_path / "run"),
        "rounds": 4,
        "min-sep": 2,
        "max-participations": 2,
        "population": 8,
        "simulation": False,
    }
    loaded = [importlib.import_module(path.split(":")[0]).app for path in project["components"].values()]
    server, client = loaded
    grid = Nodes(8, client, config)
    server(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    assert "accuracy on held-out modules" in capsys.readouterr().out
    assert reports.check(tmp_path / "run").problems == []
    assert reports.read(tmp_path / "run" / "report.json").claim.tail > 0
    # Clients clip by Flower's own mod, to a little less than the server.
    counts = read_ledger(tmp_path / "run" / "ledger.jsonl").reports.values()
    assert [(count.clipped, count.counted) for count in counts] == [(0, 4)] * 4


def test_nodes_need_no_tff_mf(tmp_path):
    app.write(tmp_path)
    for path in (tmp_path / "next_word").glob("*.py"):
        imports = [line for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))]
        assert path.name == "server_app.py" or not [line for line in imports if "tff_mf" in line], path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": "min_sep"}, "did you mean 'min-sep'"),
        ({"sampling": "single"}, "min_sep=4 does not go with sampling='single'"),
        ({"min-sep": 0}, "min_sep missing, which sampling='min-sep' needs"),
        ({"groups": 4}, "groups=4 does not go with sampling='min-sep'"),
    ],
)
def test_an_app_takes_the_words_of_every_command_and_refuses_the_same(changes, message):
    config = {"rounds": 12, "sampling": "min-sep", "min-sep": 4, "max-participations": 3, "clients-per-round": 4}
    assert flower.sampling_of(config).schema(12) == tff_mf.MinSep(min_sep=4, max_participations=3)
    with pytest.raises(InputValueError, match=message):
        flower.sampling_of({**config, **changes})


def test_an_app_is_not_written_over_files(tmp_path, monkeypatch, capsys):
    (tmp_path / "notes").write_text("")
    with pytest.raises(InputValueError, match="is not an empty folder"):
        app.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_tensorflow_is_missed_with_a_remedy_only_where_it_is_needed():
    with pytest.raises(MissingDependencyError, match="tensorflow"):
        importlib.import_module("tff_mf.aggregators")
    assert not [name for name in sys.modules if name.startswith("tensorflow")]


def test_what_flower_sends_to_nodes_has_no_file_of_a_run_and_no_key(tmp_path):
    def sent():
        return set(zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path))).namelist())

    app.write(tmp_path)
    # Flower refuses patterns that fit no file.
    first = sent()
    for name in ("runs/one/ledger.jsonl", "runs/one/run.json", "out/report.json", "keys/a.json", "next_word/b.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert sent() == first
    assert {name.split("/")[0] for name in first} == {"pyproject.toml", "next_word", ".info"}


DOCS = pathlib.Path(__file__).parents[2] / "docs"
NOTEBOOKS = runpy.run_path(str(DOCS / "notebooks.py"))


# In CI: what stands in the notebook, and what takes its place; what it prints then is not compared.
SMALLER = {"NODES = 20": "NODES = 8", '"clients-per-round": 5': '"clients-per-round": 2'}


def test_the_notebook_runs_and_prints_its_stored_output(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("next_word")]:
        monkeypatch.delitem(sys.modules, name)
    level = logging.getLogger("flwr").level
    notebook = NOTEBOOKS["read"](DOCS / "tutorials" / "flower.ipynb")
    whole = request.config.getoption("--long")
    if not whole:
        notebook = NOTEBOOKS["changed"](notebook, SMALLER)
    try:
        outputs = list(NOTEBOOKS["printed"](notebook))
    finally:
        logging.getLogger("flwr").setLevel(level)
    assert "follows from its files; ε is stated" in outputs[-1][1]
    for cell, text in outputs if whole else ():
        assert NOTEBOOKS["compared"](cell, text) == NOTEBOOKS["compared"](cell, NOTEBOOKS["stored"](cell))
