"""Small runs of `tff-mf train` on real text, by the command, also killed on their way: each takes some seconds."""

import os
import signal
import time

import psutil

from .shared import drawn, invoke

ROUNDS, KILLED_AFTER = 8, 4
LINE = f"""--rounds {ROUNDS} --clients-per-round 3 --delta 1e-6 --set model=conv --set vocab_size=60
--set embedding_size=4 --set units=4 --set max_examples=2 --set batch_size=2 --set evaluate_every=4
--set evaluation_examples=20 --set checkpoint_every=2"""
# The command, which stops where a checkpoint is about to get its name, so that it is killed there on every machine.
STOPPED = f"""
import os, signal, sys
def hook(event, given):
    if event == "os.link" and os.path.basename(given[1]) == "checkpoint_{KILLED_AFTER}.safetensors":
        os.kill(os.getpid(), signal.SIGSTOP)
sys.addaudithook(hook)
from tff_mf.experiments.cli import main
main()
"""


def arguments(folder, data, flags):
    """Returns the command line of a run of 8 rounds; of an option that is given twice, the last counts."""
    parameters = drawn(flags[flags.index("--sampling") + 1] if "--sampling" in flags else "min-sep").parameters
    for name, value in parameters.items():
        flag = f"--{name.replace('_', '-')}"
        typed = ["--set", f"{name}={value}"] if name == "groups" else [flag, value]
        flags = flags if flag in flags or f"{name}=" in " ".join(map(str, flags)) else [*typed, *flags]
    level = [] if "--epsilon" in flags else ["--noise-multiplier", 6]
    return ["train", "--force", "--dataset", f"sqlite:{data}", "--out", folder, *LINE.split(), *level, *flags]


def trained(folder, data, flags):
    """Trains to the end, and returns what was printed."""
    done = invoke(*arguments(folder, data, flags), catch_exceptions=True)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done


def killed(forks, folder, data, flags):
    """Trains until the state after round 4 is about to be on disk, and is killed; its worker ends too."""
    with open(os.devnull, "w") as nothing:
        command = list(map(str, arguments(folder, data, flags)))
        process = forks.start(STOPPED, command, stdout=nothing.fileno(), stderr=nothing.fileno())
    deadline = time.monotonic() + 300
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=100) == -signal.SIGKILL
    _, alive = psutil.wait_procs(workers, timeout=100)
    assert (len(workers), alive) == (1, [])
