"""The source of an export: a simulated run, or a file of settings."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import tff_mf
from tff_mf.base.errors import InputValueError

from .. import reports
from ..runs import folders, layers, names, run_record
from ..runs.names import MODEL, REPORT, REPORT_TEXT, VOCABULARY
from ..runs.settings import RunSettings
from ..training.datasets import named_data, sqlite

# Nothing that a bundle writes says when the noise restarts, and the devices' graph clips to a constant.
_NOT_EXPORTED = ("restart_every", "adaptive_clipping")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Settings of a deployment: with the numbers that they came to, and as they were given, with defaults for others.

    `privacy` has the whole cohort and all of its noise.
    """

    settings: RunSettings
    privacy: tff_mf.Plan
    vocabulary: Sequence[str]
    asked: RunSettings


def read_source(path: pathlib.Path, *, insecure_seed: int | None = None, grid: int | str | None = None) -> Source:
    """Returns the deployment of a run's folder, or of a TOML file of settings.

    A simulation may stand for a larger cohort, with less noise (`cohort`). The deployment has that cohort, and the
    noise of the guarantee.

    Args:
        path: A folder of `tff-mf train`, or a file for `tff-mf train --config`.
        insecure_seed: Makes the noise repeatable. TEST ONLY.
        grid: The grid of the deployment: its bits, "auto" or "none"; `None` for the grid of the run or file.
    """
    if not path.exists():
        raise InputValueError(f"run={str(path)!r} does not exist: name the folder of a run, or a TOML file.")
    file = path / names.SETTINGS_TOML if path.is_dir() else path
    if not file.is_file():
        inside = sorted(str(each.parent) for each in path.glob(f"*/{names.SETTINGS_TOML}"))
        if not inside and (path / names.RUN_JSON).is_file():
            raise InputValueError(
                f"run={str(path)!r} is not a run of tff-mf train, whose model is known: the weights of private_fed_avg "
                f"are in its {names.MODEL}, and aggregators.export_process exports a learning process of your own."
            )
        remedy = f"name one of the runs in it, {', '.join(inside[:3])}" if inside else "name a run, or a TOML file"
        raise InputValueError(
            f"run={str(path)!r} is not a folder of tff-mf train: {names.SETTINGS_TOML} is missing; {remedy}."
        )
    chosen, layer = layers.resolve(None, file, {"grid": grid})
    with layers.sourced(layers.origins(chosen, layer, file)):
        settings = layers.settings(layer, "" if path.is_dir() else str(path))
        _check_exported(settings)
        if not path.is_dir():
            settings.check()
        mechanism = folders.begun_mechanism(path) if path.is_dir() else None
        # On another grid, other noise is needed.
        record = run_record.begun_record(path) if path.is_dir() and grid is None else None
        planned = settings if record is None else record.training
        simulated = planned.privacy_plan(mechanism or settings.build_mechanism(), insecure_seed)
        privacy = dataclasses.replace(simulated, clients_per_round=simulated.cohort)
        known = path.is_dir() and (path / VOCABULARY).is_file()
        return Source(
            settings=settings.resolved(privacy, planned.chosen_rate(privacy)),
            privacy=privacy,
            vocabulary=read_vocabulary(path)
            if known
            else list(sqlite.load_word_counts(named_data.data_file(settings.dataset), settings.vocab_size)),
            asked=layers.settings(layers.placed(layer)),
        )


def _check_exported(settings: RunSettings) -> None:
    for name in _NOT_EXPORTED:
        if getattr(settings, name) is not None:
            raise InputValueError(
                f"{name}={getattr(settings, name)!r} cannot be exported: bundles support neither restarts of the "
                "noise nor adaptive clipping; train without them, or serve the process from TFF."
            )
    if settings.initial_model is not None:
        raise InputValueError(
            f"initial_model={settings.initial_model!r} cannot be exported: a bundle starts from a model that is "
            "drawn with its seed. Publish the trained model with tff-mf export --model-only, or serve the process from "
            "TFF."
        )


def deployed_again(folder: pathlib.Path) -> tuple[RunSettings, tff_mf.Plan, list[str]]:
    """Returns settings, privacy and vocabulary of a run or a bundle, from `run.json` and the files beside it."""
    run = reports.read_record(folder)
    return run.training, run.plan, read_vocabulary(folder)


def read_vocabulary(folder: pathlib.Path) -> list[str]:
    """Returns the words of a run's or a bundle's model."""
    try:
        words = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("it is not a list of words")
        return words
    except (OSError, ValueError, RecursionError) as error:
        raise InputValueError(f"run={str(folder)!r}: {VOCABULARY} is missing or damaged: {error}") from error


def check_trained(run: pathlib.Path) -> None:
    """Raises unless a run has a model, and the report that follows from its files."""
    folders.readable_folder(run)
    for name in (MODEL, REPORT, REPORT_TEXT):
        if not (run / name).is_file():
            raise InputValueError(f"run={str(run)!r} has no {name}: it has not ended.")
    check_report(run)


def check_report(run: pathlib.Path) -> None:
    """Raises unless the report of a run follows from its files."""
    found = reports.check(run)
    wrong = [*found.differs, *(each.text for each in found.report.claim.reasons if each.field == "model")]
    if wrong:
        raise InputValueError(
            f"run={str(run)!r} has a report that does not follow from its files: {wrong[0]}. Put back what was "
            f"changed, or run `tff-mf report {run}` first: the model is published with its report."
        )
