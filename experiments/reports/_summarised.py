"""Whether a run's `summary.json` says what follows from its other files, and whether its model is the one named."""

import csv
import hashlib
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tff_mf.errors import InputError

from .. import sampling
from ..output import strict_json
from ..privacy import amplification, statements, summary
from ..run_folder.run_json import Configuration
from ..sampling.settings import SamplingSettings
from ._configuration import read_plan
from ._evidence import METRICS, Evidence
from ._findings import CRITICAL, Finding

SUMMARY = summary.SUMMARY
MODEL = "model.safetensors"

_COUNT, _NUMBER = (int,), (int, float)
# Nothing here can compute these again: no report repeats them as facts, and no text fits in them.
_CLAIMED: Mapping[str, tuple[type, ...]] = {
    "validation_accuracy": _NUMBER,
    "parameters": _COUNT,
    "dropped_participations": _COUNT,
    "seconds": _NUMBER,
    "accuracy": _NUMBER,
    "loss": _NUMBER,
}
# With the commit of a checkout behind it. Not every digit of Unicode: some turn the line around that they are in.
VERSION = r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}((a|b|rc|\.dev|\.post)[0-9]{1,6})?(\+(unknown|g[0-9a-f]{7,40})(\.dirty)?)?"
# What says how private the run would be if nobody knew its cohorts.
_AMPLIFIED = ("amplified_epsilon", "amplified_statement")
# Evaluation is written to two files, to one of them as text.
_EVALUATED = {"accuracy": "accuracy_without_out_of_vocab_or_end_of_sentence", "loss": "loss"}
_MADE_BY = "tff_mf_version"
_TOLERANCE = 1e-6


def summary_findings(
    folder: pathlib.Path, configuration: Configuration, evidence: Evidence, violations: Sequence[str]
) -> list[Finding]:
    """Returns where the summary of a run that is over differs from what its other files say.

    Args:
        folder: The run's folder.
        configuration: What the run was set to do.
        evidence: What its files say that it did.
        violations: What else is critical now, by its report; part of it may have been when the summary was written.
    """
    path = folder / SUMMARY
    if not path.exists():
        return []
    try:
        stored = strict_json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, Mapping):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        return [_finding(f"is damaged: {error}")]
    try:
        expected = {
            **_of_settings(configuration),
            **_evaluated(folder / METRICS),
            **_claims(stored, configuration, evidence, violations),
        }
    except (InputError, TypeError, KeyError) as error:
        return [_finding(f"cannot be compared with {configuration.participation} and the settings: {error}")]
    found = [
        _finding(f"says {name}={value!r}, and {expected[name]!r} follows from the other files")
        for name, value in stored.items()
        if name in expected and not _same(value, expected[name])
    ]
    unknown = [name for name in stored if name not in {*expected, *_CLAIMED, *_AMPLIFIED, "model_sha256", _MADE_BY}]
    found += [_finding(f"has {name}, which no summary has, or which does not follow") for name in unknown[:1]]
    return found + _claimed(stored, expected) + _model(folder / MODEL, stored)


def _claims(
    stored: Mapping[str, Any], configuration: Configuration, evidence: Evidence, violations: Sequence[str]
) -> dict[str, Any]:
    """Returns the fields that state a guarantee, as training writes them.

    A run that was refused when it ended says so in its summary, and so may not say more now; one that became critical
    by later answers or audits has a summary of before, and its report states no ε in any case.
    """
    if evidence.mechanism is None or evidence.impossible:
        return dict.fromkeys(("epsilon", "epsilon_as_run", *_AMPLIFIED))
    privacy = read_plan(configuration, evidence.mechanism)
    observed = sampling.ObservedParticipation(min_sep=evidence.min_sep, max_participations=evidence.max_participations)
    clients = configuration.settings.get("training_clients")
    in_secret = None
    if stored.get("amplified_epsilon") is not None and clients is not None:
        kind = SamplingSettings(**configuration.settings["sampling"])
        in_secret = amplification.amplified(privacy, kind, clients)
    refused = str(stored.get("statement")).startswith(statements.REFUSED)
    claims = summary.privacy_claims(
        privacy,
        observed,
        in_secret,
        population=configuration.population,
        violations=violations if refused else (),
    )
    if clients is None:
        # Of a deployment that samples in secret nothing follows from these files.
        claims |= dict.fromkeys(_AMPLIFIED)
    return claims


def _of_settings(configuration: Configuration) -> dict[str, Any]:
    settings = configuration.settings
    names = (
        "algorithm",
        "model",
        "sampling",
        "dropout",
        "seed",
        "zeroing",
        "client_learning_rate",
        "server_learning_rate",
    )
    names += ("server_momentum", "server_warmup", "server_cooldown", "server_optimizer")
    names += ("adaptive_clipping", "adaptive_learning_rate")
    return {**{name: settings[name] for name in names if name in settings}, "clip_norm": configuration.clip_norm}


def _evaluated(path: pathlib.Path) -> dict[str, Any]:
    """Returns the last evaluation that the metrics have."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.get("loss")]
        last = rows[-1] if rows else {}
        return {name: float(last[column]) for name, column in _EVALUATED.items() if last.get(column)}
    except (OSError, ValueError, csv.Error):
        # Metrics that cannot be read have a finding of their own.
        return {}


def _model(path: pathlib.Path, stored: Mapping[str, Any]) -> list[Finding]:
    if "model_sha256" not in stored:
        return []
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
    if stored["model_sha256"] == found:
        return []
    text = f"{MODEL} is another than the one that {SUMMARY} names by its hash, or is missing"
    return [Finding(severity=CRITICAL, field="model", text=text)]


def _claimed(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    """Returns what is wrong with fields that nothing computes again: they hold what they are for, and state nothing."""
    found = [
        _finding(f"says {name}={value!r:.80}, which is no number")
        for name, types in _CLAIMED.items()
        for value in [stored.get(name)]
        if name in stored and (not isinstance(value, types) or isinstance(value, bool))
    ]
    version = stored.get(_MADE_BY, "0.0")
    if not isinstance(version, str) or not re.fullmatch(VERSION, version):
        found.append(_finding(f"says {_MADE_BY}={version!r:.80}, which is no version"))
    return found + [
        _finding(f"says {name}={stored[name]!r:.80}, and nothing here can compute it again")
        for name in _AMPLIFIED
        if stored.get(name) is not None and name not in expected
    ]


def _same(one: Any, other: Any) -> bool:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    if numbers and math.isfinite(one) and math.isfinite(other):
        return math.isclose(one, other, rel_tol=_TOLERANCE)
    return type(one) is type(other) and one == other


def _finding(text: str) -> Finding:
    return Finding(severity=CRITICAL, field="summary", text=f"{SUMMARY} {text}")
