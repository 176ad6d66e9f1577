"""`device-policy.json`: the policy of clients, the guarantee that it gives, and its requirements on the server."""

import hashlib
import json
import pathlib
from typing import Any

import msgspec

import tff_mf

from .. import reports
from ..runs.names import MECHANISM
from ..runs.rules import Schema
from ._policies import FIRST_INDEX, DevicePolicy, ParticipationPolicy, of_devices_alone

DEVICE_POLICY = "device-policy.json"
_VERSION = 1
_DAY_SECONDS = 86400
# Days for which a client keeps its history by default.
_USUAL_DAYS = 30
_NAME_DIGITS = 12
# Entries of run.json that have no effect on the deployment.
_SAID = ("command", "versions", "population")
# What the policy needs of the server, by the names of docs/deployment.md, which says what each of them is.
REQUIREMENTS = {
    **dict.fromkeys(("index", "late", "once", "aborted", "task_name", "versions", "pauses", "history"), "critical"),
    "history_days": "warning",
}
# Only of a claim that no client enforces.
PLACES = {"places": "critical"}


def write_device_policy(folder: pathlib.Path, policy: ParticipationPolicy, *, task_name: str | None = None) -> str:
    """Writes the policy of clients, which follows from `run.json`, the artifact and the policy of rounds.

    Returns:
        The name of the task, which follows from the settings if it is not given.
    """
    if task_name is None:
        # Two deployments share it only if they have the same guarantee and do the same.
        run = msgspec.to_builtins(reports.read_record(folder))
        content = json.dumps({name: value for name, value in run.items() if name not in _SAID}, sort_keys=True)
        task_name = f"tff-mf-{hashlib.sha256(content.encode()).hexdigest()[:_NAME_DIGITS]}"
    text = json.dumps(_document(folder, policy, task_name), indent=1, ensure_ascii=False)
    (folder / DEVICE_POLICY).write_text(text + "\n", encoding="utf-8")
    return task_name


def _document(folder: pathlib.Path, policy: ParticipationPolicy, task_name: str) -> dict[str, Any]:
    run = reports.read_record(folder)
    device = DevicePolicy.of(policy, rounds=run.rounds, task_name=task_name)
    days = max(_USUAL_DAYS, -(-max(device.trust_seconds, device.timer_seconds) // _DAY_SECONDS))
    guarantee = _guarantee(policy, run, tff_mf.load(folder / MECHANISM))
    return {
        "version": _VERSION,
        "population_eligibility_spec": device.specification(),
        "client_persisted_data": {"min_sep_policy_index": FIRST_INDEX},
        "client_flags": {"log_min_sep_index_to_phase_stats": True, "opstats_ttl_days": days},
        "index": {"first": FIRST_INDEX, "last": run.rounds},
        "guarantee": guarantee,
        "server": {**REQUIREMENTS, **({} if guarantee["devices_alone_suffice"] else PLACES)},
    }


def _guarantee(policy: ParticipationPolicy, run: reports.RunRecord, mechanism: tff_mf.Mechanism) -> dict[str, Any]:
    """Returns the claimed schema, and the one that clients enforce without the server.

    Formal guarantee: `devices_alone_suffice` is whether every pattern that clients allow is one of the claimed schema;
    if not, `by_devices_alone` has the ε of the patterns that they do allow.
    """
    alone = of_devices_alone(policy, run.rounds)
    suffice = not policy.fixed_epochs or alone.max_participations == 1
    claimed = _claim(run, run.schema, mechanism)
    kept = {**claimed, **vars(Schema.of(alone))} if suffice else _claim(run, alone, mechanism)
    plain = tff_mf.MinSep(min_sep=policy.min_sep, max_participations=-(-run.rounds // policy.min_sep))
    return {
        "claimed": claimed,
        "by_devices_alone": kept,
        "devices_alone_suffice": suffice,
        # The guarantee if an operator shortens the separation on clients to min_sep.
        "by_min_sep_alone": None if plain == alone else _claim(run, plain, mechanism),
    }


def _claim(run: reports.RunRecord, schema: tff_mf.Participation, mechanism: tff_mf.Mechanism) -> dict[str, Any]:
    named = vars(Schema.of(schema))
    other = msgspec.structs.replace(run, **named)
    return {**named, "epsilon": reports.planned_epsilon(other, mechanism), "delta": run.delta}
