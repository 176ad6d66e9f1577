"""Runs a learning process on made-up cohorts, and checks whether its releases are those that the guarantee covers."""

from .check import check_process as check_process
from .result import ProcessCheck as ProcessCheck
from .result import ProcessFinding as ProcessFinding
