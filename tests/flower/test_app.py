"""The app of Flower that tff-mf writes, and the notebook that trains on Flower."""

import doctest
import importlib
import io
import json
import logging
import pathlib
import re
import runpy
import subprocess
import sys
import tomllib
import types
import zipfile

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk

import tff_mf
from tff_mf.base.errors import InputValueError, MissingDependencyError
from tff_mf.experiments import flower, guard, reports
from tff_mf.experiments.flower import app

from .fleet import Fleet

MODULES = (
    "app",
    "checkpoints",
    "clipping",
    "cohorts",
    "mods",
    "opening",
    "settings",
    "strategy",
    "updates",
)


@pytest.mark.parametrize("name", MODULES)
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
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert {each.severity for each in reports.check(tmp_path / "run")} <= {"warning"}
    # Clients clip by Flower's own mod, to a little less than the server.
    assert report["device_reports"]["clipped"] == 0
    assert report["device_reports"]["counted"] == 16
    assert report["grid"]["integers"] == "int32"


def test_nodes_need_no_tff_mf(tmp_path):
    app.write(tmp_path)
    for path in (tmp_path / "next_word").glob("*.py"):
        imports = [line for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))]
        assert path.name == "server_app.py" or not [line for line in imports if "tff_mf" in line], path


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_an_app_names_what_it_needs(tmp_path, framework):
    app.write(tmp_path, framework=framework)
    needed = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["dependencies"]
    imported = re.findall(r"(?m)^import (\w+)$", (tmp_path / "next_word" / "task.py").read_text())
    assert ("torch" in imported) == (framework == "torch") == any(each.startswith("torch") for each in needed)
    assert f'noise-engine = "{framework}"' in (tmp_path / "pyproject.toml").read_text()
    with pytest.raises(InputValueError, match="framework='jax' must be one of numpy, torch"):
        app.write(tmp_path / "new", framework="jax")
    assert not (tmp_path / "new").exists()


def begun(folder, adjacency="zero-out", **more):
    """A run whose 24 nodes are simulated by 4."""
    arguments = {
        "mechanism": tff_mf.BLT.production("b100"),
        "rounds": 4,
        "sampling": tff_mf.MinSep(min_sep=2, max_participations=2),
        "delta": 1e-3,
        "clients_per_round": 4,
        "noise_multiplier": 3.0,
        "grid": tff_mf.Grid(bits=15, max_clients=1000),
        "dimension": 20_000,
        **more,
    }
    with guard.open_guard(folder, tff_mf.plan(**arguments, clip_norm=0.25), sampler="by hand", adjacency=adjacency):
        pass
    return folder


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(
    "schema",
    [
        tff_mf.MinSep(min_sep=2, max_participations=2),
        tff_mf.FixedEpoch(min_sep=2, max_participations=2),
        tff_mf.SingleParticipation(),
    ],
    ids=["min-sep", "fixed-epochs", "single"],
)
def test_the_app_of_a_run_has_its_privacy_and_trains(tmp_path, monkeypatch, schema):
    run = begun(tmp_path / "run", cohort=6, sampling=schema)
    assert {path.name for path in app.write(tmp_path / "app", of=run)} == {
        path.name for path in app.write(tmp_path / "plain")
    }
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"out": str(tmp_path / "out"), "simulation": False}
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    for name in [name for name in sys.modules if name.split(".")[0] == "next_word"]:
        monkeypatch.delitem(sys.modules, name)
    server, client = (importlib.import_module(f"next_word.{name}_app").app for name in ("server", "client"))
    grid = Nodes(config["population"], client, config)
    server(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    began, ended = (json.loads((each / "run.json").read_text()) for each in (run, tmp_path / "out"))
    # The whole cohort, with the noise that it needs.
    assert (ended["clients_per_round"], ended["cohort"]) == (6, 6)
    same = ("rounds", "participation", "min_sep", "max_participations", "noise_multiplier", "delta", "clip_norm")
    for name in (*same, "mechanism_sha256", "grid_bits", "grid_max_clients", "restart_every"):
        assert ended[name] == began[name], name
    assert json.loads((tmp_path / "out" / "report.json").read_text())["device_reports"]["counted"] == 24


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"insecure_seed": 3}, "insecure_seed"),
        ({"restart_every": 2, "adaptive_count_stddev": 1.0}, "adaptive_count_stddev"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"adjacency": "replace-one"}, "adjacency"),
    ],
)
def test_runs_that_flower_cannot_have_get_no_app(tmp_path, more, message):
    run = begun(tmp_path / "run", **more)
    with pytest.raises(InputValueError, match=message):
        app.write(tmp_path / "app", of=run)
    (run / "mechanism.safetensors").write_bytes(b"other")
    with pytest.raises(InputValueError, match="mechanism"):
        app.write(tmp_path / "app", of=run)
    assert not (tmp_path / "app").exists()


def test_a_run_with_an_adaptive_server_gets_no_app():
    settings = types.SimpleNamespace(server_optimizer="adam")
    with pytest.raises(InputValueError, match="server_optimizer='adam'"):
        app._server(types.SimpleNamespace(settings=settings))


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


@pytest.mark.parametrize("name", ["\U0001f33c", 'a "b" \\ \x7f', "ü"])
def test_an_app_finds_the_mechanism_in_a_folder_of_any_name(tmp_path, name):
    run = begun(tmp_path / name)
    app.write(tmp_path / "app", of=run)
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    assert config["config"]["mechanism"] == str(run / "mechanism.safetensors")


def test_an_app_is_not_written_over_files(tmp_path, monkeypatch, capsys):
    (tmp_path / "notes").write_text("")
    with pytest.raises(InputValueError, match="is not empty"):
        app.write(tmp_path)
    monkeypatch.setattr(sys, "argv", ["flower", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("tff_mf.experiments.flower", run_name="__main__")
    assert (ended.value.code, capsys.readouterr().err.count("\n")) == (2, 1)
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
    for name in ("runs/one/ledger.jsonl", "runs/one/run.json", "out/answers.json", "keys/a.json", "next_word/b.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert sent() == first
    assert {name.split("/")[0] for name in first} == {"pyproject.toml", "next_word", ".info"}


def test_the_keys_of_a_test_are_those_that_flower_reads(tmp_path):
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    app.write(tmp_path / "app")
    script = tmp_path / "app" / "deployment" / "make_keys.py"
    subprocess.run([sys.executable, script, tmp_path / "keys", "2"], check=True)
    key = load_ssh_private_key((tmp_path / "keys" / "node-1").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert load_ssh_public_key((tmp_path / "keys" / "node-1.pub").read_bytes()) == key.public_key()
    assert (tmp_path / "keys" / "node-1").stat().st_mode & 0o077 == 0


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
    assert outputs[-1][1].splitlines()[-1] == "0 critical of 0 findings; stated"
    for cell, text in outputs if whole else ():
        assert NOTEBOOKS["compared"](cell, text) == NOTEBOOKS["compared"](cell, NOTEBOOKS["stored"](cell))
