"""Comparisons: many training runs from one specification, and the demo."""

from ._estimate import estimate as estimate
from ._estimate import larger as larger
from ._report import document as document
from ._result import ComparisonResult as ComparisonResult
from ._results import run_comparison as run_comparison
from ._runs import RESULT as RESULT
from ._runs import TABLE as TABLE
from ._spec import about as about
