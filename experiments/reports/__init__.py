"""The privacy report of a run: planned before it starts, final after it ends, and checked from the run's files."""

# Pipelines of others read and write run.json by these names.
from ..runs.run_record import RunRecord as RunRecord
from ..runs.run_record import check_fields as check_fields
from ..runs.run_record import read_record as read_record
from ..runs.run_record import write_record as write_record
from ._check import as_text as as_text
from ._check import build as build
from ._check import check as check
from ._check import differences as differences
from ._check import has_begun as has_begun
from ._check import has_report as has_report
from ._check import markdown as markdown
from ._check import write as write
from ._curves import curves as curves
from ._document import document as document
from ._document import finding_items as finding_items
from ._document import headline as headline
from ._document import screen as screen
from ._document import verdict as verdict
from ._evidence import Assumption as Assumption
from ._evidence import Finding as Finding
from ._facts import SCHEMA as SCHEMA
from ._facts import problem as problem
from ._figures import planned_epsilon as planned_epsilon
from ._judgement import claim_so_far as claim_so_far
from ._other_files import published as published
