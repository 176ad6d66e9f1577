"""The options that account, calibrate, optimize, show and plan share, against whole matrices and every pattern."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats

import tff_mf
from tff_mf.sensitivities.losses import restart_errors

from .shared import gaussian_delta, moved, printed, result_of

N = 8
DELTA = 1e-6
SCHEMAS = {
    "min-sep": (["--min-sep", "2", "--max-participations", "3"], lambda gaps: all(gap >= 2 for gap in gaps), 3),
    "fixed epochs": (
        ["--sampling", "fixed-epochs", "--min-sep", "2", "--max-participations", "4"],
        lambda gaps: all(gap % 2 == 0 for gap in gaps),
        4,
    ),
    "once": (["--sampling", "single"], lambda gaps: False, 1),
}


def whole(mechanism, every):
    """C of a run that starts anew: block-diagonal."""
    block = mechanism.cast_to_float32().encoder(every)
    return np.block(
        [
            [block[: N - i, : N - j] if i == j else np.zeros((min(every, N - i), min(every, N - j))) for j in starts]
            for starts in [range(0, N, every)]
            for i in starts
        ]
    )


def least_sensitivity(matrix, allowed, limit):
    """The largest ‖Cu‖ over every pattern and all signs: the true sensitivity, or less than that."""
    patterns = (pattern for size in range(1, limit + 1) for pattern in itertools.combinations(range(N), size))
    kept = (each for each in patterns if allowed([later - sooner for sooner, later in itertools.pairwise(each)]))
    return max(moved(matrix, each) for each in itertools.chain(kept, [(t,) for t in range(N)]))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of each kind for 8 rounds, made by the command."""
    folder = tmp_path_factory.mktemp("files")
    kinds = {
        "blt": ["--buffers", "2"],
        "scaled-blt": ["--buffers", "2"],
        "banded": ["--bands", "2", "--set", "unit_norms=false"],
        "banded-toeplitz": ["--bands", "4"],
        "dense": [],
        "structured": ["--set", "diagonals=2", "--set", "rank=2"],
    }
    flags, _, _ = SCHEMAS["min-sep"]
    for kind, own in kinds.items():
        made = result_of("optimize", kind, "--rounds", N, *flags, *own, "--out", folder / kind)
        assert (made["min_sep"], made["max_participations"], made["rounds"]) == (2, 3, N)
        shown = result_of("show", folder / kind, "--rounds", N, *flags)
        for name in ("rms_loss", "max_loss", "sensitivity_as_run"):
            assert made.get(name) == shown.get(name)
        assert shown["converged"] is True
        assert tff_mf.load(folder / kind).kind in (kind.replace("-", "_"), "banded_plus_low_rank")
    return folder


NAMES = ["identity", "tree-full", "tree-online", "tree-vanilla"]
FILES = ["blt", "banded", "banded-toeplitz", "dense", "structured"]


@pytest.mark.sampled
@pytest.mark.parametrize("every", [None, 3, 4])
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", NAMES + FILES)
def test_no_figure_is_below_that_of_every_pattern(files, name, schema, every):
    given = name if name in NAMES else files / name
    flags, allowed, limit = SCHEMAS[schema]
    block = min(N, every or N)
    if name in NAMES:
        mechanism = tff_mf.Identity() if name == "identity" else tff_mf.Tree(block, variant=name.split("-")[1])
    else:
        mechanism = tff_mf.load(given)
    least = least_sensitivity(whole(mechanism, block), allowed, limit)
    setting = ["--rounds", N, *flags, *(["--set", f"restart_every={every}"] if every else [])]
    accounted = {}
    for adjacency, factor in (("zero-out", 1), ("replace-one", 2)):
        more = [*setting, "--delta", DELTA, "--set", f"adjacency={adjacency}"]
        accounted = result_of("account", given, "--noise-multiplier", 3, *more)
        assert accounted["sensitivity"] >= least * (1 - 1e-12)
        assert accounted["mu"] >= factor * least / 3
        assert gaussian_delta(accounted["epsilon"], factor * least / 3) <= DELTA * (1 + 1e-9)
        assert accounted.get("sensitivity_replace_one", accounted["sensitivity"]) == factor * accounted["sensitivity"]
        calibrated = result_of("account", given, "--epsilon", 2, *more)
        assert calibrated["epsilon"] <= 2
        assert gaussian_delta(2, factor * least / calibrated["noise_multiplier"]) <= DELTA * (1 + 1e-9)
        if accounted["sensitivity_exact"] and np.all(whole(mechanism, block) >= 0):
            assert accounted["sensitivity"] == pytest.approx(least, rel=1e-9)
            assert gaussian_delta(1.999, factor * least / calibrated["noise_multiplier"]) > DELTA
    shown = result_of("show", given, *setting)
    assert shown["sensitivity_as_run"] == accounted["sensitivity"]


RATES = tff_mf.LinearSchedule(warmup_rounds=2, cooldown_rounds=4)
# Against whole matrices, losses are tested in tests/tff_mf/test_losses.py.
WORKLOADS = {
    "": tff_mf.PrefixSum(),
    "--workload momentum --set server_momentum=0.9": tff_mf.Momentum(momentum=0.9),
    "--workload momentum-with-rates --set server_momentum=0.5 --set server_warmup=0.25 --set server_cooldown=0.5": (
        tff_mf.MomentumWithRates(momentum=0.5, rates=RATES)
    ),
}


@pytest.mark.parametrize("flags", WORKLOADS)
def test_losses_are_those_of_the_workload(files, flags):
    workload, mechanism = WORKLOADS[flags], tff_mf.load(files / "dense")
    setting = [files / "dense", "--rounds", N, *SCHEMAS["min-sep"][0], *flags.split()]
    shown = result_of("show", *setting)
    assert shown["workload"] == repr(workload)
    schema = tff_mf.MinSep(min_sep=2, max_participations=3)
    assert shown["rms_loss"] == pytest.approx(tff_mf.rms_loss(mechanism, N, schema, workload))
    assert shown["max_loss"] == pytest.approx(tff_mf.max_loss(mechanism, N, schema, workload))
    if flags:
        found = result_of("account", *setting, "--noise-multiplier", 3, "--delta", DELTA)
        assert found["rms_error"] == pytest.approx(3 * tff_mf.rms_error(mechanism, N, workload))
        assert found["max_error"] == pytest.approx(3 * tff_mf.max_error(mechanism, N, workload))


def subsampled_delta(epsilon, means, q):
    """δ of a client that is in each of two rounds with probability q: one integral in closed form, one on a grid."""
    first, second = means
    grid = np.linspace(-9, 12, 20_001)
    density = stats.norm.pdf(grid) * (grid[1] - grid[0])
    likelihood = 1 - q + q * np.exp(first * grid - first * first / 2)

    def of(direction):
        # Where the likelihood ratio of both rounds is e^±ε: it rises with what the second round releases.
        rest = np.exp(direction * epsilon) / likelihood - (1 - q)
        edge = np.where(rest > 0, np.log(np.maximum(rest, 1e-300) / q) / second + second / 2, -np.inf)
        tail = stats.norm.sf if direction > 0 else stats.norm.cdf
        without, with_client = tail(edge), (1 - q) * tail(edge) + q * tail(edge - second)
        if direction > 0:
            return float(density @ (likelihood * with_client - math.exp(epsilon) * without))
        return float(density @ (without - math.exp(epsilon) * likelihood * with_client))

    return max(of(+1), of(-1))


@pytest.mark.parametrize(("kind", "rounds", "bands"), [("poisson", 2, 1), ("cyclic-poisson", 4, 2)])
def test_an_amplified_epsilon_is_no_smaller_than_that_of_the_cohorts(tmp_path, kind, rounds, bands):
    mechanism = tff_mf.Identity() if bands == 1 else tff_mf.Banded(values=[[1.0, 1.0, 1.0, 1.0], [0.5, 0.5, 0.5, 0.0]])
    tff_mf.save(mechanism, tmp_path / "file")
    setting = ["--rounds", rounds, "--delta", 1e-4, "--sampling", kind, "--population", 40, "--clients-per-round", 2]
    setting += ["--set", f"groups={bands}"] if bands > 1 else []
    found = result_of("account", tmp_path / "file", "--noise-multiplier", 1, *setting)
    q = 2 / (40 // bands)
    columns = np.linalg.norm(mechanism.cast_to_float32().encoder(rounds), axis=0)
    deltas = [subsampled_delta(found["amplified_epsilon"], columns[start::bands], q) for start in range(bands)]
    assert 0 < max(deltas) <= 1e-4
    slightly_less = [subsampled_delta(0.97 * found["amplified_epsilon"], columns[s::bands], q) for s in range(bands)]
    assert max(slightly_less) > 1e-4
    calibrated = result_of("account", tmp_path / "file", "--epsilon", 1, *setting)
    means = columns / calibrated["amplified_noise_multiplier"]
    assert max(subsampled_delta(1, means[start::bands], q) for start in range(bands)) <= 1e-4
    # What is not amplified stands where it always stood.
    assert found["epsilon"] > found["amplified_epsilon"]
    assert calibrated["noise_multiplier"] > calibrated["amplified_noise_multiplier"]
    assert calibrated["epsilon"] <= 1 < calibrated["epsilon_if_cohorts_are_known"]
    assert "only if cohorts are drawn at random and in secret" in found["amplified_statement"]


def test_a_kind_is_optimized_for_the_setting_where_its_name_is_given(files):
    more = ["--noise-multiplier", 3, "--delta", DELTA, "--rounds", N, *SCHEMAS["min-sep"][0]]
    for kind, own in (("blt", ["--set", "buffers=2"]), ("dense", []), ("banded-toeplitz", ["--set", "bands=4"])):
        by_name, by_file = result_of("account", kind, *more, *own), result_of("account", files / kind, *more)
        assert by_name["epsilon"] == by_file["epsilon"]


def flags(**given):
    """Options by the names of their values."""
    return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]


def schema_of(found):
    return found["participation"], found["min_sep"], found["max_participations"]


COHORTS = {"population": 80, "clients_per_round": 20}


def test_plan_knows_the_same_settings():
    more = flags(**COHORTS, rounds=N, delta=DELTA, epsilon=4, sampling="fixed-epochs")
    for assigned in ("restart_every=6", "adjacency=replace-one", "objective=max"):
        more += ["--set", assigned]
    found = result_of("plan", *more)
    rows = {row["name"]: row for row in found["mechanisms"]}
    schema, numbers = tff_mf.FixedEpoch(min_sep=4, max_participations=2), found["numbers"]
    setting = {"restart_every": 6, "adjacency": "replace-one", "dimension": numbers["dimension"]}
    for name, mechanism in (("identity", tff_mf.Identity()), ("tree-full", tff_mf.Tree(6))):
        sigma, grid = rows[name]["noise_multiplier"], tff_mf.Grid(**numbers["grid"])
        run = tff_mf.guarantee(mechanism, N, schema, noise_multiplier=sigma, grid=grid, **setting)
        assert rows[name]["epsilon"] == run.epsilon(DELTA) <= 4
        error = restart_errors(mechanism, N, restart_every=6).max
        assert rows[name]["max_loss"] == pytest.approx(rows[name]["sensitivity"] * error)
    losses = [row["max_loss"] for row in found["mechanisms"]]
    assert losses == sorted(losses)
    assert set(found["mechanisms"][0]) >= {"max_loss_if_wrong", "epsilon_if_wrong"}
    claim = found["claim"]
    assert (claim["adjacency"], "noise restarted every 6 rounds" in claim["participation"]) == ("replace-one", True)


@pytest.mark.parametrize("groups", [2, None])
def test_plan_puts_amplified_figures_beside_those_of_known_cohorts(groups):
    arguments = ["plan", *flags(**COHORTS, rounds=N, delta=1e-4, epsilon=2)]
    sampled = [*arguments, "--sampling", "cyclic-poisson", *([] if groups is None else ["--set", f"groups={groups}"])]
    plain, found = result_of(*arguments), result_of(*sampled)
    assert (found["claim"], found["recommended"]) == (plain["claim"], plain["recommended"])
    level = {"rounds": N, "epsilon": 2, "delta": 1e-4}
    best = groups or tff_mf.amplified_bands(**level, **COHORTS)[0].bands
    sampling = tff_mf.CyclicPoisson(groups=best, **COHORTS)
    grid = {"grid": tff_mf.Grid(**found["numbers"]["grid"]), "dimension": found["numbers"]["dimension"]}
    made = tff_mf.plan(**level, **COHORTS, sampling=sampling, secret_cohorts=True, **grid)
    amplified = found["amplified"]
    assert amplified["sampling"] == str(sampling)
    assert amplified["amplified_noise_multiplier"] == made.noise_multiplier
    assert amplified["amplified_epsilon"] == made.epsilon <= 2 < amplified["epsilon_if_cohorts_are_known"]
    assert "only if cohorts are drawn at random and in secret" in amplified["amplified_statement"]
    # The claim is not for cohorts of the sampling that was asked for.
    screen = " ".join(printed(*sampled).split())
    assert "for known cohorts with min-sep b≥4, k≤2, in place of cyclic-poisson sampling: ε≤" in screen


def test_optimize_says_what_it_assumed_and_what_noise_is_needed(tmp_path):
    out = tmp_path / "file"
    made = result_of("optimize", "blt", "--rounds", 16, "--out", out)
    assert (made["max_participations"], made["participation_assumed"]) == (1, True)
    made = result_of("optimize", "banded", "--rounds", 16, "--bands", 4, "--out", out)
    assert (schema_of(made), made["participation_assumed"]) == (("MinSep", 4, 4), True)
    given = flags(rounds=16, min_sep=4, max_participations=4, epsilon=2, delta=DELTA)
    given += ["--set", "adjacency=replace-one"]
    made = result_of("optimize", "banded", *given, "--out", out)
    assert (made["bands"], made["participation_assumed"]) == (4, False)
    calibrated = result_of("account", out, *given)
    assert {name: made[name] for name in ("noise_multiplier", "claim")}.items() <= calibrated.items()


def test_a_mechanism_for_restarts_is_that_of_one_restart(tmp_path):
    setting = [*flags(rounds=20, min_sep=5, max_participations=4), "--set", "restart_every=8"]
    made = result_of("optimize", "dense", *setting, "--out", tmp_path / "file")
    mechanism = tff_mf.load(tmp_path / "file")
    assert mechanism.optimized_for.rounds == mechanism.max_rounds == 8
    assert mechanism.optimized_for.participation == tff_mf.MinSep(min_sep=5, max_participations=2)
    shown = result_of("show", tmp_path / "file", *setting)
    assert (made["rms_loss"], made["sensitivity"]) == (shown["rms_loss"], shown["sensitivity"])


def test_any_mechanism_can_be_approximated_by_a_structured_one(tmp_path):
    arguments = ["optimize", "structured", "--rounds", 16, "--out", tmp_path / "file"]
    arguments += ["--set", "diagonals=4", "--set", "rank=8"]
    losses = {
        of: result_of(*arguments, "--set", f"approximates={of}")["rms_loss"]
        for of in ("dense", "tree-full", "identity")
    }
    tree = tff_mf.Tree(16)
    assert losses["tree-full"] == pytest.approx(tff_mf.rms_loss(tree, 16, tff_mf.SingleParticipation()), rel=0.05)
    assert losses["dense"] < losses["tree-full"]


def test_bands_are_chosen_for_amplification(tmp_path):
    level = {"rounds": 8, "epsilon": 2, "delta": 1e-4}
    sampled = flags(**COHORTS, **level, sampling="cyclic-poisson", out=tmp_path / "file")
    made, best = result_of("optimize", "banded", *sampled), tff_mf.amplified_bands(**COHORTS, **level)[0]
    assert made["bands"] == best.bands == tff_mf.load(tmp_path / "file").bands
    assert made["amplified_noise_multiplier"] == best.noise_multiplier
    schema = tff_mf.FixedEpoch(min_sep=best.bands, max_participations=-(-8 // best.bands))
    plain = tff_mf.calibrate_noise_multiplier(best.mechanism, 8, schema, epsilon=2, delta=1e-4)
    assert made["noise_multiplier"] == plain > made["amplified_noise_multiplier"]


SETTING = {"rounds": 32, "population": 80, "clients_per_round": 10, "delta": 1e-4}
IN_BINS = [*flags(**SETTING, sampling="balls-in-bins"), "--set", "groups=8"]


def test_optimize_certifies_what_it_found(tmp_path):
    out = tmp_path / "f"
    made = result_of("optimize", "banded-toeplitz", *IN_BINS, *flags(epsilon=2, bands=6, out=out))
    mechanism = tff_mf.load(out)
    assert (made["bands"], schema_of(made)) == (mechanism.bands, ("FixedEpoch", 8, 4))
    # `optimize` knows no model, and so no grid.
    assert "(groups=8) that nobody knows, real numbers and not the integers of a grid" in made["amplified_statement"]
    sigma = made["amplified_noise_multiplier"]
    level = tff_mf.guarantee(mechanism, 32, tff_mf.BallsInBins(groups=8), noise_multiplier=sigma).at(delta=1e-4)
    assert level.epsilon == pytest.approx(made["amplified_epsilon"], rel=0.01)
    schema = tff_mf.FixedEpoch(min_sep=8, max_participations=4)
    assert made["noise_multiplier"] == tff_mf.calibrate_noise_multiplier(mechanism, 32, schema, epsilon=2, delta=1e-4)
    assert max(made["epsilon"], made["amplified_epsilon"]) <= 2 < made["epsilon_if_cohorts_are_known"]


OF_MANY = {"population": 400, "clients_per_round": 10}
SECRET = {
    "poisson": (tff_mf.Poisson(**OF_MANY), []),
    "cyclic-poisson": (tff_mf.CyclicPoisson(groups=2, **OF_MANY), ["--set", "groups=2"]),
    "balls-in-bins": (tff_mf.BallsInBins(groups=4, clients_per_round=10), ["--set", "groups=4"]),
    "b-min-sep": (tff_mf.BMinSep.of_population(min_sep=4, **OF_MANY), ["--min-sep", 4]),
}


@pytest.mark.parametrize("on_grid", [False, True], ids=["floats", "grid"])
@pytest.mark.parametrize("word", SECRET)
def test_account_answers_for_known_and_for_secret_cohorts(word, on_grid, tmp_path):
    (sampling, more), schema = SECRET[word], SECRET[word][0].schema(N)
    mechanism = tff_mf.Identity() if word == "poisson" else tff_mf.BandedToeplitz.square_root(2)
    tff_mf.save(mechanism, tmp_path / "f")
    grid, numbers = {}, "real numbers and not the integers of a grid"
    if on_grid:
        room = tff_mf.Grid.with_room(dimension=1, cohort=10).max_clients
        grid, numbers = {"grid": tff_mf.Grid(bits=8, max_clients=room), "dimension": 10**9}, "integers of 8 bits"
        more = [*more, *flags(grid=8, dimension=10**9)]
    arguments = ["account", tmp_path / "f", *flags(rounds=N, delta=1e-4, sampling=word, **OF_MANY), *more]
    stated, made = result_of(*arguments, "--noise-multiplier", 2), result_of(*arguments, "--epsilon", 1)
    assert schema_of(stated) == (type(schema).__name__, schema.min_sep, schema.max_participations)
    for prefix, drawn in (("amplified_", sampling), ("", schema)):
        epsilon = functools.partial(tff_mf.epsilon, mechanism, N, drawn, delta=1e-4)
        # Certificates by samples are drawn anew.
        assert stated[f"{prefix}epsilon"] == pytest.approx(epsilon(noise_multiplier=2.0, **grid), rel=0.02)
        assert epsilon(noise_multiplier=made[f"{prefix}noise_multiplier"], **grid) <= 1.02
        if on_grid and word == "poisson":
            assert stated[f"{prefix}epsilon"] > (1 + 1e-6) * epsilon(noise_multiplier=2.0)
    assert made["amplified_epsilon"] <= 1 < made["epsilon_if_cohorts_are_known"]
    assert stated["amplified_failure"] <= 1e-4 / 1000
    assert numbers in stated["amplified_statement"]
    # Of all 400, four groups would overfill a sum, and end every run.
    assert f"from {40 if word == 'balls-in-bins' else 400} clients" in stated["amplified_statement"]


def test_plan_certifies_a_mechanism_for_balls_in_bins():
    setting = flags(**SETTING, epsilon=2)
    plain, found = result_of("plan", *setting), result_of("plan", *setting, "--sampling", "balls-in-bins")
    assert (found["claim"], found["recommended"]) == (plain["claim"], plain["recommended"])
    amplified = found["amplified"]
    assert amplified["sampling"] == str(tff_mf.BallsInBins(groups=8, clients_per_round=10))
    assert amplified["amplified_epsilon"] <= 2 < amplified["epsilon_if_cohorts_are_known"]
    assert len(amplified["instead"]) == 2
