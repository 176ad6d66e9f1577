"""The participation schema, checked when devices are chosen: the guarantee holds for no other participation."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ._errors import RefusedError

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def check_devices(
    devices: Sequence[str], number: int, settings: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
) -> None:
    """Raises unless all devices may take part in a round.

    Formal guarantee: if it returns, the rounds of each device, this one included, satisfy the participation schema of
    `settings`. Every round that a device was chosen for counts, whether its report arrived or not.

    Args:
        devices: The devices.
        number: The round.
        settings: `run.json` of the bundle.
        entries: The journal's entries.

    Raises:
        RefusedError: If a device takes part sooner or more often than the schema allows, is named twice, or its name is
            not one of a device.
    """
    if len(set(devices)) != len(devices):
        raise RefusedError(f"devices of round {number}: one is named twice.")
    least, most = settings["min_sep"], settings["max_participations"]
    fixed = settings["participation"] == "FixedEpoch"
    past: dict[str, list[int]] = {}
    for entry in entries:
        for device in entry.get("devices", ()):
            past.setdefault(device, []).append(entry["round"])
    for device in devices:
        rounds = sorted(set(past.get(device, ())) - {number})
        if not _DEVICE.fullmatch(device):
            raise RefusedError(f"device={device!r:.80} must be 1 to 200 letters, digits, dots, _ and -.")
        apart = number - rounds[-1] if rounds else least
        place = not fixed or not rounds or (apart % least == 0 and number - rounds[0] <= (most - 1) * least)
        if apart < least or len(rounds) >= most or not place:
            raise RefusedError(
                f"device={device!r} took part in rounds {rounds}: round {number} is sooner or more often than "
                f"min_sep={least} and max_participations={most} allow. Choose another."
            )
