"""Tests of `tff_mf.experiments.flower`, in an environment with Flower, which has no TensorFlow."""

import importlib.util

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["test_*.py"]
