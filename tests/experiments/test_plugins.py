"""A mechanism from outside on the command line: from docs/adding-a-mechanism.md to a trained model and its report."""

import json
import os
import pathlib
import re
import subprocess
import sys

import forking
import pytest

from tff_mf.base.errors import InputError

from .shared import invoke

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "adding-a-mechanism.md"
SMALL = """
import geometric, tff_mf
schema = tff_mf.MinSep(min_sep=2, max_participations=2)
tff_mf.save(geometric.optimize_geometric(rounds=4, participation=schema), "geometric.safetensors")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "geometric.py").write_text(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)[0])
    subprocess.run([sys.executable, "-c", SMALL], cwd=folder, check=True)
    return folder


def tff_mf(folder, *words, status=0, server=None, **environment):
    """Runs the command in a process of its own: a kind is registered once in a process."""
    given = {"folder": folder, "environment": {**os.environ, **environment}}
    arguments = [str(word) for word in words]
    if server is None:
        done = forking.run_command(arguments, **given)
    else:
        done = forking.run_program(forking.COMMAND, arguments, server=server, **given)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


SETTING = ("--rounds", 4, "--min-sep", 2, "--max-participations", 2, "--json")


def test_commands_know_the_kind_if_the_plugin_is_named(folder):
    shown = tff_mf(folder, "show", "geometric.safetensors", *SETTING, TFF_MF_PLUGINS="geometric.py")
    assert json.loads(shown)["mechanism"] == "geometric"
    twice = ("--plugin", folder / "geometric.py", "--plugin", "geometric.py")
    privacy = ("--noise-multiplier", 3, "--delta", 1e-6)
    found = tff_mf(folder, *twice, "account", "geometric.safetensors", *privacy, *SETTING)
    assert json.loads(found)["epsilon"] > 0


def test_the_optimizer_of_the_page_is_a_command(folder):
    """It does not say how its search ended, which is known only to the optimizers of this package."""
    optimize = ("--plugin", "geometric.py", "optimize", "geometric", "--out", "found.safetensors")
    found = json.loads(tff_mf(folder, *optimize, *SETTING))
    assert (found["mechanism"], found["objective"], found["converged"], found["message"]) == (
        "geometric",
        "max",
        True,
        "",
    )
    assert "search              converged\n" in tff_mf(folder, *optimize, *SETTING[:-1])
    error = tff_mf(folder, *optimize, "--objective", "rms", *SETTING, status=2)
    assert error.endswith("geometric minimizes MaxLoss.\n")


def test_an_optimizer_that_does_not_say_its_setting_is_named(folder):
    given = (folder / "geometric.py").read_text().replace("optimized_for=setting", "optimized_for=None")
    (folder / "silent.py").write_text(given)
    error = tff_mf(
        folder, *("--plugin", "silent.py", "optimize", "geometric", "--out", "none.safetensors"), *SETTING, status=2
    )
    assert error.startswith("tff-mf: ")
    assert "must return it with optimized_for" in error
    assert not (folder / "none.safetensors").exists()


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ((), "kind='geometric' is none of the registered kinds .*--plugin MODULE"),
        (("--plugin", "missing.py"), "plugin='missing.py' is no file"),
    ],
)
def test_commands_refuse_the_kind_by_name_without_its_plugin(folder, plugin, message):
    with pytest.raises(InputError, match=message):
        invoke(*plugin, "show", folder / "geometric.safetensors")


def test_a_model_is_trained_and_its_report_checked(folder, small_data, forks):
    plugin = ("--plugin", "geometric.py")
    tff_mf(
        folder,
        *(*plugin, "train", "--force", "--dataset", small_data, "--mechanism", "geometric.safetensors", "--out", "run"),
        *("--rounds", 4, "--clients-per-round", 2, "--min-sep", 2, "--max-participations", 2, "--epsilon", 6),
        *("--delta", 1e-5, "--model", "conv", "--units", 4, "--embedding-size", 4, "--vocab-size", 60),
        *("--max-examples", 2, "--evaluation-examples", 20),
        server=forks,
    )
    checked = tff_mf(folder, *plugin, "report", "run", "--check")
    assert checked.startswith("0 critical of ")
    assert "geometric" in (folder / "run" / "report.json").read_text()
    without = forking.run_command(["report", "run", "--check"], folder=folder, environment=dict(os.environ))
    assert without.returncode == 1
    assert "kind='geometric' is none of the registered kinds" in " ".join(without.stdout.split())


@pytest.mark.long
def test_a_deployment_is_exported(folder, small_data):
    """Graphs are built in a process of their own, which imports the plugin too."""
    optimum = SMALL.replace("min_sep=2, max_participations=2", "min_sep=10, max_participations=12")
    optimum = optimum.replace("rounds=4", "rounds=200").replace('"geometric.safetensors"', '"deployed.safetensors"')
    subprocess.run([sys.executable, "-c", optimum], cwd=folder, check=True)
    (folder / "settings.toml").write_text(
        f'[run]\ndataset = "sqlite:{small_data}"\nmechanism = "deployed.safetensors"\nrounds = 200\n'
        "clients_per_round = 2\ncohort = 4\ndelta = 1e-6\nmin_sep = 10\nmax_participations = 12\n"
        'noise_multiplier = 8.0\nmodel = "conv"\nvocab_size = 60\nembedding_size = 4\nunits = 4\nbatch_size = 2\n'
        "max_examples = 4\n"
    )
    bundle = ("--out", "bundle", "--longest-round", 15, "--population", 80, "--json")
    exported = json.loads(tff_mf(folder, "--plugin", "geometric.py", "export", "settings.toml", *bundle))
    assert exported["epsilon"] > 0
    assert (folder / "bundle" / "mechanism.safetensors").is_file()
