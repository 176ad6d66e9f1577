"""Commands answer what the library answers, from options in place of arguments."""

import pytest

import tff_mf

from .shared import result_of

N = 8

SCHEMA = tff_mf.MinSep(min_sep=2, max_participations=3)
SETTING = ["--rounds", N, "--min-sep", 2, "--max-participations", 3]
KINDS = {
    "blt": ["--buffers", 2, "--set", "objective=rms"],
    "scaled-blt": ["--buffers", 2],
    "banded": ["--bands", 2, "--set", "unit_norms=false"],
    "banded-toeplitz": ["--bands", 2, "--workload", "momentum", "--set", "server_momentum=0.9"],
    "dense": [],
}
MADE = {
    "blt": lambda **setting: tff_mf.optimize_blt(buffers=2, objective="rms", **setting),
    "scaled-blt": lambda **setting: tff_mf.optimize_scaled_blt(buffers=2, **setting),
    "banded": lambda **setting: tff_mf.optimize_banded(bands=2, unit_norms=False, **setting),
    "banded-toeplitz": lambda **setting: tff_mf.optimize_banded_toeplitz(
        bands=2, workload=tff_mf.Momentum(momentum=0.9), **setting
    ),
    "dense": tff_mf.optimize_dense,
}


def flags(**given):
    """Options by the names of their values."""
    return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mechanism_is_optimized_saved_and_shown(kind, tmp_path):
    file = tmp_path / "file"
    made = result_of("optimize", kind, *SETTING, *KINDS[kind], "--out", file)
    mechanism, expected = tff_mf.load(file), MADE[kind](rounds=N, participation=SCHEMA)
    assert mechanism == expected
    shown = result_of("show", file)
    workload = expected.optimized_for.workload or tff_mf.PrefixSum()
    assert shown["rms_loss"] == made["rms_loss"] == pytest.approx(tff_mf.rms_loss(expected, N, SCHEMA, workload))
    assert shown["max_loss"] == made["max_loss"] == pytest.approx(tff_mf.max_loss(expected, N, SCHEMA, workload))
    assert shown["sensitivity"] == pytest.approx(tff_mf.sensitivity(expected, N, SCHEMA))
    assert (shown["converged"], shown["workload"]) == (True, repr(workload))
    once = result_of("show", file, "--rounds", N, "--sampling", "single")
    assert once["rms_loss"] == pytest.approx(tff_mf.rms_loss(expected, N, tff_mf.SingleParticipation(), workload))


@pytest.mark.parametrize(
    ("kind", "more", "participation"),
    [("blt", [], (1, True)), ("banded", ["--bands", 4], (4, True)), ("banded", SETTING[2:], (3, False))],
)
def test_a_participation_that_is_assumed_is_told(kind, more, participation, tmp_path):
    made = result_of("optimize", kind, "--rounds", 16, *more, "--out", tmp_path / "file")
    assert (made["max_participations"], made["participation_assumed"]) == participation
    assert tff_mf.load(tmp_path / "file").optimized_for.participation.max_participations == participation[0]


OF_MANY = {"population": 400, "clients_per_round": 10}
SAMPLINGS = {
    "single": (tff_mf.SingleParticipation(), []),
    "min-sep": (SCHEMA, SETTING[2:]),
    "fixed-epochs": (tff_mf.FixedEpoch(min_sep=2, max_participations=4), flags(min_sep=2, max_participations=4)),
    "poisson": (tff_mf.Poisson(**OF_MANY), []),
    "cyclic-poisson": (tff_mf.CyclicPoisson(groups=2, **OF_MANY), flags(groups=2)),
    "balls-in-bins": (tff_mf.BallsInBins(groups=4, clients_per_round=10), flags(groups=4)),
    "b-min-sep": (tff_mf.BMinSep.of_population(min_sep=4, **OF_MANY), flags(min_sep=4)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("on_grid", [False, True], ids=["floats", "grid"])
@pytest.mark.parametrize("word", SAMPLINGS)
def test_account_answers_for_known_and_for_secret_cohorts(word, on_grid, tmp_path):
    (sampling, more), schema = SAMPLINGS[word], SAMPLINGS[word][0].schema(N)
    mechanism = tff_mf.Identity() if word == "poisson" else tff_mf.BandedToeplitz.square_root(2)
    tff_mf.save(mechanism, tmp_path / "f")
    numbers = {}
    if on_grid:
        room = tff_mf.Grid.with_room(dimension=1, cohort=10).max_clients
        numbers = {"grid": tff_mf.Grid(bits=8, max_clients=room), "dimension": 10**9}
        more = [*more, *flags(grid=8, dimension=10**9)]
    arguments = ["account", tmp_path / "f", *flags(rounds=N, delta=1e-4, sampling=word, **OF_MANY), *more]
    stated, made = result_of(*arguments, "--noise-multiplier", 2), result_of(*arguments, "--epsilon", 1)
    known = {"mechanism": mechanism, "rounds": N, "sampling": schema, **numbers}
    run = tff_mf.guarantee(**known, noise_multiplier=2.0)
    assert (stated["epsilon"], stated["mu"], stated["zcdp_rho"]) == (run.epsilon(1e-4), run.mu, run.zcdp_rho)
    assert stated["claim"]["epsilon"] == stated["epsilon"]
    assert made["noise_multiplier"] == tff_mf.calibrate_noise_multiplier(**known, epsilon=1, delta=1e-4)
    assert (made["claim"]["epsilon"], made["claim"]["population"]) == (made["epsilon"], 400)
    assert made["epsilon"] <= 1
    assert ("amplified_epsilon" in stated) == (sampling != schema)
    if sampling != schema:
        secret = tff_mf.guarantee(mechanism, N, sampling, noise_multiplier=2.0, **numbers).epsilon(1e-4)
        # Certificates by samples are drawn anew.
        assert stated["amplified_epsilon"] == pytest.approx(secret, rel=0.02)
        assert stated["amplified_epsilon"] < stated["epsilon"]
        assert made["amplified_epsilon"] <= 1 < made["epsilon_if_cohorts_are_known"]
        assert stated["amplified_failure"] <= 1e-4 / 1000
        assert "only if cohorts are drawn at random and in secret" in stated["amplified_statement"]
        # Of all 400, four groups would overfill a sum, and end every run.
        assert f"from {40 if word == 'balls-in-bins' else 400} clients" in stated["amplified_statement"]
