"""The file of a data set that is given by name or by path: made or downloaded on first use, and large enough."""

import contextlib
import io
import os
import pathlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import checked_cohort, deployed_population
from tff_mf.problem.draws import SeededDraws

from ...output import files
from ...runs.settings import EMBEDDED, SQLITE, RunSettings, check_together
from ...runs.statements import NO_EPSILON
from . import pydoc, sqlite

VARIABLE = "TFF_MF_CACHE"
FILE_NAME = "stackoverflow.sqlite"
# Clients of each split, as TFF's documentation of StackOverflow has them.
CLIENTS = {"train": 342_477, "heldout": 38_758, "test": 204_088}
_STAGING = ".stackoverflow-"


def data_file(dataset: str) -> pathlib.Path:
    """Returns the file of a data set.

    Args:
        dataset: `pydoc`, written on first use; `stackoverflow`, downloaded on first use; `sqlite:FILE`, or a path.
    """
    given = check_dataset(dataset)
    if given is not None:
        return given
    return cached_pydoc() if dataset == "pydoc" else cached_stackoverflow()


def check_dataset(dataset: str) -> pathlib.Path | None:
    """Returns the file of a data set of one's own; `None` of one that has a name, which may have to be made first.

    Raises:
        InputValueError: If there is no such file, or data sets that have a name cannot be kept.
    """
    if dataset in EMBEDDED:
        cache_folder()
        return None
    path = pathlib.Path(dataset.removeprefix(SQLITE))
    if not os.path.isfile(path):
        raise InputValueError(
            f"dataset={dataset!r} is neither `pydoc` nor `stackoverflow`, nor an existing file in "
            f"StackOverflow's format{validation.did_you_mean(dataset, EMBEDDED)}"
        )
    return path


def check_sizes(settings: RunSettings, data: pathlib.Path, *, without_epsilon: bool) -> None:
    """Raises unless a file has the clients and the sentences that a run needs, and names all that it lacks.

    Args:
        settings: The settings of the run.
        data: The file.
        without_epsilon: Whether δ may be anything, since no ε is stated.
    """
    clients, size = len(sqlite.clients(sqlite.checked(data), sqlite.TRAIN)), settings.clients_per_round

    def cohorts() -> None:
        sampling = settings.sampling_settings().drawn_by(population=clients, clients_per_round=size)
        sampling.cohorts(clients, settings.rounds, clients_per_round=size, draws=SeededDraws(settings.seed))

    def delta() -> None:
        cohort, participation = checked_cohort(size, settings.cohort), settings.participation()
        population = deployed_population(
            clients, cohort=cohort, clients_per_round=size, rounds=settings.rounds, participation=participation
        )
        if without_epsilon or settings.delta < 1 / population:
            return
        count = f"the data set has {clients:,} clients"
        if population != clients:
            count = f"{clients:,} clients × {cohort:,}/{size:,} = {population:,}"
        raise InputValueError(
            f"delta={settings.delta!r}: {NO_EPSILON}, it must be below 1/{population} ({count}): take a smaller one, "
            "or train with without_epsilon."
        )

    check_together([cohorts, delta, lambda: check_test_sentences(settings, data)])


def check_test_sentences(settings: RunSettings, data: pathlib.Path) -> None:
    """Raises if all sentences of the test clients are for validation."""
    number = sqlite.number_of_sentences(data, sqlite.TEST)
    if settings.validation_split == sqlite.TEST and number <= settings.evaluation_examples:
        raise InputValueError(
            f"evaluation_examples={settings.evaluation_examples} leaves no test sentences: the test clients have "
            f"{number}, and with validation_split='test' the first of them are for validation; give fewer, or "
            "validation_split='heldout'."
        )


def cache_folder() -> pathlib.Path:
    """Returns the folder of data sets that have a name, made if need be: one for all folders that a user works in.

    That is TFF_MF_CACHE, else `tff-mf` in XDG_CACHE_HOME, else `~/.cache/tff-mf`. As the XDG Base Directory
    Specification says, an XDG_CACHE_HOME that is empty or relative counts as not set.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    of_user = pathlib.Path(base if os.path.isabs(base) else "~/.cache", "tff-mf")
    path = pathlib.Path(os.environ.get(VARIABLE) or of_user)
    try:
        path = path.expanduser()
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    # Of a user without a home folder, a RuntimeError.
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputValueError(
            f"the cache of data sets, {str(path)!r}, cannot be written ({reason}); set {VARIABLE} to a folder that can."
        ) from error
    return path


def cached_pydoc() -> pathlib.Path:
    """Returns the path of the `pydoc` file of this environment, written if it is not there; its name has a hash."""
    path = cache_folder() / f"pydoc-{pydoc.fingerprint()[:16]}.sqlite"
    with contextlib.suppress(InputValueError):
        return sqlite.checked(path)
    pydoc.write_pydoc(path)
    return path


def cached_stackoverflow() -> pathlib.Path:
    """Returns the path of the StackOverflow file, which TFF downloads if it is not there: several GB.

    TFF writes a download to its final name as it comes, and takes whatever is there for complete. Here it goes
    to a folder of its own, is checked (size, format, clients of each split), gets the word counts, and only then its
    name, in one step: an interrupted download is never taken for the whole.
    """
    folder = cache_folder()
    path = folder / FILE_NAME
    try:
        with files.held(folder / f"{_STAGING}lock"):
            if not path.is_file():
                for left in folder.glob(f"{_STAGING}*.d"):
                    shutil.rmtree(left, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix=_STAGING, suffix=".d", dir=folder) as staging:
                    files.move_into_place(_downloaded(pathlib.Path(staging), path), path)
    except OSError as error:
        raise InputValueError(f"dataset='stackoverflow' cannot be written to {str(path)!r}: {error}.") from error
    return sqlite.checked(path)


def _downloaded(staging: pathlib.Path, final: pathlib.Path) -> pathlib.Path:
    # Here, so that a file that is there is found before TFF takes its ten seconds to load.
    import tensorflow_federated as tff

    data = tff.simulation.datasets.stackoverflow
    try:
        with _only_on_a_terminal():
            # The small file first: without a connection it fails in a moment.
            word_counts = data.load_word_counts(cache_dir=str(staging))
            data.load_data(cache_dir=str(staging))
    except Exception as error:  # Keras' downloader raises a bare Exception, TFF's one of urllib, lzma or sqlite3.
        raise InputValueError(
            f"dataset='stackoverflow' could not be downloaded ({type(error).__name__}: {error}); nothing was kept. It "
            f"needs a connection once: try again, or copy the file {FILE_NAME} of a machine that has it to "
            f"{str(final)!r}, or train on dataset='pydoc', which needs none."
        ) from error
    whole = sqlite.checked(staging / FILE_NAME)
    query = "SELECT split_name, COUNT(*) FROM client_metadata GROUP BY split_name"
    with contextlib.closing(sqlite3.connect(whole)) as connection:
        counted = dict(connection.execute(query).fetchall())
    if counted != CLIENTS:
        raise InputValueError(
            f"dataset='stackoverflow' is not whole: its splits have {counted} clients, not {CLIENTS}; nothing was "
            "kept, try again."
        )
    sqlite.add_extras(whole, word_counts.items())
    return whole


@contextlib.contextmanager
def _only_on_a_terminal() -> Iterator[None]:
    """Keeps what a download prints off standard output, and off standard error too if that is no terminal."""
    shown = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        yield
