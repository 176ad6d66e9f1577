"""What tests of runs share: commands in this process, what a check finds, and tables of a run folder."""

import contextlib
import csv
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click
import click.testing
import numpy as np
from scipy import stats

import tff_mf
from tff_mf.experiments import data as data_files
from tff_mf.experiments import reports
from tff_mf.experiments.cli import cli
from tff_mf.experiments.guard import RunGuard
from tff_mf.experiments.runs.ledger import Rules, open_ledger, read_ledger
from tff_mf.experiments.runs.names import LEDGER
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.sampling import SamplingSettings, parameters_of


def drawn(word: str, **numbers: Any) -> SamplingSettings:
    """Returns a sampling by its word, with those of some parameters that it must or may have."""
    some = {"min_sep": 4, "max_participations": 2, "groups": 4, **numbers}
    return SamplingSettings(
        sampling=word, **{name: value for name, value in some.items() if name in parameters_of(word)}
    )


def invoke(*arguments: object, **more: Any) -> click.testing.Result:
    """Runs `tff-mf` with arguments in this process; an error that is not its own is raised."""
    return click.testing.CliRunner().invoke(cli, [*map(str, arguments)], **{"catch_exceptions": False, **more})


def printed(*arguments: object) -> str:
    """Returns what a command prints; an error is raised as it is."""
    return invoke(*arguments, standalone_mode=False).stdout


def result_of(*arguments: object) -> Any:
    """Returns what a command prints with `--json`."""
    return json.loads(printed(*arguments, "--json"))


def leaves() -> dict[str, click.Command]:
    """Returns each subcommand by its name."""
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def critical(folder: pathlib.Path) -> list[str]:
    """Returns what a check of a run finds wrong with it, fields first."""
    return reports.check(folder).problems


def violated(report: reports.Report) -> set[str]:
    """Returns the fields of the reasons why a report states no ε."""
    return {reason.field for reason in report.claim.reasons}


def checked(report: reports.Report) -> set[str]:
    """Returns the rules of a report that the files keep."""
    return {check.name for check in report.checked}


def took_part(folder: pathlib.Path) -> list[tuple[int, str]]:
    """Returns round and client of everybody in the ledger of a run, in its order."""
    return [(line.round, client) for line in read_ledger(folder / LEDGER).begun for client in line.clients]


def rows(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a table by the names of its columns."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_sentences(path: pathlib.Path, sizes: Mapping[tuple[str, str], int], text: Callable[[], str]) -> None:
    """Writes a data set in which each client of a split has a number of sentences."""
    data_files.write(path, {(split, name): [text() for _ in range(size)] for (name, split), size in sizes.items()})


def by_tff(path: pathlib.Path, split: str) -> Any:
    """Returns the clients of a split as TFF's reader has them: a `tff.simulation.datasets.ClientData`."""
    import tensorflow as tf
    import tensorflow_federated as tff

    spec = {"tokens": tf.TensorSpec([], tf.string)}
    return tff.simulation.datasets.load_and_parse_sql_client_data(str(path), spec, split_name=split)


def of_plan(plan: tff_mf.Plan) -> dict[str, Any]:
    """Returns the fields of the settings of a run that are those of a plan."""
    same = ("rounds", "delta", "clients_per_round", "cohort", "noise_multiplier", "restart_every", "clip_norm")
    schema = plan.participation
    kinds = {tff_mf.SingleParticipation: "single", tff_mf.FixedEpoch: "fixed-epochs"}
    numbers = {"min_sep": schema.min_sep, "max_participations": schema.max_participations}
    return {
        **{name: getattr(plan, name) for name in same},
        "grid": "none" if plan.grid_bits is None else plan.grid_bits,
        "sampling": kinds.get(type(schema), "min-sep"),
        **({} if isinstance(schema, tff_mf.SingleParticipation) else numbers),
    }


def moved(matrix: np.ndarray, pattern: Iterable[int]) -> float:
    """Returns how far a client with a pattern moves Cx, over all signs of its contributions along one coordinate."""
    columns = matrix[:, list(pattern)]
    signs = itertools.product((1, -1), repeat=columns.shape[1])
    return max(float(np.linalg.norm(columns @ np.array(each, np.float64))) for each in signs)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Returns δ of the Gaussian mechanism: Balle and Wang (2018), theorem 8, as it is printed there."""
    normal = stats.norm.cdf
    return normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(-mu / 2 - epsilon / mu)


def small_settings(plan: tff_mf.Plan | None = None, **changes: Any) -> RunSettings:
    """Returns settings of a run that trains in a second, with one sentence of a client: their order is random."""
    any_plan = {"rounds": 4, "clients_per_round": 2, "delta": 1e-6, "sampling": "single"}
    model = {"model": "conv", "vocab_size": 100, "embedding_size": 4, "units": 4}
    data = {"max_examples": 1, "batch_size": 1, "evaluate_every": 4, "evaluation_examples": 20}
    return RunSettings(**{**(any_plan if plan is None else of_plan(plan)), **model, **data, **changes})


@contextlib.contextmanager
def open_loop(folder: pathlib.Path, rules: Rules) -> Iterator[RunGuard]:
    """Yields the guard of a run whose files a test has written."""
    with open_ledger(folder / LEDGER) as book:
        yield RunGuard(folder, rules, book)


class StoppedError(Exception):
    """Stands for the end of a process in the middle of a run."""


class Kept:
    """States of a run in the memory of a test, which outlive its guards; `drawn` tells the rounds of their noise."""

    def __init__(self, drawn: Callable[[Any], Any] = lambda state: None, start: Any = None) -> None:
        self.saved, self.stops, self._drawn, self._start = {}, False, drawn, start

    def rounds(self):
        return sorted(self.saved)

    def save(self, round_number, state, about):
        self.saved[round_number] = state, about
        if self.stops:
            raise StoppedError

    def about(self, round_number):
        return self.saved[round_number][1]

    def drawn(self, state=None):
        newest = self.saved[max(self.saved)][0] if self.saved else self._start
        return self._drawn(newest if state is None else state)


def refused(typed: Callable[..., tuple[int, str, str]], *arguments: str) -> str:
    """Returns the line in which a command line is refused."""
    status, out, err = typed(*arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1), err
    return err
