"""Training from end to end on a little real text, whose noise restarts: files, statement and cohorts."""

import json

import numpy as np
import pytest
import run_folders
import tensorflow as tf

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments import next_word, reports, train
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs import names, results
from tff_mf.experiments.runs.results import Summary

from .shared import checked, critical, rows, small_settings, took_part

SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=2)
RESTARTED = tff_mf.Tree(2, variant="online")
SMALL = {
    "vocab_size": 200,
    "client_learning_rate": 0.5,
    "max_examples": 8,
    "batch_size": 4,
    "evaluate_every": 2,
    "evaluation_examples": 40,
}


def privacy(**changes):
    own = {"rounds": 5, "sampling": SCHEMA, "clients_per_round": 3, "noise_multiplier": 4.0}
    return run_folders.plan(**{**own, **changes})


@pytest.fixture(scope="module")
def finished(small_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    seen = []
    plan = privacy(mechanism=RESTARTED, restart_every=2, cohort=6)
    settings = small_settings(plan, **SMALL)
    result = train.run(settings, plan, data=small_data, out=out, on_round=lambda *given: seen.append(given))
    return result, out, seen


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("algorithm", ["fed-avg", "fed-sgd"])
def test_the_process_releases_what_the_guarantee_counts_on(algorithm):
    other = {"client_learning_rate": 1.0, "clip_norm": 0.01, "zeroing": 100.0, "server_learning_rate": 20.0}
    settings = small_settings(**{**SMALL, **other, "algorithm": algorithm})
    language_task = next_word.build_task(settings, [f"word{number}" for number in range(60)])
    words = np.random.default_rng(0).integers(0, 60, (3, 8, 21))
    clients = [tf.data.Dataset.from_tensor_slices((one[:, :-1], one[:, 1:])).batch(4) for one in words]
    plan = privacy(noise_multiplier=0.1, clip_norm=settings.clip_norm)
    process, _ = next_word.build_process(settings, plan, language_task)
    with aggregators.resident_context():
        result = aggregators.check_process(
            process,
            plan.mechanism,
            clip_norm=settings.clip_norm,
            noise_multiplier=plan.noise_multiplier_as_run,
            clients_per_round=plan.clients_per_round,
            clients=clients,
            rounds=5,
            server_learning_rate=1.0,  # the rate rises from a twentieth
        )
    assert result.status != "failed", str(result)
    assert all(result[law].status == "passed" for law in ("scale", "correlation", "fresh", "divisor")), str(result)


def test_files_of_a_run(finished):
    result, out, seen = finished
    metrics = rows(out / names.METRICS)
    assert [int(row["round"]) for row in metrics] == [1, 2, 3, 4, 5]
    evaluated = [int(row["round"]) for row in metrics if row["loss"]]
    assert evaluated == [2, 4, 5]
    assert [number for number, _ in seen] == [1, 2, 3, 4, 5]
    assert typed.read(out / names.SUMMARY, Summary, "summary") == result.summary
    assert len(took_part(out)) == 15
    model, others = results.read_model(out)
    assert others == {}
    assert sum(weight.size for weight in model.values()) == result.summary.parameters
    # Under the names of Keras, whatever the process built before.
    assert next(iter(model)) == "embedding/embeddings"
    assert len(json.loads((out / names.VOCABULARY).read_text())) == SMALL["vocab_size"]


def test_both_reports_are_written_and_agree_with_the_run(finished):
    result, out, _ = finished
    planned, realised = (reports.read(out / name) for name in ("planned.json", "report.json"))
    sums = tff_mf.guarantee(RESTARTED, 5, SCHEMA, noise_multiplier=4.0, restart_every=2)
    expected = sums.epsilon(1e-6)
    assert realised.plan["restart_every"] == 2
    assert expected <= planned.planned.epsilon
    assert planned.planned.epsilon == pytest.approx(expected, rel=1e-9)
    assert realised == result.report
    assert realised.realised.epsilon <= planned.planned.epsilon * (1 + 1e-12)
    assert critical(out) == []
    assert {"participation", "sampler", "log", "restarts", "clipping"} <= checked(realised)
    assert realised.claim.state == "stated"
    assert realised.log.started <= realised.log.ended
    assert realised.run["training_clients"] > 0
    assert realised.log.released == 5
    assert realised.claim.simulation
