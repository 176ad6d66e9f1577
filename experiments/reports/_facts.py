"""The facts of a report, each with its type and where it comes from: their JSON, and the JSON Schema.

A fact that is added to `SECTIONS` is in the JSON object, in its schema, and in the report on every medium.
"""

import datetime
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UnsetType

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.base.strict_json import finite
from tff_mf.problem import grids

from ..output import typed
from ..output.files import file_hash
from ..output.typed import CountOrZero, Number, OpenUnit, one_of, record
from ..runs import names, statements
from ..runs.ledger import REASONS, LedgerRecord
from ..runs.metrics import ALSO_TRAINING
from ..runs.rules import Schema
from ..runs.run_record import RunRecord
from ..runs.settings import FILES
from . import _judgement
from ._evidence import Assumption, Finding
from ._figures import Figures, measures
from ._judgement import Judgement
from ._other_files import DEVICE_REPORTS, device_reports
from .questions import ASKED

UTILITY = record("Utility", accuracy=Number | None, loss=Number | None, test_sentences=int | None)
# The engine of `tff_mf.experiments.flower`, as its runs name it.
_FLOWER = "flwr"


def _about(found: Judgement, kind: type, name: str) -> Any:
    """Returns a fact of another pipeline if it is of a type, else `None`: nothing checks them."""
    value = found.record.about.get(name)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def repeated(times: Mapping[int, int]) -> int:
    """Returns how many rounds were counted more than once."""
    return sum(each > 1 for each in times.values())


def data_set(found: Judgement) -> dict[str, Any]:
    """Returns what is known of a run's data set."""
    settings = found.record.settings
    name = _about(found, str, "dataset") if settings is None else settings.dataset
    return {
        "name": None if name is None else without_folder(name),
        "sha256": _about(found, str, "dataset_sha256"),
        "clients": found.record.training_clients,
        "examples": _about(found, int, "training_examples"),
    }


def without_folder(name: str) -> str:
    """Returns the name of a file without its folder, since a report is published; a word stays as it is.

    Example:
        >>> without_folder("sqlite:/home/ann/data.sqlite")
        'sqlite:data.sqlite'
    """
    return re.sub("[^:/]*/", "", name)


def settings(record: RunRecord) -> dict[str, Any]:
    """Returns all settings that a report repeats, as JSON, without the folders of files: it is published."""
    asked = {} if record.settings is None else msgspec.to_builtins(record.settings)
    placed = {name: without_folder(asked[name]) for name in FILES if asked.get(name) is not None}
    given = {**asked, **placed, "server_learning_rate": record.server_learning_rate}
    return {**{name: value for name, value in given.items() if value is not None}, **record.about}


def seconds(ledger: LedgerRecord | None) -> int | None:
    """Returns how long a run took; `None` if it is unknown, or the clock was set back meanwhile."""
    if ledger is None or ledger.started is None or ledger.finished is None:
        return None
    took = ledger.finished - ledger.started
    return int(took.total_seconds()) if took >= datetime.timedelta() else None


def made_for(found: Judgement) -> dict[str, Any] | None:
    """Returns the setting that the mechanism was optimized for, if it was."""
    setting = None if found.evidence.mechanism is None else found.evidence.mechanism.optimized_for
    return None if setting is None else {"rounds": setting.rounds, **vars(Schema.of(setting.participation))}


def sampling_in_secret(found: Judgement) -> str | None:
    """Returns a run's sampling if it amplifies where cohorts are secret, and no amplified ε is stated."""
    drawn = found.record.drawn
    if found.record.is_secret or drawn is None or not drawn.is_secret:
        return None
    return drawn.sampling


def generator(found: Judgement) -> str:
    """Returns the generator of the noise: TensorFlow's in its graphs, or one of the streams in NumPy."""
    about, on_grid = found.record.about, found.record.grid is not None
    if about.get("engine") != _FLOWER and "generator" not in about:
        return "tensorflow graph"
    # Without the fact, the defaults of the streams.
    return str(about.get("generator", "tensorflow" if on_grid else "philox"))


def utility(folder: pathlib.Path) -> dict[str, Any] | None:
    """Returns the quality of the model as the summary states it, if it does."""
    try:
        summary = typed.read(folder / names.SUMMARY, dict[str, Any], "summary")
    except InputError:
        return None
    found = {name: summary[name] for name in ("accuracy", "loss", "test_sentences") if name in summary}
    found.setdefault("test_sentences", None)
    return None if typed.problem(found, UTILITY) else found


def grid_of(record: RunRecord, figures: Figures | None) -> dict[str, Any] | None:
    """Returns the grid of a run and what it costs, as JSON; `None` in floating point."""
    grid, charge = record.grid, None if figures is None else figures.charge
    if grid is None:
        return None
    costs = {"limit": "limit", "error": "error", "log_ratio": "log_ratio", "mu": "mu", "tail": "tail"}
    costs["added_sensitivity"] = "sensitivity"
    return {
        **{name: getattr(grid, name) for name in ("bits", "max_clients", "integers", "bits_per_coordinate")},
        "dimension": record.dimension,
        "sampler": grids.sampler(),
        **{name: None if charge is None else finite(getattr(charge, of)) for name, of in costs.items()},
    }


VERSION = 3
_Number, _Whole, _Text = Number | None, int | None, str | None
_Schema = Literal["MinSep", "FixedEpoch", "SingleParticipation"]
_PLANNED_FILES = (names.RUN_JSON, names.MECHANISM, names.ANSWERS)
_FINAL_FILES = (
    *(*_PLANNED_FILES, names.LEDGER, names.METRICS, names.SUMMARY, names.MODEL),
    *(names.EVALUATED, names.SETTINGS_TOML, names.VOCABULARY),
)


Fact = tuple[Any, Callable[[Judgement], Any]]


def _of_record(kind: Any, name: str) -> Fact:
    return kind, lambda found: getattr(found.record, name)


def _of_ledger(kind: Any, value: Callable[[LedgerRecord], Any]) -> Fact:
    return kind, lambda found: None if found.ledger is None else value(found.ledger)


def _if_realised(kind: Any, value: Callable[[Judgement], Any]) -> Fact:
    return kind, lambda found: value(found) if found.evidence.realised and not found.record.is_secret else None


def _measures(name: str) -> Callable[[Judgement], Any]:
    def of(found: Judgement) -> dict[str, Any] | None:
        figures: Figures | None = None if found.refused else getattr(found, name)
        return None if figures is None else measures(figures.guarantee, found.record.delta)

    return of


def _sensitivity(name: str) -> Callable[[Judgement], Any]:
    return lambda found: None if found.figures is None else getattr(found.figures.sensitivity, name)


def _mechanism(name: str) -> Callable[[Judgement], Any]:
    return lambda found: None if found.evidence.mechanism is None else getattr(found.evidence.mechanism, name)


_EpsilonAt: Any = record("EpsilonAt", delta=OpenUnit, epsilon=_Number)
_Measures = record(
    "Measures",
    **dict.fromkeys(("mu", "zcdp_rho", "epsilon", "epsilon_by_pld", "epsilon_from_zcdp"), _Number),
    delta=OpenUnit,
    epsilon_at=list[_EpsilonAt],
)
_DataSet = record("DataSet", name=_Text, sha256=_Text, clients=_Whole, examples=_Whole)
_MadeFor = record("MadeFor", rounds=int, participation=_Schema, min_sep=int, max_participations=int)

# Every section, with its facts.
SECTIONS: Mapping[str, Mapping[str, Fact]] = {
    "about": {
        "data_set": (_DataSet, data_set),
        "started": _of_ledger(_Text, lambda ledger: None if ledger.started is None else ledger.started.isoformat()),
        "ended": _of_ledger(_Text, lambda ledger: None if ledger.finished is None else ledger.finished.isoformat()),
        # It depends on how many took part.
        "seconds": (_Whole, lambda found: None if found.record.is_secret else seconds(found.ledger)),
    },
    "setting": {
        "simulation": _of_record(bool, "simulation"),
        "cohort": _of_record(int, "cohort"),
        "clients_per_round": _of_record(int, "clients_per_round"),
        "population": (_Whole, lambda found: _judgement.population(found.evidence)),
    },
    "participation": {
        "schema": _of_record(_Schema, "participation"),
        "rounds": _of_record(int, "rounds"),
        "min_sep": _of_record(int, "min_sep"),
        "max_participations": _of_record(int, "max_participations"),
        "observed_rounds": _if_realised(_Whole, lambda found: found.evidence.rounds),
        "observed_min_sep": _if_realised(_Whole, lambda found: found.evidence.observed.min_sep),
        "observed_max_participations": _if_realised(_Whole, lambda found: found.evidence.observed.max_participations),
        "sampler": _of_record(str, "sampler"),
    },
    "rounds": {
        "released": _of_ledger(_Whole, lambda ledger: len(ledger.released)),
        "computed_again": _of_ledger(_Whole, lambda ledger: repeated(ledger.attempts)),
        "released_again": _of_ledger(_Whole, lambda ledger: repeated(ledger.released)),
        "smallest_cohort": (_Whole, lambda found: min(found.evidence.sizes.values(), default=None)),
        "largest_cohort": (_Whole, lambda found: max(found.evidence.sizes.values(), default=None)),
        "divisor": _of_record(_Number, "divisor"),
        "ended": _of_ledger(bool | None, lambda ledger: ledger.ended),
    },
    "mechanism": {
        "kind": (_Text, _mechanism("kind")),
        "sha256": _of_record(str, "mechanism_sha256"),
        "made_for": (_MadeFor | None, made_for),
        "rounds_at_most": (_Whole, _mechanism("max_rounds")),
    },
    "clipping": {
        "clip_norm": _of_record(Number, "clip_norm"),
        "adaptive_count_stddev": _of_record(_Number, "adaptive_count_stddev"),
        "restart_every": _of_record(_Whole, "restart_every"),
    },
    "noise": {
        "noise_multiplier": _of_record(Number, "noise_multiplier"),
        "sensitivity": (_Number, _sensitivity("value")),
        "sensitivity_exact": (bool | None, _sensitivity("exact")),
        "noise_multiplier_as_run": (Number, lambda found: found.record.noise_multiplier_as_run),
        "stddev_of_z_in_the_sum": (Number, lambda found: found.record.stddev),
        "stddev_of_z_in_the_mean": (
            _Number,
            lambda found: found.record.stddev / found.record.divisor if found.record.divisor else None,
        ),
    },
    "accountant": {
        "name": (Literal["gaussian"], lambda found: "gaussian"),
        "version": (str, lambda found: f"tff-mf {tff_mf.__version__}"),
        "planned": (_Measures | None, _measures("planned")),
        "realised": (_Measures | None, _measures("seen")),
    },
    "randomness": {
        "generator": (str, generator),
        "secure_mode": (bool, lambda found: generator(found) == "aes" and found.record.insecure_seed is None),
        "insecure_seed": _of_record(_Whole, "insecure_seed"),
    },
    "covered": {
        "released_without_noise": (list[dict[str, Any]], lambda found: list(found.record.released_without_noise)),
        "evaluated_on_training": (
            bool,
            lambda found: any(each.get("of") == ALSO_TRAINING for each in found.record.released_without_noise),
        ),
        "sampling_in_secret": (_Text, sampling_in_secret),
    },
}
_TYPES = {
    section: record(section.title(), **{name: kind for name, (kind, _) in facts.items()})
    for section, facts in SECTIONS.items()
}
_Grid = record(
    "Grid",
    integers=Literal["int32", "int64"],
    sampler=str,
    **dict.fromkeys(("bits", "max_clients", "bits_per_coordinate", "dimension"), int),
    **dict.fromkeys(("limit", "error", "log_ratio", "mu", "added_sensitivity", "tail"), _Number),
)
_Reason: Any = one_of(*REASONS)
_Counts = dict.fromkeys(("rounds", "rounds_without_updates", "came", "counted", "clipped", "zeroed"), int)
_DeviceReports = record("DeviceReports", refused=dict[_Reason, CountOrZero], **_Counts)
_Report = record(
    "Report",
    report=one_of(VERSION),
    kind=Literal["planned", "realised"],
    claim=statements.Claim,
    **_TYPES,
    assumptions=list[Assumption],
    answers=record("Answers", **{each.name: Any for each in ASKED}),
    findings=list[Finding],
    grid=_Grid | None,
    utility=UTILITY | None,
    settings=dict[str, Any],
    versions=dict[str, Any],
    command=list[str],
    files=dict[str, Any],
    device_reports=_DeviceReports | UnsetType,
)
SCHEMA: dict[str, Any] = {
    "title": f"tff-mf privacy report, version {VERSION}",
    "$comment": "JSON Schema, draft 2020-12",
    **msgspec.json.schema(_Report),
}


def problem(report: Any) -> str:
    """Returns where a report does not conform to the schema; an empty text if it does."""
    return typed.problem(report, _Report)


def facts(found: Judgement) -> dict[str, Any]:
    """Returns all facts of a report, as JSON."""
    evidence, folder = found.evidence, found.evidence.folder
    files = _FINAL_FILES if evidence.realised else _PLANNED_FILES
    counts = device_reports(evidence)
    return {
        "report": VERSION,
        "kind": "realised" if evidence.realised else "planned",
        "claim": statements.facts(found.claim),
        **{section: {name: of(found) for name, (_, of) in rows.items()} for section, rows in SECTIONS.items()},
        "assumptions": msgspec.to_builtins(found.assumptions),
        "answers": {each.name: evidence.answers.get(each.name) for each in ASKED},
        "findings": msgspec.to_builtins(found.findings),
        "grid": grid_of(evidence.record, found.figures),
        "utility": utility(folder) if evidence.realised else None,
        "settings": settings(evidence.record),
        "versions": evidence.record.versions,
        "command": list(evidence.record.command),
        "files": {name: file_hash(folder / name) for name in files if (folder / name).is_file()},
        **({} if counts is None else {DEVICE_REPORTS: counts}),
    }
