"""Reports, comparisons and plans as web pages: one file each, which loads nothing and can be printed.

Each function takes the object that the command prints with `--json`, and computes no figure of privacy itself.
"""

from ._comparison import comparison_page as comparison_page
from ._plan import plan_page as plan_page
from ._report import report_page as report_page
from ._written import check_page as check_page
from ._written import write_page as write_page
