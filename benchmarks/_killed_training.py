"""Training runs that are killed at random moments and resumed."""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from _common import row

_RUN = """
import hashlib, pathlib, sys
import tff_mf
from tff_mf.experiments.runs.folders import ExecutionSettings
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training.datasets import named_data
from tff_mf.experiments.training import program
out, resume = pathlib.Path(sys.argv[1]), len(sys.argv) > 2
out.mkdir(exist_ok=True)
execution = ExecutionSettings(checkpoint_every=3, resume=resume)
settings = RunSettings(
    rounds=30, clients_per_round=3, delta=1e-6, min_sep=5, max_participations=6, noise_multiplier=0.01, grid="none",
    model="conv", vocab_size=200, embedding_size=8, units=8,
    max_examples=1, batch_size=1, evaluate_every=10, evaluation_examples=40,
)
result = program.run(
    settings,
    settings.privacy_plan(tff_mf.BLT.production("b400"), insecure_seed=1),
    data=named_data.data_file("pydoc"), out=out, execution=execution, without_epsilon=True,
)
digest = hashlib.sha256(b"".join(weight.tobytes() for weight in result.weights)).hexdigest()
(out / "digest").write_text(digest)
"""


def kills(moments: int = 20) -> None:
    """Kills runs at random moments, resumes them, and compares their models with that of a run that was not killed."""
    same = 0
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:

        def run(name: str, *resume: str) -> subprocess.Popen:
            command = [sys.executable, "-c", _RUN, str(pathlib.Path(folder, name)), *resume]
            return subprocess.Popen(command, stdout=nowhere, stderr=nowhere)

        start = time.perf_counter()
        run("whole").wait()
        whole = time.perf_counter() - start
        expected = pathlib.Path(folder, "whole", "digest").read_text()
        for moment in range(moments):
            process = run(str(moment))
            time.sleep(generator.uniform(0.3, 1.0) * whole)
            process.kill()
            process.wait()
            run(str(moment), "resume").wait()
            same += pathlib.Path(folder, str(moment), "digest").read_text() == expected
    row("killed at a random moment and resumed: the same model bit for bit", f"{same} of {moments}", "all")
