"""Small runs of `tff-mf train` on real text, by the command, also killed on their way: each takes some seconds."""

import os
import signal

from .shared import drawn, invoke

ROUNDS, KILLED_AFTER = 8, 4
LINE = f"""--rounds {ROUNDS} --clients-per-round 3 --delta 1e-6 --set model=conv --set vocab_size=60
--set embedding_size=4 --set units=4 --set max_examples=2 --set batch_size=2 --set evaluate_every=4
--set evaluation_examples=20 --set checkpoint_every=2"""
# The command, which sends itself a signal where a checkpoint is about to get its name.
KILLED = """
import os, signal, sys
sent, file = int(sys.argv.pop(1)), sys.argv.pop(1)
def hook(event, given):
    if event == "os.link" and os.path.basename(given[1]) == file:
        os.kill(os.getpid(), sent)
sys.addaudithook(hook)
from tff_mf.experiments.cli import main
main()
"""
CHECKPOINT = f"checkpoint_{KILLED_AFTER}.safetensors"


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
    """Trains until the state after round 4 is about to be on disk, and is killed."""
    command = [str(signal.SIGKILL.value), CHECKPOINT, *map(str, arguments(folder, data, flags))]
    with open(os.devnull, "w") as nothing:
        status = forks.start(KILLED, command, stdout=nothing.fileno(), stderr=nothing.fileno()).wait(timeout=240)
    assert status != 0
    assert (folder / "ledger.jsonl").exists()
