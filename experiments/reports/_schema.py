"""The JSON schema of a report, and a check of JSON objects by such schemas."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ..privacy.statements import STATES
from ..run_folder.report_counts import REASONS
from ._arithmetic import GRID
from ._build import VERSION
from ._device_reports import DEVICE_REPORTS

_COUNTS = ("came", "counted", "clipped", "zeroed")
_NUMBER = {"type": ["number", "null"]}
_WHOLE = {"type": ["integer", "null"]}
_TEXT = {"type": ["string", "null"]}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _list(**properties: Any) -> dict[str, Any]:
    return {"type": "array", "items": _object(**properties)}


_MEASURES = {
    **_object(
        mu=_NUMBER,
        zcdp_rho=_NUMBER,
        epsilon=_NUMBER,
        epsilon_by_pld=_NUMBER,
        epsilon_from_zcdp=_NUMBER,
        delta={"type": "number"},
        epsilon_at=_list(delta={"type": "number"}, epsilon=_NUMBER),
    ),
    "type": ["object", "null"],
}

SCHEMA: dict[str, Any] = {
    "title": f"tff-mf privacy report, version {VERSION}",
    "$comment": "JSON Schema, draft 2020-12",
    **_object(
        report={"enum": [VERSION]},
        kind={"enum": ["planned", "realised"]},
        headline={"type": "string"},
        claim=_object(
            state={"enum": list(STATES)},
            reason=_TEXT,
            open_questions={"type": "array", "items": {"type": "string"}},
            delta={"type": "number"},
            participation={"type": "string"},
            simulation={"type": "boolean"},
            adjacency={"enum": ["zero-out", "replace-one"]},
            **{name: {"type": "integer"} for name in ("rounds", "cohort", "clients_per_round")},
            **dict.fromkeys(("population", "clients_of_one_person"), _WHOLE),
            **dict.fromkeys(("epsilon", "epsilon_of_a_person", "epsilon_as_run", "zcdp_rho", "mu", "tail"), _NUMBER),
        ),
        about=_object(
            data_set=_object(name=_TEXT, sha256=_TEXT, clients=_WHOLE, examples=_WHOLE),
            started=_TEXT,
            ended=_TEXT,
            seconds=_WHOLE,
            answered_by=_TEXT,
        ),
        statement={"type": "string"},
        tier=_TEXT,
        tier_source={"type": "string"},
        setting=_object(
            model={"enum": ["central"]},
            trusted=_TEXT,
            simulation={"type": "boolean"},
            cohort={"type": "integer"},
            clients_per_round={"type": "integer"},
            population=_WHOLE,
        ),
        covered=_object(
            covered={"type": "array", "items": {"type": "string"}},
            not_covered={"type": "array", "items": {"type": "string"}},
            pretraining=_TEXT,
            released_without_noise={"type": "array", "items": {"type": "object"}},
            other_releases=_TEXT,
        ),
        unit=_object(client=_TEXT, clients_of_one_person=_WHOLE),
        adjacency={"enum": ["zero-out", "replace-one"]},
        participation=_object(
            schema={"enum": ["MinSep", "FixedEpoch", "SingleParticipation"]},
            rounds={"type": "integer"},
            min_sep={"type": "integer"},
            max_participations={"type": "integer"},
            observed_rounds=_WHOLE,
            observed_min_sep=_WHOLE,
            observed_max_participations=_WHOLE,
            sampler={"type": "string"},
            enforcement=_TEXT,
        ),
        mechanism=_object(kind=_TEXT, sha256={"type": "string"}, made_for=_TEXT, rounds_at_most=_WHOLE),
        clipping=_object(clip_norm={"type": "number"}, adaptive_count_stddev=_NUMBER, restart_every=_WHOLE),
        noise=_object(
            noise_multiplier={"type": "number"},
            sensitivity=_NUMBER,
            sensitivity_exact={"type": ["boolean", "null"]},
            sensitivity_rule=_TEXT,
            noise_multiplier_as_run={"type": "number"},
            stddev_of_z_in_the_sum={"type": "number"},
            stddev_of_z_in_the_mean=_NUMBER,
        ),
        accountant=_object(
            name={"type": "string"},
            version={"type": "string"},
            conditional={"type": "string"},
            planned=_MEASURES,
            realised=_MEASURES,
        ),
        assumptions=_list(
            name={"type": "string"}, state={"enum": ["holds", "assumed", "violated"]}, text={"type": "string"}
        ),
        questions=_list(name={"type": "string"}, text={"type": "string"}, answer={}),
        findings=_list(
            severity={"enum": ["critical", "warning", "note"]}, field={"type": "string"}, text={"type": "string"}
        ),
        randomness=_object(
            algorithm={"type": "string"},
            entropy={"type": "string"},
            secure_mode={"type": "boolean"},
            insecure_seed=_WHOLE,
            severities=_list(severity={"type": "string"}, what={"type": "string"}),
        ),
        arithmetic=_object(noise={"type": "string"}, accounting={"type": "string"}, severity={"type": "string"}),
        rounds=_object(
            planned={"type": "integer"},
            released=_WHOLE,
            computed_again=_WHOLE,
            released_again=_WHOLE,
            smallest_cohort=_WHOLE,
            largest_cohort=_WHOLE,
            divisor=_NUMBER,
            ended={"type": ["boolean", "null"]},
            not_finite=_TEXT,
        ),
        utility={"type": ["object", "null"]},
        audit={},
        caveats={"type": "string"},
        settings={"type": "object"},
        versions={"type": "object"},
        command={"type": "array", "items": {"type": "string"}},
        files={"type": "object"},
        ledger_head=_TEXT,
        digest={"type": "string"},
    ),
    "additionalProperties": False,
}
# Only in reports of a run whose ledger has counts of device reports.
SCHEMA["properties"][DEVICE_REPORTS] = {
    **_object(
        **{name: {"type": "integer"} for name in ("rounds", "rounds_without_updates", *_COUNTS)},
        refused={
            "type": "object",
            "properties": {reason: {"type": "integer"} for reason in REASONS},
            "additionalProperties": False,
        },
        note={"type": "string"},
    ),
    "additionalProperties": False,
}

# Only in reports of a run on a grid.
SCHEMA["properties"][GRID] = {
    **_object(
        **{name: {"type": "integer"} for name in ("bits", "max_clients", "bits_per_coordinate", "dimension")},
        **dict.fromkeys(("limit", "error", "log_ratio", "mu", "added_sensitivity", "tail"), _NUMBER),
        integers={"enum": ["int32", "int64"]},
        sampler={"type": "string"},
    ),
    "additionalProperties": False,
}

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def problems(report: Any, schema: Mapping[str, Any] = SCHEMA, where: str = "report") -> Iterator[str]:
    """Yields where a report does not conform to a schema, for the keywords of JSON Schema that are used here.

    Example:
        >>> list(problems({"n": "3"}, {"type": "object", "properties": {"n": {"type": "integer"}}}))
        ["report.n='3' is not integer"]
    """
    if "enum" in schema and report not in schema["enum"]:
        yield f"{where}={report!r} is not one of {schema['enum']}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(report, kind) for kind in kinds):
        yield f"{where}={report!r} is not {' or '.join(kinds)}"
        return
    if isinstance(report, Mapping):
        properties = schema.get("properties", {})
        yield from (f"{where} has no {name}" for name in schema.get("required", []) if name not in report)
        if schema.get("additionalProperties") is False:
            yield from (f"{where} has {name}, which is unknown" for name in report if name not in properties)
        for name, value in report.items():
            yield from problems(value, properties.get(name, {}), f"{where}.{name}")
    if isinstance(report, list):
        for index, value in enumerate(report):
            yield from problems(value, schema.get("items", {}), f"{where}[{index}]")


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "number" and isinstance(value, int | float):
        # Numbers in JSON are unbounded, and Python reads infinities and NaN too.
        return abs(value) <= sys.float_info.max
    return isinstance(value, _TYPES[kind])
