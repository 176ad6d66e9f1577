"""The coordinator: 200 rounds of devices that drop out or are hostile, and a server that is killed three times."""

import gc
import itertools
import json
import shutil
import stat

import numpy as np
import pytest
import safetensors.numpy

import tff_mf
from tff_mf.experiments import bundles, coordination, reports
from tff_mf.experiments.bundles import publishing, runner
from tff_mf.experiments.bundles.stages import Stages
from tff_mf.experiments.run_folder import ledger, names

MIN_SEP, MOST = 10, 12


def device_records(run):
    return [json.loads(line) for line in (run.parent / "devices.jsonl").read_text().splitlines()]


def test_no_round_that_was_released_is_run_again(deployment):
    run, rounds = deployment.folder, deployment.rounds
    assert deployment.ends == [9, 9, 9, 0]
    record = ledger.read_ledger(run / names.LEDGER)
    assert record.problems == []
    assert record.ended
    assert record.released == dict.fromkeys(range(1, rounds + 1), 1)
    # What devices saw, by their own records: one model a round, however often the round was begun.
    seen = {(entry["round"], entry["model"]) for entry in device_records(run)}
    assert sorted(number for number, _ in seen) == list(range(1, rounds + 1))
    assert len({model for _, model in seen}) == rounds


def test_a_run_with_a_fifth_of_hostile_devices_ends_and_names_them(deployment):
    record = ledger.read_ledger(deployment.folder / names.LEDGER)
    assert record.ended
    assert sorted(record.reports) == list(range(1, deployment.rounds + 1))
    total = json.loads((deployment.folder / "report.json").read_text())["device_reports"]
    assert set(total["refused"]) == set(runner.REASONS)
    assert total["zeroed"] > 0
    assert total["clipped"] > 0
    assert total["came"] == total["counted"] + sum(total["refused"].values())
    assert all(each.counted <= record.sizes[number] for number, each in record.reports.items())
    findings = json.loads((deployment.folder / "report.json").read_text())["findings"]
    assert any("late" in each["text"] for each in findings if each["field"] == "device_reports")
    assert not [
        each
        for each in reports.check(deployment.folder)
        if each.field in ("log", "report", "device_reports") and each.severity == "critical"
    ]
    model = safetensors.numpy.load_file(deployment.folder / "model.safetensors")
    assert all(np.isfinite(value).all() for value in model.values())


def test_min_sep_is_never_violated(deployment):
    run = deployment.folder
    past = {}
    for entry in device_records(run):
        past.setdefault(entry["device"], []).append((entry["round"], entry["hour"]))
    assert all(len(rounds) <= MOST for rounds in past.values())
    for (earlier, before), (later, after) in itertools.chain(*map(itertools.pairwise, past.values())):
        assert later - earlier >= MIN_SEP
        assert after - before >= MIN_SEP * 0.25 - 1e-9


def test_the_realised_report_is_finite_and_matches_the_ledger(deployment):
    run = deployment.folder
    (run / "answers.json").write_text(
        json.dumps(
            {
                "trusted": "the operator",
                "unit": "a device",
                "clients_of_one_person": 1,
                "population": deployment.devices,
                "enforcement": "a timer and a count of rounds on the device, and the server's log",
                "participation_depends_on_data": False,
                "tuning_runs": 0,
                "pretraining": "none",
                "other_releases": "none",
                "state_is_secret": True,
            }
        )
    )
    report = reports.write(run, realised=True)
    assert [each for each in reports.check(run) if each.severity == "critical"] == []
    assert "ε≤" in report["headline"]
    assert not report["headline"].startswith("Simulated")
    realised, planned = report["accountant"]["realised"], report["accountant"]["planned"]
    assert 0 < realised["epsilon"] <= planned["epsilon"] * (1 + 1e-9)
    record = ledger.read_ledger(run / names.LEDGER)
    assert report["ledger_head"] == record.head
    assert report["rounds"]["released"] == deployment.rounds
    assert report["rounds"]["divisor"] == 4
    assert report["participation"]["observed_min_sep"] >= MIN_SEP


def test_a_finished_server_keeps_no_secret_and_does_not_continue(deployment, bundle, tmp_path):
    run = deployment.folder
    assert not (run / "state").exists()
    assert set(safetensors.numpy.load_file(run / "model.safetensors")) == {"0", "1", "2", "3", "4"}
    with pytest.raises(tff_mf.InputError, match="has ended"):
        coordination.Coordinator(bundle.folder, run, fleet(bundle, tmp_path / "devices")).run()


def test_a_model_is_published_with_its_report_and_nothing_else(deployment, tmp_path):
    import tensorflow as tf

    run = deployment.folder
    out = tmp_path / "published"
    assert publishing.export_model(run, out)["lite"] == "model.tflite"
    inside = out / "model" / "assets.extra" / "report.json"
    assert inside.read_bytes() == (out / "report.json").read_bytes()
    mine, public = (json.loads((folder / "report.json").read_text()) for folder in (run, out))
    assert mine.pop("device_reports")["came"] > 0
    assert public == {**mine, "findings": [each for each in mine["findings"] if each["field"] != "device_reports"]}
    assert not any("Reports of devices" in path.read_text() for path in out.rglob("report.*"))
    tokenize, model = (
        tf.saved_model.load(str(out / name)).signatures["serving_default"] for name in ("tokenize", "model")
    )
    words = tokenize(sentences=tf.constant(["of the function"]))["words__0"]
    logits = model(words=words)["logits"].numpy()
    assert logits.shape == (1, 20, 64)
    lite = tf.lite.Interpreter(str(out / "model.tflite")).get_signature_runner()
    # The noise makes some logits large, and others differences of large ones.
    largest = np.abs(logits).max()
    np.testing.assert_allclose(lite(words=words.numpy())["logits"], logits, rtol=1e-3, atol=1e-5 * largest)
    # d numbers, and no more: no momentum, no rows of noise.
    weights = safetensors.numpy.load_file(run / "model.safetensors").values()
    kept = tf.train.load_checkpoint(str(out / "model" / "variables" / "variables"))
    numbers = [int(np.prod(shape)) for name, shape in kept.get_variable_to_shape_map().items() if "VALUE" in name]
    assert sum(numbers) == sum(weight.size for weight in weights)


def fleet(bundle, record, kind=coordination.Fleet, **more):
    """Devices without data to speak of: what they send does not matter here."""
    stages = Stages(bundle.folder)
    examples = stages.tokenize(["of the function"])
    return kind(
        record,
        examples={f"device{index}": examples for index in range(60)},
        policy=bundles.read_policy(bundle.folder),
        work=stages.lite_work,
        **more,
    )


class StoppedError(Exception):
    pass


def stop_after(last):
    def on_round(number):
        if number == last:
            raise StoppedError

    return on_round


def test_the_server_refuses_devices_that_come_back_too_soon(bundle, tmp_path):
    broken = frozenset(f"device{index}" for index in range(30))
    devices = fleet(bundle, tmp_path / "devices", broken=broken)
    coordinator = coordination.Coordinator(bundle.folder, tmp_path / "run", devices)
    with pytest.raises(StoppedError):
        coordinator.run(stop_after(15))
    past = {}
    for entry in map(json.loads, (tmp_path / "devices").read_text().splitlines()):
        past.setdefault(entry["device"], []).append(entry["round"])
    assert broken & set(past)
    assert all(b - a >= MIN_SEP for rounds in past.values() for a, b in itertools.pairwise(rounds))


def test_reports_count_once_in_their_own_round(bundle, tmp_path, monkeypatch):
    sent, counted = [], []

    class Eager(coordination.Fleet):
        """Sends what arrived before once more, and something of a device that nobody chose."""

        def train(self, chosen, round_number, *arguments):
            arrived, before = super().train(chosen, round_number, *arguments), list(sent)
            stranger = coordination.Report(device="?", round_number=round_number, update=arrived[0].update)
            sent[:] = arrived
            return [*before, *arrived, *arrived[:1], stranger]

    devices = fleet(bundle, tmp_path / "devices", kind=Eager)
    coordinator = coordination.Coordinator(bundle.folder, tmp_path / "run", devices)
    accumulate = Stages.accumulate
    monkeypatch.setattr(Stages, "accumulate", lambda *given: (counted.append(given[2]), accumulate(*given))[1])
    with pytest.raises(StoppedError):
        coordinator.run(stop_after(3))
    assert len(counted) == 3 * 4


def test_a_state_of_another_deployment_is_refused(bundle, tmp_path):
    ran = []
    for name in ("one", "other"):
        ran.append(tmp_path / name)
        devices = fleet(bundle, tmp_path / f"devices of {name}")
        with pytest.raises(StoppedError):
            coordination.Coordinator(bundle.folder, ran[-1], devices).run(stop_after(2))
    shutil.rmtree(ran[0] / "state")
    shutil.copytree(ran[1] / "state", ran[0] / "state")
    with pytest.raises(tff_mf.InputError, match="state of another deployment"):
        coordination.Coordinator(bundle.folder, ran[0], fleet(bundle, tmp_path / "devices of one")).run()


def test_an_older_state_is_refused(bundle, tmp_path):
    devices = fleet(bundle, tmp_path / "devices")
    run = tmp_path / "run"
    with pytest.raises(StoppedError):
        coordination.Coordinator(bundle.folder, run, devices).run(stop_after(3))
    (newest,) = (run / "state").glob("*.safetensors")
    assert stat.S_IMODE(newest.stat().st_mode) == 0o600
    newest.rename(newest.with_name("000002.safetensors"))
    with pytest.raises(tff_mf.InputError, match="state of round 2, and round 3 was released"):
        coordination.Coordinator(bundle.folder, run, devices).run()


def test_one_deployment_has_one_server_and_one_bundle(bundle, tmp_path):
    devices = fleet(bundle, tmp_path / "devices")
    run = tmp_path / "run"
    first, second = (coordination.Coordinator(bundle.folder, run, devices) for _ in range(2))
    with pytest.raises(tff_mf.InputError, match="another process"):
        first.run(lambda number: second.run())
    shutil.copytree(bundle.folder, tmp_path / "changed")
    (tmp_path / "changed" / "run.json").write_text("{}")
    with pytest.raises(tff_mf.InputError, match=r"must not be deployed: run\.json"):
        coordination.Coordinator(tmp_path / "changed", tmp_path / "other", devices)


def test_the_coordinator_runs_the_checked_copy(bundle, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(bundle.folder, folder)
    coordinator = coordination.Coordinator(folder, tmp_path / "run", fleet(bundle, tmp_path / "devices"))
    for path in (path for path in folder.rglob("*") if path.is_file()):
        path.write_bytes(b"another file")
    with pytest.raises(StoppedError):
        coordinator.run(stop_after(1))
    copy = coordinator._stages.folder
    assert copy.is_dir()
    del coordinator
    gc.collect()
    assert not copy.exists()


def test_settings_of_devices_are_checked():
    with pytest.raises(tff_mf.InputError, match=r"dropout=1\.5"):
        coordination.DeviceSettings(dropout=1.5)
