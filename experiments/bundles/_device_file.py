"""`device-policy.json`: the policy of clients, the guarantee that it gives, and its requirements on the server."""

import hashlib
import json
import pathlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, UnsetType

import tff_mf
from tff_mf.base import strict_json
from tff_mf.base.errors import InputError, InputValueError

from .. import reports
from ..output import agreement, typed
from ..output.typed import Count, Number, record
from ..runs.names import MECHANISM
from ..runs.rules import Schema
from ._manifest import DEVICE_POLICY
from ._policies import FIRST_INDEX, TASK_NAME, DevicePolicy, ParticipationPolicy, of_devices_alone, read_policy

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

_Index = Annotated[int, Meta(ge=0)]
_Seconds = Annotated[str, Meta(pattern="^(0|[1-9][0-9]*)s$")]
_MinSepPolicy = record(
    "MinSepPolicy", current_index=_Index, minimum_separation=_Index, min_trustworthiness_period=_Seconds
)
_Eligibility = record(
    "Eligibility",
    name=str,
    min_version=Count,
    min_sep_policy=_MinSepPolicy | UnsetType,
    swor_policy=record("SworPolicy", min_period=_Seconds) | UnsetType,
)
_Task = record(
    "Task",
    task_name=Annotated[str, Meta(pattern=f"^{TASK_NAME}$")],
    task_assignment_mode=Literal["TASK_ASSIGNMENT_MODE_SINGLE"],
    eligibility_policy_indices=list[_Index],
)
_Tasks = Annotated[list[_Task], Meta(min_length=1, max_length=1)]
_Kept = record(
    "Kept",
    participation=Literal["MinSep", "FixedEpoch", "SingleParticipation"],
    min_sep=Count,
    max_participations=Count,
    epsilon=Number | None,
    delta=Number,
)
_File = record(
    "DevicePolicy",
    version=Literal[1],
    # google.internal.federated.plan.PopulationEligibilitySpec, and ClientPersistedData, of the first round.
    population_eligibility_spec=record("Spec", task_info=_Tasks, eligibility_policies=list[_Eligibility]),
    client_persisted_data=record("Persisted", min_sep_policy_index=_Index),
    # What the policy needs of the client and of the server.
    client_flags=record("Flags", log_min_sep_index_to_phase_stats=bool, opstats_ttl_days=Count),
    server=dict[str, Literal["critical", "warning"]],
    index=record("Index", first=_Index, last=_Index),
    # Schemas, each with the ε that follows from it if all holds that planned.json assumes.
    guarantee=record(
        "Guarantee",
        claimed=_Kept,
        by_devices_alone=_Kept,
        devices_alone_suffice=bool,
        by_min_sep_alone=_Kept | None,
    ),
)


def device_policy_schema() -> dict[str, Any]:
    """Returns the JSON Schema of `device-policy.json`."""
    return msgspec.json.schema(_File)


def write_device_policy(folder: pathlib.Path, *, task_name: str | None = None) -> None:
    """Writes the policy of clients, which follows from `run.json`, the artifact and `participation.json`."""
    if task_name is None:
        # Two deployments share it only if they have the same guarantee and do the same.
        run = msgspec.to_builtins(reports.read_record(folder))
        content = json.dumps({name: value for name, value in run.items() if name not in _SAID}, sort_keys=True)
        task_name = f"tff-mf-{hashlib.sha256(content.encode()).hexdigest()[:_NAME_DIGITS]}"
    text = json.dumps(_document(folder, task_name), indent=1, ensure_ascii=False)
    (folder / DEVICE_POLICY).write_text(text + "\n", encoding="utf-8")


def task_name_of(folder: pathlib.Path) -> str:
    """Returns the name of a bundle's task."""
    return _read(folder)["population_eligibility_spec"]["task_info"][0]["task_name"]


def device_policy_problem(folder: pathlib.Path) -> str:
    """Returns the reason why the policy of clients must not be deployed, or an empty text.

    Formal guarantee: if the text is empty, all in the file but the task's name follows from the bundle's other files,
    up to numbers of another machine that agree.
    """
    try:
        differing = agreement.differing(_read(folder), _document(folder, task_name_of(folder)))
    except InputError as error:
        return str(error)
    if differing:
        return f"{differing[0]} does not follow from the other files; if another release wrote it, export again"
    return ""


def _read(folder: pathlib.Path) -> dict[str, Any]:
    stored = strict_json.read(folder / DEVICE_POLICY, "device_policy")
    if problem := typed.problem(stored, _File):
        raise InputValueError(f"{DEVICE_POLICY} does not match its schema: {problem}")
    return stored


def _document(folder: pathlib.Path, task_name: str) -> dict[str, Any]:
    run, policy = reports.read_record(folder), read_policy(folder)
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
