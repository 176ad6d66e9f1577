"""Privacy of a run: its plan, its amplification by sampling, and the one-line statements of its guarantee."""

from .plan import PrivacyPlan as PrivacyPlan
from .plan import plan_privacy as plan_privacy
