"""Runs a learning process on made-up cohorts, and checks whether its releases are those that the guarantee covers."""

from .check import check_process as check_process
from .laws import ProcessCheck as ProcessCheck
from .laws import ProcessFinding as ProcessFinding
