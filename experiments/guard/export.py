"""Export: a deployment as files: graphs, the policy of its devices, the planned report, and `SHA256SUMS`.

Nothing here imports TensorFlow before it is needed.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
import stat
from collections.abc import Callable
from typing import Any

import tff_mf
from tff_mf.base import strict_json, validation
from tff_mf.base.errors import InputTypeError, InputValueError

from .. import reports
from ..output import console, files
from ..output.files import new_folder
from ..runs import folders, statements
from ..runs.folders import named
from ..runs.names import MODEL, REPORT, REPORT_TEXT, RUN_JSON

SUMS = "SHA256SUMS"
SAMPLER = "devices with a timer and a count of rounds, checked by the server"
DEVICE_POLICY = "device-policy.json"
FIRST_INDEX = 1
_VERSION = 2
# Clients of earlier versions look for the index of a contribution in a place where they did not write it.
_MIN_SEP_VERSION = 3
_TIMER_VERSION = 1
# The longest google.protobuf.Duration: 10,000 years.
_LONGEST_SECONDS = 315_576_000_000
_DAY_SECONDS = 86400
# Days for which a client keeps its history by default.
_USUAL_DAYS = 30
# Entries of run.json that have no effect on the deployment.
_SAID = ("command", "versions", "population")
# What a deployment has from its run, beside the plan.
_KEPT = ("clients_per_person", "about", "settings", "server_learning_rate")
# Nothing that a bundle writes says when the noise restarts, and the devices' graph clips to a constant.
_NOT_EXPORTED = ("restart_every", "adaptive_count_stddev")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePolicy:
    """The policy of a federated-compute client, which bounds separations and not the number of participations.

    The timer spares devices requests that they would decline, and still works if a device is told a wrong round number.
    It does not suffice: if rounds take longer than planned, it runs out too soon.

    Formal guarantee: if the server does what docs/deployment.md asks of it, the rounds whose sums contain contributions
    of one device form a pattern of `of_devices_alone`. The number of participations is bounded by the length of the
    run: of n rounds, at most ⌈n / b⌉ are b or more apart.

    Attributes:
        task_name: Name of the task, the same in all rounds of a run: clients keep their history by task names.
        minimum_separation: Rounds that must lie *between* two contributions: b − 1 for a difference of b.
        trust_seconds: Seconds that a client's history must reach back; a client that lost its history waits as long.
        timer_seconds: Seconds, by the device's clock, that must pass after a contribution.

    Example:
        >>> schema = tff_mf.MinSep(min_sep=8, max_participations=2)
        >>> DevicePolicy.of(schema, rounds=16, longest_round=30.0, task_name="words").minimum_separation
        7
        >>> # Three contributions 8 rounds apart fit into 20 rounds, and two are allowed: clients wait longer.
        >>> DevicePolicy.of(schema, rounds=20, longest_round=30.0, task_name="words").minimum_separation
        9
    """

    task_name: str
    minimum_separation: int
    trust_seconds: int
    timer_seconds: int

    def __post_init__(self) -> None:
        check_task_name(self.task_name)

    @classmethod
    def of(
        cls, participation: tff_mf.Participation, *, rounds: int, longest_round: float, task_name: str
    ) -> "DevicePolicy":
        """Returns the policy of clients that enforces a schema in n rounds, as far as they can.

        Args:
            participation: The schema.
            rounds: Number of rounds n.
            longest_round: Planned minutes of the longest round: the timer runs for `min_sep` of them.
            task_name: Name of the task.
        """
        min_sep = of_devices_alone(participation, rounds).min_sep
        seconds = 60 * validation.positive("longest_round", longest_round)
        return cls(
            task_name=task_name,
            minimum_separation=min_sep - 1,
            trust_seconds=_whole_seconds(min_sep * seconds),
            timer_seconds=_whole_seconds(participation.min_sep * seconds),
        )

    def specification(self, round_number: int = FIRST_INDEX) -> dict[str, Any]:
        """Returns the `PopulationEligibilitySpec` of a round, as JSON of that message with its own field names."""
        index = validation.whole("round_number", round_number)
        min_sep = {
            "current_index": index,
            "minimum_separation": self.minimum_separation,
            "min_trustworthiness_period": f"{self.trust_seconds}s",
        }
        timer = {"min_period": f"{self.timer_seconds}s"}
        policies = [
            # Clients store policies by name: of two with one name, the first is never checked.
            {"name": f"{self.task_name}/min_sep", "min_version": _MIN_SEP_VERSION, "min_sep_policy": min_sep},
            {"name": f"{self.task_name}/timer", "min_version": _TIMER_VERSION, "swor_policy": timer},
        ]
        task = {
            "task_name": self.task_name,
            "task_assignment_mode": "TASK_ASSIGNMENT_MODE_SINGLE",
            "eligibility_policy_indices": list(range(len(policies))),
        }
        return {"task_info": [task], "eligibility_policies": policies}


def of_devices_alone(participation: tff_mf.Participation, rounds: int) -> tff_mf.MinSep:
    """Returns the schema that clients enforce without the server: the run's length bounds their participations.

    Formal guarantee: of n rounds at least b' = max(b, ⌈n / k⌉) apart, there are at most ⌈n / b'⌉ ≤ k.
    """
    min_sep = max(participation.min_sep, -(-rounds // participation.max_participations))
    return tff_mf.MinSep(min_sep=min_sep, max_participations=-(-rounds // min_sep))


def check_task_name(name: object) -> str:
    """Returns the name of a task."""
    if not isinstance(name, str):
        raise InputTypeError(f"task_name={name!r} must be a text.")
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", name):
        raise InputValueError(
            f"task_name={name!r} must begin with a letter or digit, and consist of at most 128 letters, digits "
            "and ._/-."
        )
    return name


def write_device_policy(folder: pathlib.Path, *, longest_round: float, task_name: str | None = None) -> DevicePolicy:
    """Writes the policy of clients, which follows from `run.json` and the artifact, and returns it.

    Formal guarantee: `devices_alone_suffice` says whether every pattern that clients allow is one of the claimed
    schema. The ε of what is claimed is in the planned report.

    Args:
        folder: A folder with both files.
        longest_round: As for `DevicePolicy.of`.
        task_name: Name of the task; it follows from `run.json` if it is not given.
    """
    run = reports.read_record(folder)
    claimed = run.plan.participation
    alone = of_devices_alone(claimed, run.plan.rounds)
    if task_name is None:
        # Two deployments share it only if they have the same guarantee and do the same.
        said = strict_json.read(folder / RUN_JSON, "run")
        said = {name: value for name, value in said.items() if name not in _SAID}
        task_name = f"tff-mf-{hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]}"
    device = DevicePolicy.of(claimed, rounds=run.plan.rounds, longest_round=longest_round, task_name=task_name)
    days = max(_USUAL_DAYS, -(-max(device.trust_seconds, device.timer_seconds) // _DAY_SECONDS))
    content = {
        "version": _VERSION,
        "population_eligibility_spec": device.specification(),
        "client_persisted_data": {"min_sep_policy_index": FIRST_INDEX},
        "client_flags": {"log_min_sep_index_to_phase_stats": True, "opstats_ttl_days": days},
        "participation": {"claimed": named(claimed), "by_devices_alone": named(alone)},
        # Devices know how far apart their rounds are, and not their places in epochs.
        "devices_alone_suffice": not isinstance(claimed, tff_mf.FixedEpoch) or alone.max_participations == 1,
    }
    (folder / DEVICE_POLICY).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return device


def _whole_seconds(value: float) -> int:
    if value > _LONGEST_SECONDS:
        raise InputValueError(
            f"longest_round is too long: a client would wait {value:g} s, and can wait at most {_LONGEST_SECONDS} s."
        )
    return math.ceil(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """A bundle that was written.

    Attributes:
        planned: Its planned report.
        policy: The policy of its devices.
        graphs: What `aggregators.export_process` returned.
    """

    planned: reports.Report
    policy: DevicePolicy
    graphs: dict[str, Any]


# Adds the graphs of a plan to the folder of a bundle, which has its other files.
AddGraphs = Callable[[pathlib.Path, tff_mf.Plan], dict[str, Any]]


def write(
    run: reports.RunRecord,
    out: pathlib.Path,
    add_graphs: AddGraphs,
    *,
    population: int | None,
    longest_round: float,
    task_name: str | None = None,
) -> Exported:
    """Writes the bundle of a deployment, or nothing if it fails.

    Formal guarantee: graphs are built for the plan in the bundle's own files, which the planned report follows from.

    Args:
        run: The run that is deployed. A simulation may stand for a larger cohort, with less noise (`cohort`): a
            deployment has that cohort, and the noise of the guarantee.
        out: Folder of the bundle: a new one, or an empty one.
        add_graphs: Adds the graphs.
        population: Number of devices that can take part, if it is known.
        longest_round: Planned minutes of the longest round: the timer of a device runs for `min_sep` of them.
        task_name: Name of the task in `device-policy.json`; it follows from the bundle's `run.json` if not given.

    Raises:
        InputValueError: If no ε can be stated for the deployment, except with an `insecure_seed`.
    """
    plan = run.plan
    for name in _NOT_EXPORTED:
        if getattr(plan, name) is not None:
            raise InputValueError(
                f"{name}={getattr(plan, name)!r} cannot be exported: bundles support neither restarts of the noise nor "
                "adaptive clipping; train without them, or serve the process from TFF."
            )
    # Nobody draws devices in secret: what is stated is for whoever knows the cohorts.
    schema, whole = plan.participation, plan.cohort
    plan = dataclasses.replace(plan, sampling=schema, secret_cohorts=False, population=None, clients_per_round=whole)
    with new_folder(out) as folder:
        record = reports.write_record(
            folder,
            plan,
            sampler=SAMPLER,
            # It would name the folder that is written to.
            command=(),
            versions=folders.versions(),
            population=population,
            **{name: getattr(run, name) for name in _KEPT},
        )
        planned = reports.write(folder, realised=False)
        # An `insecure_seed` was asked for, and stands in every file.
        if planned.claim.state == statements.REFUSED and not plan.insecure:
            raise InputValueError(f"nothing is exported: {planned.headline.rstrip('.')}. Take settings with an ε.")
        policy = write_device_policy(folder, longest_round=longest_round, task_name=task_name)
        graphs = add_graphs(folder, record.plan)
        console.step("hashes")
        # As sha256sum writes them, and `sha256sum --check` reads them.
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        lines = (f"{files.file_hash(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths)
        (folder / SUMS).write_text("".join(lines), encoding="utf-8")
        # Only their owner may write files, whatever the umask is.
        for path in (*folder.rglob("*"), folder):
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
        console.step()
    return Exported(planned=planned, policy=policy, graphs=graphs)


def check_trained(run: pathlib.Path) -> None:
    """Raises unless a run has a model, and the report that follows from its files."""
    folders.readable_folder(run)
    for name in (MODEL, REPORT, REPORT_TEXT):
        if not (run / name).is_file():
            raise InputValueError(f"run={str(run)!r} has no {name}: it has not ended.")
    checked = reports.check(run)
    wrong = [*checked.differs, *(reason.text for reason in checked.report.claim.reasons if reason.field == "model")]
    if wrong:
        raise InputValueError(
            f"run={str(run)!r} has a report that does not follow from its files: {wrong[0]}. Put back what was "
            f"changed, or run `tff-mf report {run}` first: the model is published with its report."
        )
