"""What was made on one machine is believed, and goes on, on others: no false alarm."""

import environments
import pytest
import used_elsewhere

HERE = "machine"
_ALL = tuple(name for name in environments.ENVIRONMENTS if name != HERE)
_WITHOUT = [each.__name__ for each in used_elsewhere.WITHOUT_TENSORFLOW]


@pytest.fixture(scope="module")
def made(once_for_all):
    """A run, one that was stopped, a bundle and its deployment, artifacts and noise, as this machine makes them."""

    def make(root):
        environments.call(HERE, used_elsewhere.__file__, "make", root / "made")
        return root / "made"

    return once_for_all("machines", make)


def alarms(environment, root, names=None):
    found = environments.call(environment, used_elsewhere.__file__, "used", root, names)
    return "\n".join(filter(None, found.values()))


@pytest.mark.parametrize("environment", ["no-avx512", "prescott"])
def test_what_needs_no_tensorflow(environment, made):
    assert not alarms(environment, made, _WITHOUT)


@pytest.mark.parametrize("environment", ["oldest"])
def test_graphs_are_verified_models_exported_and_runs_resumed(environment, made):
    assert not alarms(environment, made, [each.__name__ for each in used_elsewhere.WITH_TENSORFLOW])


# Long: the tests above use the same functions in the environments that differ most.
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
