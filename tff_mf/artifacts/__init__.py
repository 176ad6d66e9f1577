"""Artifacts: strategy matrices as safetensors files."""

from tff_mf.artifacts._artifact import load as load
from tff_mf.artifacts._artifact import save as save
from tff_mf.registry import content_digest as content_digest
