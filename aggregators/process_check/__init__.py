"""Runs a learning process on made-up cohorts, and says whether what leaves it is what the guarantee counts on."""

from ._check import check_process as check_process
from ._result import ProcessCheck as ProcessCheck
from ._result import ProcessFinding as ProcessFinding
