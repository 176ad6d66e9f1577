"""docs/adding-a-mechanism.md as a newcomer reads it: the file that it shows, what follows, and the test class."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import tff_mf

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "adding-a-mechanism.md"
FILE, PROGRAM, TESTS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)


def run(*command, folder):
    """In a process of its own: Python keeps a class by its kind."""
    with (folder / "log").open("w+") as log:
        done = subprocess.run([sys.executable, *command], cwd=folder, stdout=log, stderr=log)
        log.seek(0)
        assert done.returncode == 0, log.read()


@pytest.mark.once
def test_from_the_optimum_to_an_artifact_and_to_the_laws(tmp_path):
    """As good as a BLT with one buffer, which it is; without TensorFlow."""
    then = """
blt = tff_mf.optimize_blt(rounds=2052, participation=participation, buffers=1)
loss = tff_mf.max_loss(mechanism, 2052, participation)
assert abs(loss / tff_mf.max_loss(blt, 2052, participation) - 1) < 1e-3
import sys
assert not {'tensorflow', 'tensorflow_federated'} & set(sys.modules)
"""
    (tmp_path / "geometric.py").write_text(FILE)
    run("-c", PROGRAM + then, folder=tmp_path)
    with pytest.raises(tff_mf.ArtifactError, match="kind='geometric' is of no class"):
        tff_mf.load(tmp_path / "geometric.safetensors")
    shutil.copy(HERE / "mechanism_laws.py", tmp_path)
    (tmp_path / "test_geometric.py").write_text(TESTS)
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_geometric.py", folder=tmp_path)
