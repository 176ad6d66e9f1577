"""Checks of a guard before it writes anything: client ids, the noise, the folder, and the checkpoint of a run."""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

from ..privacy.plan import PrivacyPlan
from ..run_folder.names import CHECKPOINTS, LEDGER, METRICS, MODEL, PARTICIPATION, REPORT, SUMMARY

if TYPE_CHECKING:
    from ...aggregators import MFAggregationFactory

# What a run leaves behind, besides its checkpoints.
_REMAINS = (REPORT, MODEL, METRICS, SUMMARY, PARTICIPATION)


class OtherRoundsError(InputValueError):
    """The noise in a state was drawn for another number of rounds."""


def ids(clients: Sequence[str]) -> list[str]:
    """Returns the ids of a cohort, read once: a sequence that draws clients when it is read could differ the next time.

    Raises:
        InputTypeError: If `clients` is not a sequence of strings.
        InputValueError: If an id cannot be written to a file.
    """
    if isinstance(clients, str) or not isinstance(clients, Sequence):
        raise InputTypeError(f"clients={clients!r:.80} must be a sequence of ids.")
    read = list(clients)
    for client in read:
        if not isinstance(client, str):
            raise InputTypeError(f"clients has {client!r}; every id must be a string.")
        try:
            client.encode()
        except UnicodeEncodeError as error:
            raise InputValueError(
                f"clients has {client!r}, which cannot be encoded in UTF-8: {error.reason}. Give the client another id."
            ) from error
    # The text itself, and not what a subclass of `str` returns for it.
    return [str.__str__(client) for client in read]


def check_drawn(state: Any, noise: str | None, round_number: int, *, last_released: int) -> None:
    """Raises unless the noise in a server's state was drawn exactly once for each round up to `round_number`.

    Args:
        state: The state of the process after the round.
        noise: Fingerprint of the aggregator's noise; `None` if the aggregator is unknown.
        round_number: The round, counted from 1; 0 for the initial state.
        last_released: The last round that was released, for the message.

    Raises:
        InputTypeError: If there is no state, although the aggregator is known.
        InputValueError: If the state has no noise, or noise of another aggregator or of another number of rounds.
    """
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


def check_aggregator(
    aggregator: "MFAggregationFactory", plan: PrivacyPlan, clip_norm: float, more: Mapping[str, Any]
) -> None:
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
    settings = more.get("settings")
    if isinstance(settings, Mapping) and "generator" in settings:
        raise InputValueError(
            f"settings['generator']={settings['generator']!r} is not the generator of aggregator, whose noise is "
            "TensorFlow's: leave it out, and the report names that."
        )
    # Keys that are repeated have the plan's fingerprint, so that past rounds can be verified.
    if aggregator.insecure and plan.insecure_seed is None:
        raise InputValueError(
            "aggregator does not have the noise of the plan: its keys are known, by insecure_seed or repeating; pass "
            "what build_mf_aggregator returns."
        )
    clipping, restart_every = aggregator.adaptive_clipping, more.get("restart_every", plan.restart_every)
    accounted = more.get("adaptive_count_stddev", plan.adaptive_count_stddev)
    _check_counts(None if clipping is None else clipping.count_stddev, plan, accounted)
    # If the cohort trains itself, the plan's two noise multipliers are the same up to rounding.
    same = {plan.noise_multiplier_as_run} | (
        {plan.noise_multiplier} if plan.cohort == plan.clients_per_round else set()
    )
    of_plan = set()
    if clipping is None or restart_every is not None:
        of_plan = {
            aggregators.MFAggregationFactory(
                plan.mechanism,
                clip_norm=clip_norm,
                noise_multiplier=noise_multiplier,
                clients_per_round=plan.clients_per_round,
                restart_every=restart_every,
                adaptive_clipping=clipping,
                insecure_seed=plan.insecure_seed,
                grid=plan.grid,
            ).fingerprint
            for noise_multiplier in same
        }
    if aggregator.fingerprint not in of_plan:
        raise InputValueError(
            "aggregator does not have the noise of the plan: build it with the plan's mechanism, "
            f"clip_norm={clip_norm!r}, noise_multiplier={plan.noise_multiplier_as_run!r}, "
            f"restart_every={restart_every!r}, grid={plan.grid!r} and insecure_seed={plan.insecure_seed!r}; "
            "pass the same restart_every to open_guard."
        )


def _check_counts(of_aggregator: float | None, plan: PrivacyPlan, accounted: float | None) -> None:
    """Raises unless the noise of adaptive clipping's counts is the one that is accounted for."""
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


def check_folder(folder: pathlib.Path) -> None:
    """Raises if a folder holds a run that has ended, or files of a run without its ledger.

    Raises:
        InputValueError: If it does.
    """
    if _ended(folder / REPORT):
        raise InputValueError(
            f"out={str(folder)!r} holds the report of a run that has ended: name another folder for another run."
        )
    book = folder / LEDGER
    if book.is_file() and b"\n" in book.read_bytes():
        return
    left = [name for name in _REMAINS if (folder / name).exists()]
    if any((folder / CHECKPOINTS).glob("*")):
        left.append(CHECKPOINTS)
    if left:
        raise InputValueError(
            f"out={str(folder)!r} holds {', '.join(left)} of a run, but no {LEDGER}: its rounds would be "
            "released twice. Restore the ledger, or name another folder."
        )


def _ended(path: pathlib.Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes())["rounds"]["ended"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as error:
        raise InputValueError(f"report={str(path)!r} is damaged: restore it, or name another folder.") from error


def refusal(schema: tff_mf.Participation, past: Sequence[int], round_number: int) -> str:
    """Returns why a client may not take part in a round, given its past rounds; an empty text if it may.

    Past rounds can be later ones, from abandoned attempts. If the round is among them, it counts once.

    Args:
        schema: The participation schema.
        past: Rounds for which the client was chosen.
        round_number: The round.

    Example:
        >>> refusal(tff_mf.MinSep(min_sep=3, max_participations=2), [1], 3)
        'took part in round 1: min_sep=3'
        >>> refusal(tff_mf.FixedEpoch(min_sep=3, max_participations=3), [1], 8)
        'took part in round 1: with min_sep=3 it may come in rounds 4, 7 after it'
    """
    others = [number for number in past if number != round_number]
    if schema.allows([*others, round_number]):
        return ""
    if len(others) + 1 > schema.max_participations:
        return f"took part in {len(others)} rounds: max_participations={schema.max_participations}"
    near = [number for number in others if abs(round_number - number) < schema.min_sep]
    if near:
        return f"took part in round {near[0]}: min_sep={schema.min_sep}"
    if isinstance(schema, tff_mf.FixedEpoch):
        first, b = min(*others, round_number), schema.min_sep
        places = ", ".join(str(first + index * b) for index in range(1, schema.max_participations))
        return f"took part in round {others[0]}: with min_sep={b} it may come in rounds {places} after it"
    return f"took part in rounds {others}, which {schema!r} does not allow together with round {round_number}"


def check_run(found: str | None, run: str) -> None:
    """Raises if a checkpoint belongs to another run: the clients of its rounds are not in the log of this run.

    Raises:
        InputValueError: If it does.
    """
    if found not in (None, run):
        raise InputValueError(f"run={found!r} of the checkpoint must be {run!r}: load a checkpoint of this run.")
