import pathlib

import pytest


@pytest.fixture(scope="session")
def small_data(tmp_path_factory) -> pathlib.Path:
    """A small data set of real text, made as the whole one is."""
    from tff_mf.experiments.datasets.pydoc import write_pydoc

    path = tmp_path_factory.mktemp("data") / "small.sqlite"
    write_pydoc(path, ["scipy"], progress=False)
    return path
