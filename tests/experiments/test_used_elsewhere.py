"""What was made on one machine is believed, and goes on, on others: no false alarm."""

import shutil

import environments
import pytest
import used_elsewhere
from used_elsewhere import BUNDLE, calibrate_to_account, export_to_files, save_to_load

HERE = "machine"
_ALL = tuple(name for name in environments.ENVIRONMENTS if name != HERE)


@pytest.fixture(scope="module")
def made(once_for_all):
    """A run, one that was stopped, a bundle and its deployment, artifacts and noise, as this machine makes them."""

    def make(root):
        environments.call(HERE, used_elsewhere.__file__, "make", root / "made")
        return root / "made"

    return once_for_all("machines", make)


def alarms(environment, root, *what):
    names = [each.__name__ for each in what] or None
    found = environments.call(environment, used_elsewhere.__file__, "used", root, names)
    return "\n".join(filter(None, found.values()))


def test_artifacts_are_loaded_and_their_noise_is_enough(tmp_path):
    used_elsewhere.make(tmp_path / "made", trained=False)
    assert not alarms("oldest", tmp_path / "made", save_to_load, calibrate_to_account)


def test_a_bundle_is_verified_without_its_graphs(bundle, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / BUNDLE)
    assert not alarms("oldest", tmp_path, export_to_files)


# Long: beside what is tested above, test_reports_elsewhere.py checks runs, test_same_integers.py the numbers and
# fingerprints that a run or a deployment goes on with, and test_tampered_bundles.py builds graphs in two processes.
@pytest.mark.long
@pytest.mark.parametrize("environment", _ALL)
def test_what_was_made_here_is_used_there(environment, made):
    assert not alarms(environment, made)


# Long: what was made here is used there above, by the same rules.
@pytest.mark.long
@pytest.mark.parametrize("environment", _ALL)
def test_what_was_made_there_is_used_here(environment, tmp_path):
    environments.call(environment, used_elsewhere.__file__, "make", tmp_path / "made")
    assert not alarms(HERE, tmp_path / "made")
