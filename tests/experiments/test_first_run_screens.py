"""The screens of the page of commands that need TensorFlow, in the order of the page."""

import re
import shutil

import pytest

pytest.importorskip("tensorflow_federated")

from click.testing import CliRunner

from tff_mf.experiments.cli import cli

from .conftest import build_graphs_in_a_fork
from .test_progress import counted
from .test_screens import REPRS, TRAINING, columns, documented

# tests/test_command_lines.py runs the commands of the page in CI, and test_screens.py has the screens of the others.
pytestmark = pytest.mark.long

# What differs from run to run: noise and what is measured of it, hashes, times, and the patch release of Python.
VARYING = (
    (r"(?<=digest: )[0-9a-f]{64}", "…"),
    (r"(?<=accuracy )[\d.]+|[\d.]+(?= % of \d+ validation)", "…"),
    (r"written in \d+ s|there already", "…"),
    (r"(?<=Python 3\.11\.)\d+", "…"),
)


def printed(*arguments):
    found = CliRunner().invoke(cli, list(arguments), catch_exceptions=False, standalone_mode=False)
    assert not found.return_value, found.stderr
    return found.stdout


def settled(name, text):
    """The words of a screen, without what differs from run to run."""
    text = " ".join(text.split())
    for pattern, instead in VARYING:
        text = re.sub(pattern, instead, text)
    return re.sub(r"[\d.e-]*\d[\d.e-]*( of another stream)?", "…", text) if name == "audit" else text


@pytest.fixture(scope="module")
def screens(small_data, tmp_path_factory, forks):
    """The folder, for each command with a screen in the docs what it printed and what the docs have, and its bar."""
    folder, found, bars = tmp_path_factory.mktemp("screens"), {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        build_graphs_in_a_fork(patch, forks)
        patch.setenv("COLUMNS", "80")
        shutil.copy(small_data, "scipy.sqlite")
        for words, screen in documented():
            if words[0] in TRAINING:
                bars[words[0]] = counted(patch)
                found[words[0]] = printed(*words), screen
    return folder, found, bars


def test_verify_has_as_many_steps_as_its_bar(screens):
    opened, done = screens[2]["verify"]
    assert opened == [len(done)]


def test_the_screens_in_the_docs_are_what_is_printed(screens):
    assert tuple(screens[1]) == TRAINING[:2] + TRAINING[2:]
    for name, (text, screen) in screens[1].items():
        assert settled(name, text) == settled(name, screen), name


def test_they_fit_the_terminal_and_use_labels(screens, monkeypatch):
    folder, found, _ = screens
    monkeypatch.chdir(folder)
    for text, _ in found.values():
        assert max(map(columns, text.splitlines())) <= 80
        assert REPRS.search(text) is None
    assert (folder / "runs/first/report.md").is_file()
    for words in (
        ["train", "--config", "runs/first/configuration.toml", "--show"],
        ["train", "--preset", "mcmahan2024-blt", "--epsilon", "2", "--show"],
        ["report", "runs/first", "--check"],
        ["verify", "bundle", "--files-only"],
        ["doctor"],
    ):
        lengths = {}
        for width in (40, 80, 120):
            monkeypatch.setenv("COLUMNS", str(width))
            text = printed(*words)
            assert width == 40 or longest(text) <= width, text
            assert REPRS.search(text.replace("5[a]", "")) is None
            lengths[width] = len(text.splitlines())
        assert lengths[40] >= lengths[80] >= lengths[120]


def longest(text):
    """The widest line, but for words that are wider than any terminal is to be: paths, hashes and URLs."""
    return max(columns(line) for line in text.splitlines() if max(map(len, line.split()), default=0) < 50)
