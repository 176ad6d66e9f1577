"""Reports, comparisons and plans as web pages: one file each, which loads nothing and can be printed.

Each function takes the object that the command prints with `--json`, and computes no figure of privacy itself. Pages
are templates of Jinja (`*.html.j2`), and their figures are drawn by Matplotlib: the extra `plot`.
"""

from ._page import check_page as check_page
from ._page import write_page as write_page
from ._pages import comparison_page as comparison_page
from ._pages import plan_page as plan_page
from ._pages import report_page as report_page
