"""Runs a learning process on made-up cohorts, and checks whether its releases are those that the guarantee covers."""

from ._check import check_process as check_process
from ._probe import ProcessCheck as ProcessCheck
from ._probe import ProcessFinding as ProcessFinding
