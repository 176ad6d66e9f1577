"""Comparisons: many training runs from one specification, and the demo."""

from ._report import blocks as blocks
from ._result import ComparisonResult as ComparisonResult
from ._results import run_comparison as run_comparison
from ._runs import RESULT as RESULT
from ._runs import TABLE as TABLE
from ._spec import about as about
from ._spec import size as size
