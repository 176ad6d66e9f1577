"""Runs whose plan draws their cohorts, by every sampling, and what holds for the folder of each, whatever ran it."""

import json

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.runs import ledger, names
from tff_mf.experiments.runs.folders import read_record
from tff_mf.experiments.sampling import SECRET, SamplingSettings

ROUNDS, CLIENTS, STOPPED = 6, 12, 3
BANDED = tff_mf.BandedToeplitz(column=[1.0, 0.5])
RUNS = {
    "poisson": (tff_mf.Identity(), {}),
    "cyclic-poisson": (BANDED, {"groups": 2}),
    "balls-in-bins": (tff_mf.BLT.production("b100"), {"groups": 3}),
    "b-min-sep": (BANDED, {"min_sep": 2}),
}
assert set(RUNS) == set(SECRET)


def plan_of(word, *, secret=True, **more):
    mechanism, parameters = RUNS[word]
    sampling = SamplingSettings(sampling=word, **parameters).drawn_by(population=CLIENTS, clients_per_round=2)
    fields = {"mechanism": mechanism, "rounds": ROUNDS, "sampling": sampling, "clients_per_round": 2, "delta": 1e-3}
    fields |= {"noise_multiplier": 3.0, "population": CLIENTS, "secret_cohorts": secret}
    return tff_mf.plan(**{**fields, **more})


def critical(folder):
    return reports.check(folder).problems


def check_secret(folder, word, plan, hidden):
    """Nothing shows the cohorts of a run that has ended, and the amplified ε is stated."""
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    # Numbers of a released model have any bytes.
    texts = [content for path, content in written.items() if path.suffix != ".safetensors"]
    assert not any(name.encode() in content for name in hidden for content in texts)
    assert not any(path.name == names.COHORTS for path in written)
    entries = [json.loads(line) for line in (folder / names.LEDGER).read_text().splitlines()]
    begun = [entry["clients"] for entry in entries if entry["kind"] == "begun"]
    assert begun
    assert not any(begun)
    assert not any(entry.get("reports") for entry in entries)
    # How long the run took depends on the cohorts.
    assert [entry["kind"] for entry in entries if "time" in entry] == ["opened"]
    record, report = read_record(folder), reports.read(folder / names.REPORT)
    assert report.log.ended is None
    assert plan.epsilon <= record.amplified_epsilon <= 1.05 * plan.epsilon
    assert report.claim.epsilon == record.amplified_epsilon
    assert critical(folder) == []
    assert f"cohorts by {word} sampling" in report.headline


def check_logged(folder, plan, cohorts):
    """The log of a run that has ended has the cohorts that came, which amplify nothing."""
    begun = ledger.read_ledger(folder / names.LEDGER).begun
    found = [sorted(client for line in begun for client in line.clients if line.round == t + 1) for t in range(ROUNDS)]
    assert found == [sorted(each) for each in cohorts]
    # Each client came as the plan's sampling lets it.
    for client in set().union(*cohorts):
        assert plan.participation.allows(t for t in range(ROUNDS) if client in cohorts[t])
    assert read_record(folder).amplified_epsilon is None
    report = reports.read(folder / names.REPORT)
    assert abs(report.planned.epsilon / plan.epsilon - 1) < 1e-6
    assert critical(folder) == []
