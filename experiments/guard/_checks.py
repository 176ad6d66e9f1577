"""Checks of a guard before it writes anything: the noise of the aggregator and of states, and the folder."""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

from .. import reports
from ..runs.folders import delete_keys
from ..runs.ledger import has_begun, read_ledger
from ..runs.names import CHECKPOINTS, LEDGER, METRICS, MODEL, REPORT, REPORT_TEXT, SUMMARY

if TYPE_CHECKING:
    from ...aggregators import MFAggregationFactory

# What a run leaves behind, besides its checkpoints.
_REMAINS = (REPORT, MODEL, METRICS, SUMMARY)


class OtherRoundsError(InputValueError):
    """The noise in a state was drawn for another number of rounds."""


def check_drawn(state: Any, noise: str | None, round_number: int, *, last_released: int) -> None:
    """Raises unless the noise in a server's state was drawn exactly once for each round up to `round_number`."""
    if state is None:
        if noise is not None:
            raise InputTypeError(
                "state=None must be the process's state after the round: the guard checks the rounds of its noise."
            )
        return
    from ... import aggregators

    drawn = aggregators.rounds_drawn(state)
    if noise is not None:
        if noise not in drawn:
            raise InputValueError(
                f"state has {'other noise than' if drawn else 'no noise of'} the aggregator that the guard was opened "
                "with: pass the state that the process with this aggregator returned."
            )
        drawn = {noise: drawn[noise]}
    other = next((rounds for rounds in drawn.values() if rounds != round_number), None)
    if not drawn:
        raise InputValueError("state has no noise: pass the whole state that the process returned.")
    if other is not None:
        raise OtherRoundsError(
            f"round_number={round_number}: the noise of the state was drawn for {other} rounds. A round that was "
            "begun was never computed, or was not computed from the state of the round before, so noise went to other "
            f"cohorts than those in the log. Release nothing of it, delete checkpoints after round {last_released}, "
            f"load the state of round {last_released}, call goes_back_to({last_released + 1}), and begin again from "
            "there. If a round fails, call goes_back_to with it before the next cohort."
        )


def check_aggregator(aggregator: "MFAggregationFactory", plan: tff_mf.Plan, more: Mapping[str, Any]) -> None:
    """Raises unless an aggregator adds the noise of the plan, and divides by its clients per round."""
    from ... import aggregators

    validation.instance(
        "aggregator", aggregator, aggregators.MFAggregationFactory, "pass what build_mf_aggregator returns"
    )
    if aggregator.clients_per_round != plan.clients_per_round:
        raise InputValueError(
            f"aggregator divides by clients_per_round={aggregator.clients_per_round!r}, and the plan is for "
            f"{plan.clients_per_round}: build both with one number."
        )
    about = more.get("about")
    if isinstance(about, Mapping) and "generator" in about:
        raise InputValueError(
            f"about['generator']={about['generator']!r} is not the generator of aggregator, whose noise is "
            "TensorFlow's: leave it out, and the report names that."
        )
    if aggregator.insecure and plan.insecure_seed is None:
        raise InputValueError(
            "aggregator does not have the noise of the plan: its keys are known, by insecure_seed; pass "
            "what build_mf_aggregator returns."
        )
    clipping, restart_every = aggregator.adaptive_clipping, plan.restart_every
    _check_counts(None if clipping is None else clipping.count_stddev, plan)
    of_plan = None
    if clipping is None or restart_every is not None:
        of_plan = aggregators.MFAggregationFactory.of_plan(
            plan, restart_every=restart_every, adaptive_clipping=clipping, rounds=None
        ).fingerprint
    if aggregator.fingerprint != of_plan:
        raise InputValueError(
            "aggregator does not have the noise of the plan: build it with the plan's mechanism, "
            f"clip_norm={plan.clip_norm!r}, noise_multiplier={plan.noise_multiplier_as_run!r}, "
            f"restart_every={restart_every!r}, grid={plan.grid!r} and insecure_seed={plan.insecure_seed!r}."
        )


def _check_counts(of_aggregator: float | None, plan: tff_mf.Plan) -> None:
    """Raises unless the noise of adaptive clipping's counts is the one that is accounted for."""
    accounted = plan.adaptive_count_stddev
    if of_aggregator is None and accounted is None:
        return
    scale = plan.cohort / plan.clients_per_round
    if of_aggregator is None:
        raise InputValueError(
            f"adaptive_count_stddev={accounted!r}, and the aggregator has no adaptive_clipping: leave it out, or build "
            "the aggregator with it."
        )
    if accounted is None or not math.isclose(accounted, of_aggregator * scale, rel_tol=1e-12):
        raise InputValueError(
            f"adaptive_count_stddev={accounted!r} must be {of_aggregator * scale!r}, the standard deviation of the "
            "noise in the counts that the aggregator releases."
        )


def check_folder(folder: pathlib.Path, *, ended: bool = False) -> None:
    """Raises if a folder holds a run that has ended, or files of a run without its ledger.

    What the end of a run does is done here if the run was stopped in between: its keys are deleted, with which the
    noise can be removed from its models, and its report is written.

    Args:
        folder: The folder, which no other process uses.
        ended: Whether the run may have ended.
    """
    book = folder / LEDGER
    if book.is_file() and read_ledger(book).ended:
        delete_keys(folder)
        if not (_ended(folder / REPORT) and (folder / REPORT_TEXT).is_file()):
            reports.write(folder, realised=True)
        if ended:
            return
        raise InputValueError(
            f"folder={str(folder)!r} holds a run that has ended: its model and report are there; name another folder "
            "for another run."
        )
    if _ended(folder / REPORT):
        raise InputValueError(
            f"folder={str(folder)!r} holds the report of a run that has ended, and its {LEDGER} has no end: put the "
            "newest ledger back."
        )
    if has_begun(book):
        return
    left = [name for name in _REMAINS if (folder / name).exists()]
    if any((folder / CHECKPOINTS).glob("*")):
        left.append(CHECKPOINTS)
    if left:
        raise InputValueError(
            f"folder={str(folder)!r} holds {', '.join(left)} of a run, but no {LEDGER}: its rounds would be "
            "released twice. Restore the ledger, or name another folder."
        )


def _ended(path: pathlib.Path) -> bool:
    try:
        log = json.loads(path.read_bytes())["log"]
        return bool(log and log["has_ended"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as error:
        raise InputValueError(f"report={str(path)!r} is damaged: restore it, or name another folder.") from error
