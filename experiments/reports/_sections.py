"""Sections of a report that follow from the files of the run and the judgement on them."""

import datetime
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.base import strict_json

from ..privacy import amplification, statements
from ..run_folder.metrics import ALSO_TRAINING, NOT_TRAINING
from ..run_folder.names import METRICS, SETTINGS_TOML, SUMMARY
from ..run_folder.run_record import RunRecord
from ..sampling import settings as samplings
from . import _figures, _judgement
from ._evidence import Case
from ._judgement import Judgement
from ._layout import NOT_COVERED, NOT_IN_SECRET
from .questions import ANSWERED_BY


def about(folder: pathlib.Path, case: Case) -> dict[str, Any]:
    """Returns what is known of a run beside its guarantee, as JSON; `None` where no file says it.

    None of it can be checked, and no figure depends on it.
    """
    settings, ledger = case.record.settings, case.evidence.ledger
    # A planned report can be older than the settings that a run was given.
    given = _of_configuration(folder) if case.realised else None
    started, ended = (None, None) if ledger is None else (ledger.started, ledger.finished)
    return {
        "data_set": {
            "name": _without_folder(_known(settings.get("dataset", given), str)),
            "sha256": _known(settings.get("dataset_sha256"), str),
            "clients": _known(settings.get("training_clients"), int),
            "examples": _known(settings.get("training_examples"), int),
        },
        "started": started,
        "ended": ended,
        # It depends on how many took part.
        "seconds": None if case.record.is_secret else _seconds(started, ended),
        ANSWERED_BY.name: case.answers.get(ANSWERED_BY.name),
    }


def _of_configuration(folder: pathlib.Path) -> Any:
    try:
        return tomllib.loads((folder / SETTINGS_TOML).read_text(encoding="utf-8"))["run"]["dataset"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _known(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _without_folder(name: str | None) -> str | None:
    """Returns the name of a data set without the folder of its file: a report is published."""
    return None if name is None else re.sub("[^:/]*/", "", name)


def _seconds(started: str | None, ended: str | None) -> int | None:
    """Returns how long a run took; `None` if it is unknown, or the clock was set back meanwhile."""
    if started is None or ended is None:
        return None
    took = datetime.datetime.fromisoformat(ended) - datetime.datetime.fromisoformat(started)
    return int(took.total_seconds()) if took >= datetime.timedelta() else None


def accountant(case: Case, found: Judgement) -> dict[str, Any]:
    """Returns the figures of the plan and of the run, in each privacy measure; none if the claim is refused."""
    refused = statements.state(found.claim) == statements.REFUSED
    planned, realised = (None, None) if refused else (found.planned, found.seen)
    return {
        "name": "one Gaussian release, closed form (Balle and Wang 2018, theorem 8)",
        "version": f"tff-mf {tff_mf.__version__}",
        "conditional": "these figures suppose that every assumption holds",
        "planned": None if planned is None else _figures.measures(planned.guarantee, case.record.delta),
        "realised": None if realised is None else _figures.measures(realised.guarantee, case.record.delta),
    }


def audit(found: Any, *, refused: bool) -> Any:
    """Returns what a report says about the audit, without any ε if the claim is refused."""
    hidden = dict.fromkeys(("claimed_epsilon", "shown_epsilon"))
    return {**found, **hidden} if refused and isinstance(found, Mapping) else found


def setting(case: Case) -> dict[str, Any]:
    """Returns who is trusted, and how many clients there are."""
    record = case.record
    return {
        "model": "central",
        "trusted": case.answers["trusted"],
        "simulation": record.simulation,
        "cohort": record.cohort,
        "clients_per_round": record.clients_per_round,
        "population": _judgement.population(case),
    }


def covered(case: Case) -> dict[str, Any]:
    """Returns what the guarantee covers, and what it does not."""
    answers = case.answers
    also = any(each.get("of") == ALSO_TRAINING for each in case.record.released_without_noise)
    return {
        "covered": ["this one run: every noised sum, every intermediate model and the final model"],
        "not_covered": [
            *(each.replace(NOT_TRAINING, ALSO_TRAINING) if also else each for each in NOT_COVERED),
            _tuning(answers["tuning_runs"]),
            *_sampling(case.record),
        ],
        "pretraining": answers["pretraining"],
        "released_without_noise": list(case.record.released_without_noise),
        "other_releases": answers["other_releases"],
    }


def _sampling(record: RunRecord) -> list[str]:
    """Returns that a run that logs its cohorts has no amplified ε, if its sampling amplifies elsewhere."""
    drawn = samplings.of_run(record.settings)
    if record.is_secret or drawn is None or not drawn.is_secret or drawn.sampling in amplification.POISSON:
        return []
    return [NOT_IN_SECRET.format(sampling=drawn.sampling)]


def participation(case: Case) -> dict[str, Any]:
    """Returns the participation schema of the claim and the observed participation."""
    record, evidence, realised = case.record, case.evidence, case.realised and not case.record.is_secret
    return {
        "schema": record.participation,
        "rounds": record.rounds,
        "min_sep": record.min_sep,
        "max_participations": record.max_participations,
        "observed_rounds": evidence.rounds if realised else None,
        "observed_min_sep": evidence.min_sep if realised else None,
        "observed_max_participations": evidence.max_participations if realised else None,
        "sampler": record.sampler,
        "enforcement": case.answers["enforcement"],
    }


def noise(record: RunRecord, figures: _figures.Figures | None) -> dict[str, Any]:
    """Returns the scale of the noise and the sensitivity."""
    sensitivity = None if figures is None else figures.sensitivity
    return {
        "noise_multiplier": record.noise_multiplier,
        "sensitivity": None if sensitivity is None else sensitivity.value,
        "sensitivity_exact": None if sensitivity is None else sensitivity.exact,
        "sensitivity_rule": None if sensitivity is None else sensitivity.rule,
        **_scales(record),
    }


def mechanism(case: Case) -> dict[str, Any]:
    """Returns the mechanism of the artifact."""
    record, mechanism = case.record, case.evidence.mechanism
    optimized_for = None if mechanism is None else mechanism.optimized_for
    return {
        "kind": None if mechanism is None else mechanism.kind,
        "sha256": record.mechanism_sha256,
        "made_for": None if optimized_for is None else repr(optimized_for),
        "rounds_at_most": None if mechanism is None else mechanism.max_rounds,
    }


def clipping(record: RunRecord) -> dict[str, Any]:
    """Returns the clip norm, and whether it adapts."""
    return {name: getattr(record, name) for name in ("clip_norm", "adaptive_count_stddev", "restart_every")}


def _scales(record: RunRecord) -> dict[str, float | None]:
    run = record.noise_multiplier * record.clients_per_round / record.cohort
    stddev = run * record.clip_norm
    return {
        "noise_multiplier_as_run": run,
        "stddev_of_z_in_the_sum": stddev,
        "stddev_of_z_in_the_mean": None if not record.divisor else stddev / record.divisor,
    }


def rounds(case: Case) -> dict[str, Any]:
    """Returns how many rounds ran, and the sizes of their cohorts."""
    record, ledger = case.record, case.evidence.ledger
    sizes = list(_judgement.sizes(case.evidence).values())
    return {
        "planned": record.rounds,
        "released": len(ledger.released) if ledger else None,
        "computed_again": sum(times > 1 for times in ledger.attempts.values()) if ledger else None,
        "released_again": sum(times > 1 for times in ledger.released.values()) if ledger else None,
        "smallest_cohort": min(sizes, default=None),
        "largest_cohort": max(sizes, default=None),
        "divisor": record.divisor,
        "ended": ledger.ended if ledger else None,
        "not_finite": "updates that are not finite count as zero" if case.realised else None,
    }


def utility(folder: pathlib.Path) -> dict[str, Any] | None:
    """Returns the quality of the model as the summary states it, if it does."""
    try:
        summary = strict_json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        of = f"claimed by {SUMMARY}, as {METRICS} has it: nothing here can evaluate the model again"
        if "test_sentences" in summary:
            number = int(summary["test_sentences"])
            of = f"claimed by {SUMMARY}, on {number:,} test sentences: nothing here can evaluate the model again"
        return {**{name: summary[name] for name in ("accuracy", "loss")}, "source": of}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _tuning(runs: int | None) -> str:
    return "an unknown number of earlier runs" if runs is None else f"{runs} earlier runs, which chose the settings"
