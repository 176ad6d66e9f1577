"""Runs a learning process on made-up cohorts, and checks whether its releases are those that the guarantee covers."""

from ._check import check_process as check_process
from ._result import ProcessCheck as ProcessCheck
from ._result import ProcessFinding as ProcessFinding
