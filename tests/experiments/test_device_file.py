"""device-policy.json: what follows from what."""

import itertools
import json

import numpy as np
import pytest
from run_folders import plan

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.guard import export

MINUTES = 15.0
# Three bands apart, what fixed epochs cannot align and other rounds can.
GAPPED = tff_mf.BandedToeplitz(column=[1, 0, 0, 0, 0.9])


def write(folder, participation=None, *, task_name=None, minutes=MINUTES, population=None, **privacy):
    """Writes what a bundle's policy follows from, and the policy."""
    folder.mkdir(exist_ok=True)
    schema = tff_mf.MinSep(min_sep=3, max_participations=2) if participation is None else participation
    made = plan(sampling=schema, **{"mechanism": GAPPED, **privacy})
    reports.write_record(folder, made, population=population)
    export.write_device_policy(folder, round_minutes=minutes, task_name=task_name)
    return read(folder)


def read(folder):
    return json.loads((folder / export.DEVICE_POLICY).read_text())


def _policies_of(found):
    return found["population_eligibility_spec"]["eligibility_policies"]


def epsilon_of(patterns, mechanism=GAPPED, rounds=9, noise_multiplier=5.0):
    """ε of what clients with these patterns move at most: C has no negative entries."""
    encoder = mechanism.encoder(rounds)
    norms = [np.linalg.norm(encoder[:, list(pattern)].sum(axis=1)) for pattern in patterns]
    return tff_mf.Guarantee(mu=max(norms) / noise_multiplier).epsilon(1e-6)


def test_its_specification_follows_from_the_plan(tmp_path):
    """Of nine rounds, three are three apart, and two are accounted for: five apart, two fit."""
    written = write(tmp_path, task_name="words")
    found = written["population_eligibility_spec"]
    device = export.DevicePolicy(task_name="words", minimum_separation=4, trust_seconds=5 * 900, timer_seconds=3 * 900)
    assert found == device.specification(1)
    assert found["task_info"][0]["task_assignment_mode"] == "TASK_ASSIGNMENT_MODE_SINGLE"
    assert written["client_flags"] == {"log_min_sep_index_to_phase_stats": True, "opstats_ttl_days": 30}


def apart(least, most):
    return [
        pattern
        for size in range(1, most + 1)
        for pattern in itertools.combinations(range(9), size)
        if all(later - sooner >= least for sooner, later in itertools.pairwise(pattern))
    ]


def test_its_figures_match_brute_force_over_patterns(tmp_path):
    mechanism = tff_mf.BandedToeplitz.square_root(9)
    found = write(tmp_path, mechanism=mechanism)["guarantee"]
    assert found["devices_alone_suffice"] is True
    assert found["claimed"]["epsilon"] == pytest.approx(epsilon_of(apart(3, 2), mechanism), rel=1e-6)
    assert found["by_devices_alone"]["epsilon"] == found["claimed"]["epsilon"] >= epsilon_of(apart(5, 2), mechanism)


def test_devices_alone_do_not_enforce_fixed_epochs_and_the_file_says_so(tmp_path):
    found = write(tmp_path, tff_mf.FixedEpoch(min_sep=3, max_participations=3))
    claimed, alone = found["guarantee"]["claimed"], found["guarantee"]["by_devices_alone"]
    assert not found["guarantee"]["devices_alone_suffice"]
    epochs = epsilon_of([(j, j + 3, j + 6) for j in range(3)])
    assert claimed["epsilon"] == pytest.approx(epochs, rel=1e-6)
    # An upper bound, for coefficients that rise.
    assert alone["epsilon"] >= epsilon_of(apart(3, 3)) > epochs


@pytest.mark.parametrize(
    "schema", [tff_mf.SingleParticipation(), tff_mf.FixedEpoch(min_sep=3, max_participations=1)], ids=str
)
def test_clients_can_enforce_single_participation(schema, tmp_path):
    found = write(tmp_path, schema)
    assert _policies_of(found)[0]["min_sep_policy"]["minimum_separation"] == 8
    assert found["guarantee"]["devices_alone_suffice"]


def test_a_long_period_needs_a_long_history(tmp_path):
    assert write(tmp_path, minutes=9 * 24 * 60.0)["client_flags"]["opstats_ttl_days"] == 45
    with pytest.raises(tff_mf.InputError, match="round_minutes is too long"):
        write(tmp_path / "other", minutes=1e10)


@pytest.mark.parametrize("more", [{"insecure_seed": 3}, {"population": 10**6}], ids=["test only", "delta"])
def test_what_no_report_states_an_epsilon_of_has_none_in_the_policy(tmp_path, more):
    found = write(tmp_path, **more)["guarantee"]
    assert [found[name]["epsilon"] for name in ("claimed", "by_devices_alone")] == [None] * 2


def test_names_follow_from_the_settings(tmp_path):
    names = [
        write(tmp_path / str(index), **privacy)["population_eligibility_spec"]["task_info"][0]["task_name"]
        for index, privacy in enumerate([{}, {}, {"noise_multiplier": 6.0}, {"task_name": "words/v2"}])
    ]
    assert names[0] == names[1] != names[2]
    assert names[3] == "words/v2"
    for name in ("", "a" * 129, "words\n"):
        with pytest.raises(tff_mf.InputError, match="task_name"):
            export.check_task_name(name)
