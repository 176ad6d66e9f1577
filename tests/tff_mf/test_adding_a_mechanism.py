"""docs/adding-a-mechanism.md as a newcomer reads it: the file that it shows, and what follows, block by block."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import tff_mf
from tff_mf.mechanisms import registry

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "adding-a-mechanism.md"
FILE, PROGRAM = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "geometric.py").write_text(FILE)
    return tmp_path


def run(program, folder):
    """In a process of its own: a kind is registered once in a process."""
    with (folder / "log").open("w+") as log:
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, stdout=log, stderr=log)
        log.seek(0)
        assert done.returncode == 0, log.read()


@pytest.mark.once
def test_from_the_optimum_to_an_artifact(folder):
    """As good as a BLT with one buffer, which it is; without TensorFlow; and its own closed form is right."""
    then = """
blt = tff_mf.optimize_blt(rounds=2052, participation=participation, buffers=1)
loss = tff_mf.max_loss(mechanism, 2052, participation)
assert abs(loss / tff_mf.max_loss(blt, 2052, participation) - 1) < 1e-3
import itertools, sys, geometric, numpy as np
for alpha, beta, rounds, b, k in itertools.product([0.1, 0.9, 1.0], [0.2, 0.99], [1, 5, 40], [1, 3, 8], [1, 2, 5]):
    if (k - 1) * b < rounds:
        schema = tff_mf.MinSep(min_sep=b, max_participations=k)
        mechanism = geometric.Geometric(alpha=alpha, beta=beta)
        directly = np.linalg.norm(mechanism.encoder(rounds)[:, : k * b : b].sum(axis=1))
        # Not what `register_mechanism` would put in its place.
        assert abs(geometric.sensitivity(mechanism, rounds, schema) / directly - 1) < 1e-12
assert not {'tensorflow', 'tensorflow_federated'} & set(sys.modules)
"""
    run(PROGRAM + then, folder)
    assert (folder / "geometric.safetensors").is_file()
    with pytest.raises(tff_mf.ArtifactError, match="kind='geometric' is none of"):
        tff_mf.load(folder / "geometric.safetensors")


def test_a_plugin_is_imported_once(folder, monkeypatch):
    monkeypatch.setattr(registry._kinds, "_KINDS", dict(registry._kinds._KINDS))
    monkeypatch.delitem(sys.modules, "geometric", raising=False)
    monkeypatch.chdir(folder)
    for name in ("geometric.py", str(folder / "geometric.py"), "./geometric.py"):
        registry.import_plugin(name)
        assert registry.named("geometric").outside
    monkeypatch.delitem(sys.modules, "geometric")
    with pytest.raises(tff_mf.InputError, match="registered already"):
        registry.import_plugin("geometric.py")
    assert "geometric" not in sys.modules


def test_a_plugin_that_is_none_is_named(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "json.py").write_text("")
    (folder / "needs_more.py").write_text("import not_installed_here")
    for name, message in (
        ("missing.py", "plugin='missing.py' is no file"),
        ("not_installed_here", "plugin='not_installed_here' is no installed module"),
        ("json.py", "has the name of the module 'json'"),
        (3, "plugin=3 must be a str"),
    ):
        with pytest.raises(tff_mf.InputError, match=message):
            registry.import_plugin(name)
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        registry.import_plugin("needs_more.py")
    assert importlib.util.find_spec("not_installed_here") is None
