"""The settings of a run that was begun, where an earlier release gave them another meaning or default."""

import dataclasses
import pathlib

import tff_mf

from ..run_folder.initial_model import InitialModel, of_settings
from ..run_folder.names import RUN_JSON
from ..run_folder.run_record import read_record
from .grid import NONE
from .run import RunConfiguration


def with_schema(configuration: RunConfiguration, folder: pathlib.Path) -> RunConfiguration:
    """Returns the configuration of a run with the participation schema that its noise was calibrated for.

    Earlier releases accounted for each sampling as `MinSep`. A run of theirs, whose settings name no schema, keeps it.

    Formal guarantee: a `MinSep` is never replaced by a `FixedEpoch`, for which there is less noise.

    Args:
        configuration: The settings that the run was begun with.
        folder: Its folder.

    Raises:
        InputValueError: If `run.json` is damaged.
    """
    if configuration.participation_schema is not None or not (folder / RUN_JSON).is_file():
        return configuration
    if not isinstance(configuration.participation(), tff_mf.FixedEpoch):
        return configuration
    if read_record(folder).participation != tff_mf.MinSep.__name__:
        return configuration
    return dataclasses.replace(configuration, participation_schema="min_sep")


def with_grid(configuration: RunConfiguration, folder: pathlib.Path) -> RunConfiguration:
    """Returns the configuration of a run with floating point, if that is what it began with.

    It was the default of earlier releases: the settings of such a run name no grid, and neither does its `run.json`.

    Formal guarantee: noise of integers is never continued by floats, nor the reverse: a run whose `run.json` names a
    grid keeps it.

    Args:
        configuration: The settings that the run was begun with.
        folder: Its folder.

    Raises:
        InputValueError: If `run.json` is damaged.
    """
    if (folder / RUN_JSON).is_file() and read_record(folder).grid is None:
        return dataclasses.replace(configuration, grid=NONE)
    return configuration


def initial_model(folder: pathlib.Path) -> InitialModel | None:
    """Returns the initial model that a run began with; `None` if it has none, or has not begun.

    Raises:
        InputValueError: If `run.json` is damaged.
    """
    return of_settings(read_record(folder).settings) if (folder / RUN_JSON).is_file() else None
