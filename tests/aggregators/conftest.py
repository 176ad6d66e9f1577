import pytest

from tff_mf import aggregators


@pytest.fixture(scope="session", autouse=True)
def _tff():
    """One worker for all tests of this floor: starting one takes seconds."""
    with aggregators.tff_session():
        yield
