"""Wrong values for options: a sample of every command; `make fuzz` tries all of them."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bad_options

INPUTS = 220


def test_wrong_values_are_refused_in_a_line():
    """In a process of its own, since this one may have loaded TensorFlow."""
    command = [sys.executable, str(pathlib.Path(__file__).parent), "options", "--inputs", str(INPUTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(bad_options.chosen(INPUTS))} outcomes in " in done.stdout


def test_result_on_a_terminal_that_has_no_greek():
    line = ["account", "identity", "--noise-multiplier", "3", "--rounds", "20", "--sampling", "single"]
    source = (
        f"import sys; from tff_mf.experiments import cli; sys.argv = {['tff-mf', *line, '--delta', '1e-6']}; cli.main()"
    )
    for more in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        done = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, timeout=120, env={**os.environ, **more}
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"1.448" in done.stdout
