"""Ways to give devices another policy than the bundle's: edits of `device-policy.json`."""

from collections.abc import Callable
from typing import Any

from tampering import Way, edited

_FILE = "device-policy.json"

Document = dict[str, Any]


def _of_file(name: str, change: Callable[[Document], object]) -> Way:
    return Way(f"devices' policy: {name}", edited(_FILE, change))


def _of_rounds(name: str, **changes: object) -> Way:
    return _of_file(name, lambda file: _policies(file)[0]["min_sep_policy"].update(changes))


def _of_task(name: str, **changes: object) -> Way:
    return _of_file(name, lambda file: file["population_eligibility_spec"]["task_info"][0].update(changes))


def _policies(file: Document) -> list[Document]:
    return file["population_eligibility_spec"]["eligibility_policies"]


WAYS = (
    _of_rounds("a separation that is shorter by one", minimum_separation=15),
    _of_rounds("the separation of the claim, which lets devices come too often", minimum_separation=9),
    _of_rounds("no separation", minimum_separation=0),
    _of_rounds("a separation below zero", minimum_separation=-1),
    _of_rounds("a separation that is true", minimum_separation=True),
    _of_rounds("a separation that is longer", minimum_separation=100),
    _of_rounds("a history that is trusted sooner", min_trustworthiness_period="9000s"),
    _of_rounds("a history that is always trusted", min_trustworthiness_period="0s"),
    _of_rounds("a separation that no client can store", minimum_separation=2**63),
    _of_rounds("a history of fractions", min_trustworthiness_period="15300.5s"),
    _of_rounds("a history in minutes", min_trustworthiness_period="255m"),
    _of_rounds("a history in digits of others", min_trustworthiness_period="١٥٣٠٠s"),
    _of_rounds("a history that is trusted later", min_trustworthiness_period="99999s"),
    _of_rounds("a first round that is ahead", current_index=17),
    _of_rounds("a first round of zero", current_index=0),
    _of_file("a timer that is shorter", lambda file: _policies(file)[1]["swor_policy"].update(min_period="8999s")),
    _of_file("no timer", lambda file: _policies(file).pop()),
    _of_file("a timer of another kind", lambda file: _policies(file)[1].pop("swor_policy")),
    _of_file("policies exchanged", lambda file: _policies(file).reverse()),
    _of_file("policies of one name", lambda file: _policies(file)[1].update(name=_policies(file)[0]["name"])),
    _of_file("clients of an earlier version", lambda file: _policies(file)[0].update(min_version=2)),
    _of_file("clients of no version", lambda file: _policies(file)[0].update(min_version=10**9)),
    _of_task("a task of another name than its policies", task_name="tff-mf-words"),
    _of_task("a task of no policy", eligibility_policy_indices=[]),
    _of_task("a task without rounds", eligibility_policy_indices=[1]),
    _of_task("a task beside others", task_assignment_mode="TASK_ASSIGNMENT_MODE_MULTIPLE"),
    _of_task("a task whose name is a sentence", task_name="ε ≤ 0.1"),
    _of_file(
        "a second task",
        lambda file: file["population_eligibility_spec"]["task_info"].append(
            {**file["population_eligibility_spec"]["task_info"][0], "task_name": "another"}
        ),
    ),
    _of_file("an index that is kept", lambda file: file["client_persisted_data"].update(min_sep_policy_index=17)),
    _of_file(
        "an index that is not kept", lambda file: file["client_flags"].update(log_min_sep_index_to_phase_stats=False)
    ),
    _of_file("a history of a day", lambda file: file["client_flags"].update(opstats_ttl_days=1)),
    _of_file("a flag more", lambda file: file["client_flags"].update(audited=True)),
    _of_file("a run that is longer", lambda file: file["index"].update(last=400)),
    _of_file("an index with a source", lambda file: file["index"].update(source="the device's own")),
    _of_file("a smaller ε that is claimed", lambda file: file["guarantee"]["claimed"].update(epsilon=1.0)),
    _of_file("a smaller ε of devices alone", lambda file: file["guarantee"]["by_devices_alone"].update(epsilon=1.0)),
    _of_file("devices that do not suffice", lambda file: file["guarantee"].update(devices_alone_suffice=False)),
    _of_file("a requirement less", lambda file: file["server"].pop("aborted")),
    _of_file("a requirement that is a warning", lambda file: file["server"].update(index="warning")),
    _of_file("a requirement more", lambda file: file["server"].update(nothing="warning")),
    _of_file("no requirement", lambda file: file["server"].clear()),
    _of_file("a version to come", lambda file: file.update(version=2)),
    _of_file("a key more", lambda file: file.update(audited=True)),
    _of_file("nothing in it", lambda file: file.clear()),
)
