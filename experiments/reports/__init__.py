"""The privacy report of a run: evidence from its folder, the rules that it must keep, the report, and its check.

Pipelines of others read and write `run.json` by the names of this package.
"""

from ..runs.run_record import RunRecord as RunRecord
from ..runs.run_record import check_fields as check_fields
from ..runs.run_record import read_record as read_record
from ..runs.run_record import write_record as write_record
from .evidence import gather as gather
from .evidence import planned_epsilon as planned_epsilon
from .report import CLAIMS as CLAIMS
from .report import TOO_SMALL as TOO_SMALL
from .report import Report as Report
from .report import build as build
from .report import check as check
from .report import differing as differing
from .report import has_begun as has_begun
from .report import markdown as markdown
from .report import read as read
from .report import write as write
from .report import write_page as write_page
from .rules import judged as judged
