"""A search for settings on clients that train: a random number of runs, of which the best one alone is published.

Until it has ended, all of it is in a folder that its owner alone can read: how many runs there are, their settings,
which are drawn before the first one begins, and the runs. Papernot and Steinke (2022) cover the selected run, and
nothing of the others. See `tff_mf.Search`.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import secrets
import shutil
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

import tff_mf
from tff_mf.base.errors import InputValueError

from .. import compare, reports
from ..data import TRAIN, client_ids, data_file
from ..output import console, files, typed
from ..output.typed import Number, Positive, Record
from ..runs import folders, statements
from ..runs.folders import read_record
from ..runs.names import REPORT
from ..runs.settings import RunSettings
from ..runs.statements import Claim

# Of a search that has not ended.
UNPUBLISHED, DRAWN = "unpublished", "drawn.json"
# The run that is published.
SELECTED = "selected"
# What neither the guarantee of a run nor its mechanism depends on, so that all runs have the same.
SEARCHED = (
    *("client_learning_rate", "client_epochs", "batch_size", "max_examples", "clip_norm", "zeroing"),
    *("server_learning_rate", "server_momentum", "server_warmup", "server_cooldown"),
)


class LogUniform(Record):
    """A number between two others, whose logarithm is uniform."""

    low: Positive
    high: Positive


# Of each setting that is drawn: its values, of which one is as likely as another, or their range.
Distributions = Mapping[str, Annotated[list[Any], Meta(min_length=1)] | LogUniform]


class _Drawn(Record):
    """What was drawn, once: the runs by their names, which are random too, with the settings that are drawn."""

    of: str
    runs: dict[str, dict[str, Any]]


class SearchResult(Record, kw_only=True):
    """The content of `comparison.json` after a search.

    Attributes:
        of: Hash of all that the search depends on.
        runs_on_average: Mean number of runs: how many there were stays secret.
        search_runs: The distribution of their number.
        drawn_from: The distribution of each setting that was drawn.
        settings: What was drawn for the selected run; nothing, as in all that follows, if there was no run, as can be
            for Poisson's distribution.
        score: Its smoothed validation accuracy, by which it was selected.
        accuracy: Its accuracy on test sentences.
        claim: Its guarantee, the search included.
    """

    of: str
    runs_on_average: Number
    search_runs: str
    drawn_from: Distributions
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    score: Number | None = None
    accuracy: Number | None = None
    claim: Claim | None = None


def distributions(spec: pathlib.Path, settings: RunSettings) -> Distributions:
    """Returns what the table [search] of a specification draws settings from; each of its values goes with the rest."""
    where = f"{spec} [search]"
    drawn_from = typed.convert(compare.content_of(spec).search, Distributions, where)
    for name, values in drawn_from.items():
        if name not in SEARCHED:
            raise InputValueError(f"{where}: {name!r} is none of {', '.join(SEARCHED)}, which leave ε as it is.")
        if isinstance(values, LogUniform):
            if float not in typed.fields_of(RunSettings)[name] or not values.low < values.high:
                raise InputValueError(f"{where}: {name}={values!r} must be a list, or low below high of a number.")
            values = [values.low, values.high]
        for value in values:
            typed.convert({**msgspec.structs.asdict(settings), name: value}, RunSettings, where).check()
    return drawn_from


def _draw(values: list[Any] | LogUniform) -> Any:
    if isinstance(values, list):
        return secrets.choice(values)
    logarithm = secrets.SystemRandom().uniform(math.log(values.low), math.log(values.high))
    return float(f"{math.exp(logarithm):.4g}")


def run_search(spec: pathlib.Path, out: pathlib.Path, *, jobs: int = 1, dataset: str | None = None) -> SearchResult:
    """Does the runs of a search, each of which is resumed where it was stopped, and publishes the best one.

    Formal guarantee: the number of runs and their settings are drawn from the system's randomness, once, and are on
    disk before the first run begins, in files that their owner alone can read. If this is killed, the next call goes on
    with the same. Runs are compared by smoothed validation accuracy, of clients of which none trains. Nothing of any
    run is printed, or written elsewhere, before one of them is selected; then all others are deleted, with their logs,
    and with their number. How long a search takes says how many there were: do not publish that.

    Args:
        spec: A TOML file with a table [search].
        out: The folder of the result, made if it does not exist.
        jobs: Number of runs at a time.
        dataset: Data set of all runs, in place of the specification's.
    """
    (planned,) = compare.read(spec, dataset=dataset)
    settings, drawn_from = planned.settings, distributions(spec, planned.settings)
    search = settings.chosen_search()
    assert search is not None, "compare.read refuses a table [search] without"
    data = data_file(settings.dataset).absolute()
    if both := set(client_ids(data, TRAIN)) & set(client_ids(data, settings.validation_split)):
        raise InputValueError(
            f"validation_split={settings.validation_split!r} has {len(both)} clients that train: a score on them is "
            "not covered. Take another split, or other data."
        )
    folders.continued_folder(out)
    content = [str(data), msgspec.to_builtins([settings, drawn_from])]
    of = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    with files.held(out / ".lock", lambda: console.say("search: waiting for another one in this folder")) as lock:
        hidden, ended = out / UNPUBLISHED, out / compare.RESULT
        is_ended = ended.exists()
        begun = typed.read(ended, SearchResult, "search") if is_ended else _begun(hidden, of, search, drawn_from)
        if begun.of != of:
            raise InputValueError(f"out={str(out)!r} holds a search of other settings or data: name another folder.")
        if isinstance(begun, _Drawn):
            if not (out / SELECTED).exists():
                own = {name: msgspec.structs.replace(settings, **values) for name, values in begun.runs.items()}
                runs = [dataclasses.replace(planned, name=name, settings=values) for name, values in own.items()]
                _select(runs, out, data, jobs=jobs, lock=lock)
            result = SearchResult(
                of=of,
                runs_on_average=search.mean,
                search_runs=settings.search_runs,
                drawn_from=drawn_from,
                **_published(out / SELECTED, drawn_from),
            )
            files.write_atomically(out / compare.TABLE, page(result, name=spec.stem))
            files.write_atomically(ended, json.dumps(msgspec.to_builtins(result), indent=2) + "\n")
        if hidden.exists():
            shutil.rmtree(hidden)
        return typed.read(ended, SearchResult, "search")


def _begun(hidden: pathlib.Path, of: str, search: tff_mf.Search, drawn_from: Distributions) -> _Drawn:
    """Returns what was drawn; draws how many runs there are, and their settings, if that was not done before."""
    hidden.mkdir(mode=0o700, exist_ok=True)
    path = hidden / DRAWN
    if path.exists():
        return typed.read(path, _Drawn, "search")
    if (hidden / "runs").exists():
        raise InputValueError(f"{path} is lost, and if it was drawn again the ε would be void: put it back.")
    runs = [{name: _draw(values) for name, values in drawn_from.items()} for _ in range(search.draw())]
    drawn = _Drawn(of=of, runs={secrets.token_hex(8): run for run in runs})
    # On disk before the first run begins.
    files.write_atomically(path, msgspec.json.encode(drawn), mode=0o600)
    return drawn


def _select(runs: list[compare.PlannedRun], out: pathlib.Path, data: pathlib.Path, *, jobs: int, lock: int) -> None:
    """Does the runs that are not done, and moves the best one where it is published."""
    hidden = out / UNPUBLISHED
    for run in runs:
        compare.configure(run, data, hidden)
    console.say("search: how many runs there are, and how good they are, stays secret; nothing is said until the end")
    waiting = [run for run in runs if not compare.is_done(hidden, run.name)]
    if compare.run_missing(waiting, hidden, at_once=jobs, lock=lock, say=lambda text: None):
        raise SystemExit(
            f"tff-mf: a run of the search failed, and a log in {hidden / 'logs'} says why. Nothing is selected; the "
            "same command goes on."
        )
    # Names are random, and so is the choice among equals.
    scores = [(compare.summary_of(hidden / "runs" / run.name).validation_accuracy_smoothed, run.name) for run in runs]
    if scores:
        (hidden / "runs" / max(scores)[1]).rename(out / SELECTED)
        files.sync_folder(out)


def _published(folder: pathlib.Path, drawn_from: Distributions) -> dict[str, Any]:
    """Returns what is published of the selected run, by fields of `SearchResult`; nothing if there was no run."""
    if not folder.exists():
        return {}
    summary, training = compare.summary_of(folder), read_record(folder).settings
    return {
        "settings": {name: getattr(training, name) for name in drawn_from},
        "score": summary.validation_accuracy_smoothed,
        "accuracy": summary.accuracy,
        "claim": reports.read(folder / REPORT).claim,
    }


def page(result: SearchResult, *, name: str) -> str:
    """Returns a search in words, as Markdown: the content of `comparison.md`."""
    values = json.dumps(msgspec.to_builtins(result.drawn_from), ensure_ascii=False)
    lines = [
        f"# Search: {name}",
        f"{result.runs_on_average:g} runs on average, by the {result.search_runs} distribution. How many there were "
        f"stays secret, and nothing of the others is left. Drawn for each run: {values}.",
    ]
    if result.claim is None or result.score is None or result.accuracy is None:
        lines.append(
            "**No run was drawn, and nothing is released.** ε covers that this can happen, and that it is said. "
            "Another search on these clients adds to it."
        )
    else:
        chosen = ", ".join(f"{setting} = {value}" for setting, value in result.settings.items())
        lines += [
            f"Selected, in {SELECTED}: {chosen}.",
            f"Its score is {100 * result.score:.2f} %, {compare.SMOOTHED}, of clients that never train. Its test "
            f"accuracy is {100 * result.accuracy:.2f} %.",
            statements.line(result.claim),
        ]
    return "\n\n".join(lines).replace("<", "&lt;") + "\n"
