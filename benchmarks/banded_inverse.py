"""Losses of our banded inverses and those of jax_privacy in random settings.

    python benchmarks/banded_inverse.py
    python benchmarks/banded_inverse.py --jax-privacy /path/to/other/venv/bin/python --answers answers.jsonl
    python benchmarks/banded_inverse.py --answers answers.jsonl

The first form runs only ours. The second also runs jax_privacy 2.2 or newer in the given Python, which takes about five
seconds of processor time a setting, and appends its answers to a file, one a line; if it is interrupted, the same
command resumes. The third compares with the answers in that file. Losses of both are computed here from the returned
coefficients.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time

import numpy as np

import tff_mf

PEER = pathlib.Path(__file__).with_name("jax_privacy_inverses.py")
SETTINGS = 300
MOMENTA = (0.0, 0.0, 0.0, 0.5, 0.8, 0.9, 0.95, 0.99)

# One setting in this number has up to 2000 rounds, all others up to 150.
LONG_EVERY = 15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting to optimize for."""

    optimized_for: tff_mf.OptimizedFor
    bands: int
    objective: str

    def loss(self, inverse_column: list[float]) -> float:
        loss = tff_mf.max_loss if self.objective == "max" else tff_mf.rms_loss
        mechanism = tff_mf.BandedInverse(inverse_column=inverse_column)
        return loss(mechanism, self.optimized_for.rounds, self.optimized_for.participation, self.optimized_for.workload)

    def run(self) -> tff_mf.BandedInverse:
        return tff_mf.optimize_banded_inverse(
            rounds=self.optimized_for.rounds,
            bands=self.bands,
            participation=self.optimized_for.participation,
            workload=self.optimized_for.workload,
            objective=self.objective,
        )

    def for_peer(self) -> str:
        schema, rounds = self.optimized_for.participation, self.optimized_for.rounds
        workload = self.optimized_for.workload
        assert isinstance(workload, tff_mf.PrefixSum | tff_mf.Momentum)
        return json.dumps(
            {
                "rounds": rounds,
                "bands": self.bands,
                "min_sep": schema.min_sep,
                "limit": schema.max_participations,
                "objective": self.objective,
                "workload": workload.coefficients(rounds).tolist(),
            }
        )

    def __str__(self) -> str:
        schema = self.optimized_for.participation
        return (
            f"n = {self.optimized_for.rounds}, {self.bands} bands, "
            f"b = {schema.min_sep}, k = {schema.max_participations}, "
            f"{self.optimized_for.workload}, {self.objective}"
        )


def random_settings(number: int, seed: int) -> list[Setting]:
    generator = np.random.default_rng(seed)
    return [random_setting(generator, 2000 if index % LONG_EVERY == 0 else 150) for index in range(number)]


def random_setting(generator: np.random.Generator, most_rounds: int) -> Setting:
    rounds = int(np.exp(generator.uniform(np.log(16), np.log(most_rounds))))
    bands = int(generator.integers(2, min(16, rounds) + 1))
    min_sep = int(np.exp(generator.uniform(0, np.log(rounds))))
    limit = int(generator.integers(1, (rounds - 1) // min_sep + 2))
    momentum = float(generator.choice(MOMENTA))
    return Setting(
        optimized_for=tff_mf.OptimizedFor(
            rounds=rounds,
            participation=tff_mf.MinSep(min_sep=min_sep, max_participations=limit),
            workload=tff_mf.Momentum(momentum=momentum) if momentum else tff_mf.PrefixSum(),
        ),
        bands=bands,
        objective=str(generator.choice(["rms", "max"])),
    )


def answered(path: pathlib.Path | None) -> list[dict]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def ask(settings: list[Setting], python: str, path: pathlib.Path) -> None:
    """Appends the peer's answers to the file."""
    missing = settings[len(answered(path)) :]
    with path.open("a") as answers:
        lines = "".join(setting.for_peer() + "\n" for setting in missing)
        subprocess.run([python, str(PEER)], input=lines, stdout=answers, check=True, text=True)


def report(settings: list[Setting], answers: list[dict]) -> None:
    ratios, seconds, open_ends = [], [], []
    for index, setting in enumerate(settings):
        began = time.process_time()
        found = setting.run().optimized_for
        seconds.append(time.process_time() - began)
        assert found is not None
        assert found.search is not None
        if not found.converged:
            open_ends.append(f"{setting}: {found.search.message}, slope {found.search.gradient_norm:.1e}")
        if index < len(answers):
            ratios.append(found.search.loss / setting.loss(answers[index]["inverse_column"]))
    print(
        f"{len(settings)} settings: {len(open_ends)} did not converge; seconds of a processor: median "
        f"{np.median(seconds):.2f}, largest {max(seconds):.2f}"
    )
    for line in open_ends:
        print(f"    {line}")
    if ratios:
        compare(settings, answers, np.array(ratios))


def compare(settings: list[Setting], answers: list[dict], ratios: np.ndarray) -> None:
    quantiles = ", ".join(f"{part:.0%} {np.quantile(ratios, part):.5f}" for part in (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1))
    print(f"our loss / jax_privacy's in {len(ratios)} settings: {quantiles}")
    print(f"jax_privacy's seconds: median {np.median([each['seconds'] for each in answers]):.1f}")
    momentum = np.array([isinstance(each.optimized_for.workload, tff_mf.Momentum) for each in settings[: len(ratios)]])
    for name, where in (("prefix sums", ~momentum), ("momentum", momentum)):
        if np.any(where):
            print(f"    {name}: {where.sum()}, largest {ratios[where].max():.6f}")
    worst = int(np.argmax(ratios))
    print(f"largest: {ratios[worst]:.6f} at {settings[worst]}")
    print("never worse by more than 0.1 %" if ratios.max() <= 1.001 else "WORSE by more than 0.1 %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=SETTINGS, help="number of random settings")
    parser.add_argument("--seed", type=int, default=14, help="seed of the settings")
    parser.add_argument("--jax-privacy", metavar="PYTHON", help="python of a venv with jax_privacy 2.2 or newer")
    parser.add_argument("--answers", type=pathlib.Path, metavar="FILE", help="file of jax_privacy's answers")
    arguments = parser.parse_args()
    if arguments.jax_privacy and arguments.answers is None:
        parser.error("--jax-privacy needs --answers FILE, to keep what it takes half an hour to compute")
    settings = random_settings(arguments.settings, arguments.seed)
    if arguments.jax_privacy:
        ask(settings, arguments.jax_privacy, arguments.answers)
    report(settings, answered(arguments.answers))


if __name__ == "__main__":
    sys.exit(main())
