"""Time of a cold `tff-mf account`, compared with imports that it needs and the import of TensorFlow, which it avoids.

python benchmarks/cold_start.py [--runs N]
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

ACCOUNT = (
    "account production:b400 --noise-multiplier 7.379 --rounds 2350 --min-sep 447 --max-participations 5 --delta 1e-10"
)
CASES = {
    "tff-mf account": [str(pathlib.Path(sys.executable).with_name("tff-mf")), *ACCOUNT.split()],
    "import numpy, scipy.special": [sys.executable, "-c", "import numpy, scipy.special"],
    "import tensorflow": [sys.executable, "-c", "import tensorflow"],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(runs):
        for name, command in CASES.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - start)
    base = statistics.median(seconds["tff-mf account"])
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:30} median {median:6.2f} s  max {max(values):6.2f} s  ratio to account {median / base:6.2f}")


if __name__ == "__main__":
    main()
