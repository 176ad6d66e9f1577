"""Moved to `tff_mf.queries.clipping`."""

from tff_mf.queries.clipping import LEAF_TYPES as LEAF_TYPES
from tff_mf.queries.clipping import Clipped as Clipped
from tff_mf.queries.clipping import add as add
from tff_mf.queries.clipping import checked_clip_norm as checked_clip_norm
from tff_mf.queries.clipping import clip_again as clip_again
from tff_mf.queries.clipping import clip_record as clip_record
from tff_mf.queries.clipping import finite as finite
from tff_mf.queries.clipping import passes as passes
from tff_mf.queries.clipping import summed_type as summed_type
