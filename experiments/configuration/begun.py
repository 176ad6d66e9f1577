"""The settings of a run that is resumed or exported: what was computed from them when it began is in its `run.json`."""

import dataclasses
import pathlib

from ..run_folder.initial_model import InitialModel, of_settings
from ..run_folder.names import RUN_JSON
from ..run_folder.run_record import read_record
from .run import PROPOSED, RunConfiguration
from .settings import TrainingSettings


def as_begun(configuration: RunConfiguration, folder: pathlib.Path) -> RunConfiguration:
    """Returns the configuration of a run with the σ and the server's learning rate that it began with.

    Computed again from ε and from the noise, both could differ in last bits on another machine.

    Formal guarantee: σ is the one in `run.json`, whose ε the reports of the run state.

    Args:
        configuration: The settings that the run was begun with.
        folder: Its folder.

    Raises:
        InputValueError: If `run.json` is damaged.
    """
    if not (folder / RUN_JSON).is_file():
        return configuration
    begun = read_record(folder)
    if configuration.epsilon is not None:
        configuration = dataclasses.replace(configuration, epsilon=None, noise_multiplier=begun.noise_multiplier)
    if configuration.server_learning_rate == PROPOSED:
        rate = TrainingSettings.from_dict(begun.settings).server_learning_rate
        configuration = dataclasses.replace(configuration, server_learning_rate=rate)
    return configuration


def initial_model(folder: pathlib.Path) -> InitialModel | None:
    """Returns the initial model that a run began with; `None` if it has none, or has not begun.

    Raises:
        InputValueError: If `run.json` is damaged.
    """
    return of_settings(read_record(folder).settings) if (folder / RUN_JSON).is_file() else None
