"""Runs whose noise restarts, counts of adaptive clipping, and servers that restart too: their ε and their files."""

import json
import types

import numpy as np
import pytest
import tensorflow as tf

import tff_mf
from tff_mf.experiments import next_word, reports
from tff_mf.experiments.runs import statements
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.runs.signal_to_noise import rmse_of_plan
from tff_mf.experiments.sampling import SamplingSettings

from .shared import checked, critical, invoke, small_settings

SCHEMA = tff_mf.MinSep(min_sep=2, max_participations=4)
SETTING = {"rounds": 9, "sampling": SCHEMA, "delta": 1e-6, "clients_per_round": 3, "cohort": 30}
CONSTANT = {"server_warmup": 0.0, "server_cooldown": 0.0}
FLAGS = [
    *("--rounds", "6", "--clients-per-round", "3", "--min-sep", "2", "--max-participations", "3", "--delta", "1e-6"),
    *("--mechanism", "tree-online", "--set", "model=conv", "--set", "vocab_size=100"),
    *("--set", "embedding_size=4", "--set", "units=4"),
    *("--set", "max_examples=1", "--set", "batch_size=1", "--set", "evaluation_examples=20", "--set", "grid=none"),
]


def plan(**changes):
    return tff_mf.plan(**{**SETTING, "mechanism": tff_mf.Tree(4), "restart_every": 4, **changes})


def of_python(noise_multiplier, count_stddev=None, mechanism=None):
    """The guarantee of the setting from the functions of `tff_mf` alone."""
    sums = tff_mf.guarantee(mechanism or tff_mf.Tree(4), 9, SCHEMA, noise_multiplier=noise_multiplier, restart_every=4)
    if count_stddev is None:
        return sums
    return tff_mf.compose_guarantees(sums, tff_mf.adaptive_clipping_guarantee(9, SCHEMA, count_stddev=count_stddev))


def test_restarts_are_not_amplified():
    schema = tff_mf.MinSep(min_sep=1, max_participations=9)
    setting = {**SETTING, "sampling": schema, "noise_multiplier": 5.0, "mechanism": tff_mf.Identity(), "cohort": None}
    poisson = SamplingSettings(sampling="poisson")
    assert statements.amplified_level(tff_mf.plan(**setting), poisson, 1000).epsilon < tff_mf.plan(**setting).epsilon
    with pytest.raises(tff_mf.InputError, match="restart_every=3 does not go with secret_cohorts"):
        statements.amplified_level(tff_mf.plan(**setting, restart_every=3), poisson, 1000)


def test_a_mechanism_is_optimized_for_one_restart_and_accounted_for_all():
    settings = RunSettings(
        rounds=24, clients_per_round=2, delta=1e-6, min_sep=4, max_participations=6, epsilon=4.0, mechanism="banded",
        restart_every=8,
    )  # fmt: skip
    settings.check()
    mechanism = settings.build_mechanism()
    assert mechanism.optimized_for.rounds == 8
    found = settings.privacy_plan(mechanism)
    expected = tff_mf.guarantee(
        mechanism, 24, settings.participation(), noise_multiplier=found.noise_multiplier, restart_every=8,
        grid=found.grid, dimension=found.dimension,
    )  # fmt: skip
    assert 3.99 < expected.epsilon(1e-6) <= 4.0
    assert found.epsilon == expected.epsilon(1e-6)


def test_the_error_of_restarts_is_that_of_the_noise_they_draw():
    """L_e, from which rates are proposed: against the block-diagonal inverse of the whole run."""
    inverse = np.kron(np.eye(3), tff_mf.Tree(4).inverse(4))[:9, :9]
    exact = np.sqrt(np.mean(np.sum(np.square(np.cumsum(inverse, axis=0)), axis=1)))
    found = rmse_of_plan(plan(noise_multiplier=5.0))
    assert found == pytest.approx(exact * 5.0 / 30, rel=1e-9)


def test_the_run_adds_the_noise_that_its_plan_accounts_for():
    privacy = plan(noise_multiplier=5.0)
    settings = small_settings(privacy, **CONSTANT)
    task = next_word.build_task(settings, [f"word{number}" for number in range(60)])
    _, aggregator = next_word.build_process(settings, privacy, task)
    found = aggregator.dp_event(9, SCHEMA).noise_multiplier
    # Of the clients that train: a tenth of the cohort, with a tenth of its noise.
    assert found == pytest.approx(of_python(0.5, None).effective_noise_multiplier, rel=1e-6)


def test_the_momentum_of_dp_ftrl_starts_anew_at_a_restart_and_that_of_sgd_does_not():
    specs = tf.TensorSpec([], tf.float32)
    moved = {}
    for name in ("sgdm", "dp-ftrl"):
        privacy = plan(noise_multiplier=1.0)
        settings = small_settings(privacy, **CONSTANT, server_optimizer=name, server_momentum=0.5)
        optimizer = next_word.server_optimizer(settings, privacy)
        state, weight, steps = optimizer.initialize(specs), tf.constant(0.0), []
        for gradient in (1.0, 0.0, 0.0, 0.0, 0.0):
            state, after = optimizer.next(state, weight, tf.constant(gradient))
            steps.append(float(weight - after))
            weight = after
        moved[name] = steps
    np.testing.assert_allclose(moved["sgdm"], [1, 0.5, 0.25, 0.125, 0.0625])
    np.testing.assert_allclose(moved["dp-ftrl"], [1, 0.5, 0.25, 0.125, 0.0])


@pytest.fixture(scope="module")
def by_command(small_data, tmp_path_factory):
    """A run with restarts by command, whose noise is random, in TOML and in flags."""
    root = tmp_path_factory.mktemp("restarts")
    config = root / "run.toml"
    config.write_text("[run]\nrestart_every = 2\nnoise_multiplier = 8.0\n")
    out = root / "run"
    flags = ["--dataset", f"sqlite:{small_data}", "--config", str(config), "--set", "cohort=6", "--out", str(out)]
    done = invoke("train", "--force", *FLAGS, *flags, "--json")
    assert done.exit_code == 0, done.output
    return types.SimpleNamespace(out=out, summary=json.loads(done.stdout))


def test_all_files_of_a_run_state_the_epsilon_of_restarts(by_command):
    schema = tff_mf.MinSep(min_sep=2, max_participations=3)
    sums = tff_mf.guarantee(tff_mf.Tree(2, variant="online"), 6, schema, noise_multiplier=8.0, restart_every=2)
    expected = sums.epsilon(1e-6)
    out = by_command.out
    assert critical(out) == []
    planned, realised = (reports.read(out / name) for name in ("planned.json", "report.json"))
    assert planned.planned.epsilon == pytest.approx(expected, rel=1e-9)
    assert planned.planned.epsilon >= expected
    assert realised.plan["restart_every"] == 2
    assert by_command.summary["claim"] == realised.as_json()["claim"]
    assert realised.planned.epsilon == pytest.approx(expected, rel=1e-9)
    said = planned.headline
    assert "min-sep b≥2, k≤3" in said
    assert {"restarts", "clipping"} <= checked(realised)
    again = reports.read_record(out).plan
    assert again.epsilon == expected
