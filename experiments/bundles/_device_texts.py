"""Requirements of the clients' policy on the server, in words."""

INDEX = (
    "the server's number of the round, as in its ledger: current_index of the specification that a client is given "
    "before the round, and min_sep_policy_index of the plan that it runs in the round"
)
CLOCK = (
    "the device's own: for the timer, and for how far back its history reaches. The separation in rounds needs no clock"
)

_CRITICAL, _WARNING = "critical", "warning"

_REQUIREMENTS = (
    (
        "index",
        _CRITICAL,
        "The specification is made anew for every round, with current_index set to the round's number, and so is the "
        "plan, with client_persisted_data.min_sep_policy_index set to the same number. A contribution that leaves no "
        "index is none to the next check, and a current_index that is ahead of the plan's is a separation too short.",
    ),
    (
        "late",
        _CRITICAL,
        "A contribution goes into the sum of the round whose index its plan had, or into none.",
    ),
    (
        "once",
        _CRITICAL,
        "A contribution goes into a sum once: clients send a submission again if its answer is lost.",
    ),
    (
        "aborted",
        _CRITICAL,
        "ABORTED (HTTP 409) answers only an upload that is in no sum and will be in none, also when a submission is "
        "sent again: it is the one answer after which a client counts its upload as no contribution. Uploads that "
        "fail in any other way count.",
    ),
    (
        "task_name",
        _CRITICAL,
        "The task has this name, and both policies, from the first round to the last, and is given to no client whose "
        "own weight for it is 0 or that reports none.",
    ),
    (
        "versions",
        _CRITICAL,
        "min_version stays as it is, and clients run with the flags in client_flags. Clients below it write the index "
        "where they do not find it again, and would take part in every round.",
    ),
    (
        "pauses",
        _CRITICAL,
        "min_trustworthiness_period is at least the time from the start of the round minimum_separation rounds before "
        "to the end of this one. After a pause, or rounds longer than planned, it is raised until they are too far "
        "back to matter.",
    ),
    (
        "history",
        _CRITICAL,
        "Devices whose clock was set forward (also one that was behind, and put right), whose data were restored from "
        "a backup, or that cannot open their history (as while another session holds it), are not seen by the client's "
        "own check. Where that can happen, the server refuses a device that took part less than minimum_separation + 1 "
        "rounds before, by an identifier that is attested and outlives a reinstallation.",
    ),
    (
        "history_days",
        _WARNING,
        "Clients keep their history for opstats_ttl_days. One that forgets sooner than min_trustworthiness_period "
        "never takes part again.",
    ),
)
_PLACES = (
    "places",
    _CRITICAL,
    "The schema that is claimed has all rounds of a device in the same place of each epoch, and no client enforces "
    "that: the server does, by an attested identifier, or only the guarantee of by_devices_alone holds.",
)


def requirements(*, places: bool) -> list[dict[str, str]]:
    """Returns the requirements on a server, each with its severity.

    Args:
        places: Whether the claim needs more than any client enforces.
    """
    found = (*_REQUIREMENTS, _PLACES) if places else _REQUIREMENTS
    return [{"name": name, "severity": severity, "text": text} for name, severity, text in found]
