"""The last line of CI counts everything that ran."""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def test_results_of_all_runs_are_added_up(tmp_path):
    for name, result in {"one": (3, 1, 0, 1), "two": (193, 0, 0, 0), "three": (10, 0, 2, 0)}.items():
        tests, failures, errors, skipped = result
        suite = f'<testsuite tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"/>'
        (tmp_path / f"{name}.xml").write_text(f"<testsuites>{suite}</testsuites>")
    line = subprocess.run([sys.executable, HERE / "tally.py", tmp_path], capture_output=True, text=True, check=True)
    assert line.stdout == "202 passed, 3 failed, 1 skipped\n"


def test_ci_prints_the_line_last_and_fails_where_the_checks_do():
    script = (HERE.parent / ".ci" / "run").read_text().splitlines()
    assert "tests/tally.py" in script[-2]
    assert script[-1] == 'exit "$status"'
