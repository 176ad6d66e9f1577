"""One function states every guarantee in one line; what forbids an ε is refused before training."""

import dataclasses
import json
import math
import re
import time

import pytest
import run_folders
from hypothesis import example, given
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments import train as training
from tff_mf.experiments.data import TRAIN, client_ids
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs import folders, statements
from tff_mf.experiments.runs.statements import Reason
from tff_mf.numerics import digits

from .shared import invoke, small_settings, write_sentences

OWN = {
    "guarantee": tff_mf.Guarantee(mu=0.5),
    "delta": 1e-6,
    "rounds": 100,
    "participation": statements.bound_to(tff_mf.MinSep(min_sep=3, max_participations=2)),
    "population": 1000,
}
CUT = Reason(field="log", text="cut")


def claimed(**changes):
    return statements.claim(**{**OWN, **changes})


def line_of(result):
    """The line of the claim in JSON."""
    return statements.line(typed.convert(result["claim"], statements.Claim))


def stated(claim):
    return [float(value) for value in re.findall(r"ε≤([0-9.]+)", statements.line(claim))]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"test_only": True}, "TEST ONLY, NO PRIVACY"),
        ({"guarantee": None}, "NO ε CAN BE STATED: accountant: no sensitivity"),
        ({"guarantee": tff_mf.Guarantee(mu=math.inf)}, "NO ε CAN BE STATED: noise: "),
        ({"population": 10**6}, "NO ε CAN BE STATED: delta: δ = 1e-06 is no smaller than 1 / 1000000"),
        ({"delta": 0.5}, "NO ε CAN BE STATED: delta: δ = 0.5 is no smaller than 1 / 1000"),
        ({"delta": 0.5, "reasons": [CUT]}, "NO ε CAN BE STATED: log: cut (and 1 more)"),
        ({"guarantee": None, "amplified": math.inf}, "NO ε CAN BE STATED: noise: "),
        ({"guarantee": None, "amplified": 0.5, "delta": 0.5}, "NO ε CAN BE STATED: delta: "),
    ],
)
def test_a_line_without_a_figure_says_why(changes, text):
    claim = claimed(**changes, clients_per_person=2, clients_per_round=10, cohort=20)
    assert statements.line(claim).startswith(text)
    assert stated(claim) == []
    assert claim.state == statements.REFUSED
    assert claim.not_checked == []
    figures = ("epsilon", "epsilon_as_run", "epsilon_of_a_person", "zcdp_rho", "mu", "tail")
    assert {getattr(claim, name) for name in figures} == {None}


@given(st.floats(1e-3, 20), st.integers(1, 50), st.integers(1, 20), st.integers(1, 20), st.sampled_from([1e-6, 1e-10]))
def test_figures_of_a_line_are_never_too_small(mu, clients, times, several, delta):
    """ε of a person comes first, and then ε of a client of the cohort, and of a client that trains."""
    own = {
        "guarantee": tff_mf.Guarantee(mu=mu),
        "delta": delta,
        "clients_per_round": clients,
        "cohort": clients * times,
    }
    figures = stated(claimed(**own, clients_per_person=several))
    factors = [*([several] if several > 1 else []), 1, *([times] if times > 1 else [])]
    true = [tff_mf.Guarantee(mu=mu * factor).epsilon(delta) for factor in factors]
    assert len(figures) == len(true)
    assert all(figure >= epsilon for figure, epsilon in zip(figures, true, strict=True))
    assert "; if δ is below 1 / population" in statements.line(claimed(**own, population=None))
    assert "1 / population" not in statements.line(claimed(**own))


# Every way to a line, at δ that the population forbids. Training itself is in test_training.py.
SETTING = ["--rounds", "40", "--min-sep", "10", "--max-participations", "4"]
COMMANDS = {
    "account": ["account", "identity", "--noise-multiplier", "4", *SETTING],
    "calibrate": ["account", "identity", "--epsilon", "2", *SETTING],
    "plan": ["plan", "--clients-per-round", "10", "--rounds", "40", "--epsilon", "4"],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("delta", "refused"), [("1e-6", False), ("0.01", True)])
def test_commands_state_and_refuse_in_the_same_words(name, delta, refused):
    arguments = [*COMMANDS[name], "--delta", delta, "--population", "100"]
    if name == "plan" and refused:
        with pytest.raises(tff_mf.InputError, match="delta"):
            invoke(*arguments, standalone_mode=False)
        return
    for more in ([], ["--json"]):
        done = invoke(*arguments, *more, standalone_mode=False)
        text = line_of(json.loads(done.stdout)) if more else " ".join(done.stdout.split())
        assert ("NO ε CAN BE STATED: delta: " in text) == refused
        assert ("at δ=1e-06 per client (central DP, zero-out), all 40 models" in text) != refused
        assert ("ε≤" in text) != refused
        if refused and not more:
            figures = dict(re.findall(r"^(\S.*?)  +(.+)$", done.stdout, re.M))
            assert {value for label, value in figures.items() if "ε" in label} == {"not stated"}
            assert figures["noise multiplier σ"] != "not stated"


def test_commands_say_why_epsilon_is_infinite_on_a_grid():
    """Noise whose ε is finite in real numbers, and has no bound with the tail of a grid's noise, is not "no noise"."""
    account = ["account", "identity", "--noise-multiplier", "0.3", *SETTING, "--delta", "1e-10", "--json"]
    found = json.loads(invoke(*account, "--dimension", "1000000").stdout)
    assert line_of(found).startswith("NO ε CAN BE STATED: noise: too little for a grid: ")
    arguments = ["plan", "--clients-per-round", "10", "--population", "1000", "--rounds", "40", "--delta", "1e-10"]
    done = invoke(*arguments, "--noise-multiplier", "0.2", standalone_mode=False)
    assert "NO ε CAN BE STATED: noise: too little for a grid" in " ".join(done.stdout.split())
    # Less is planned than was allowed, where the tail of the grid is too large for that at this δ.
    found = json.loads(invoke(*arguments, "--epsilon", "60", "--json", standalone_mode=False).stdout)
    assert 10 < found["claim"]["epsilon"] < 60


@given(st.floats(1e-9, 1e300))
@example(4967452568080.4795)
@example(7343422638690.604)
@example(2.0001)
@example(0.1 + 0.2)
def test_a_printed_epsilon_is_never_smaller(value):
    assert value <= float(digits.rounded_up(value)) <= value + 0.0011 + 1e-9 * value


def test_a_report_says_whether_clients_of_the_evaluation_train(tmp_path, small_data):
    """StackOverflow's users write before and after 2018, which is how its splits are made."""
    plan = tff_mf.plan(**PLAN, noise_multiplier=3.0, delta=1e-6)
    sizes = {**{(f"c{number}", "train"): 2 for number in range(8)}, ("c1", "heldout"): 2, ("d", "test"): 2}
    write_sentences(tmp_path / "data", sizes, lambda: "the one of them")
    of_both, of_others = (
        training.Prepared(small_settings(plan), plan, data).measured_on for data in (tmp_path / "data", small_data)
    )
    run_folders.start(tmp_path, released_without_noise=[{"name": "metrics of evaluation", "of": of_both}])
    reports.write(tmp_path, realised=False)
    said = "Released without noise: metrics of evaluation, of other sentences of clients that train"
    assert said in (tmp_path / "planned.md").read_text()
    assert of_others == "clients that do not train"


RUN = [
    *("--rounds", "4", "--clients-per-round", "2", "--min-sep", "2", "--max-participations", "2", "--delta", "1e-6"),
    *("--mechanism", "identity", "--set", "model=conv", "--set", "vocab_size=60"),
    *("--set", "embedding_size=4", "--set", "units=4"),
]
# What is wrong, and how the error begins.
REFUSED = {
    "no noise": (["--noise-multiplier", "0"], "noise_multiplier=0.0: "),
    "a seed": (["--noise-multiplier", "3", "--set", "insecure_seed=5"], "insecure_seed=5: "),
    "the tail of a grid": (["--noise-multiplier", "0.01"], "noise_multiplier=0.01: "),
    "a large δ": (["--noise-multiplier", "3", "--delta", "0.02"], "delta=0.02: "),
}


@pytest.fixture
def train(small_data, tmp_path):
    """A function that calls `train` with what it refuses before it trains, and returns why."""
    command = ["train", "--force", "--dataset", small_data, "--out", tmp_path / "run", *RUN]

    def refused(*flags):
        before = folders.has_files(tmp_path / "run")
        error = invoke(*command, *flags, catch_exceptions=True).exception
        assert isinstance(error, tff_mf.InputError)
        # Nothing is written but the lock of a folder, in which a run can then begin.
        assert folders.has_files(tmp_path / "run") == before
        return str(error)

    return refused


@pytest.mark.parametrize("name", REFUSED)
def test_train_refuses_to_train_without_an_epsilon_and_says_how_to(train, name):
    """tests/experiments/test_recovery.py trains with `--without-epsilon`."""
    flags, named = REFUSED[name]
    said = train(*flags)
    assert said.startswith(named)
    assert "without_epsilon" in said
    assert "\n" not in said


# Minutes of computing.
SEARCHED = ["--mechanism", "dense", "--rounds", "2000"]
QUICK_SECONDS = 20


@pytest.mark.parametrize("flags", [["--dataset", "stackoverfow"], ["--set", "insecure_seed=5"], []])
def test_what_is_wrong_is_found_before_a_mechanism_is_optimized(train, tmp_path, flags):
    if not flags:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "model.safetensors").write_text("of another run")
    start = time.process_time()
    said = train(*SEARCHED, "--epsilon", "2", *flags)
    assert time.process_time() - start < QUICK_SECONDS
    assert flags or "is not empty" in said


PLAN = {
    "mechanism": tff_mf.Identity(),
    "rounds": 4,
    "sampling": tff_mf.MinSep(min_sep=2, max_participations=2),
    "clients_per_round": 2,
    "cohort": 4,
}


@pytest.mark.sampled(together=2)
@pytest.mark.parametrize("noise_multiplier", [0.0, 1e-160, 0.01, 3.0])
@pytest.mark.parametrize("insecure_seed", [None, 1])
@pytest.mark.parametrize("delta", [1e-6, 0.01, 0.1])
@pytest.mark.parametrize("population", [None, 10, 99, 100, 10**9])
@pytest.mark.parametrize("grid", [None, tff_mf.Grid(bits=16, max_clients=8)])
def test_a_plan_is_refused_exactly_if_no_epsilon_can_be_stated(
    noise_multiplier, insecure_seed, delta, population, grid
):
    given = {"noise_multiplier": noise_multiplier, "insecure_seed": insecure_seed, "delta": delta, "grid": grid}
    try:
        plan = tff_mf.plan(**PLAN, **given, dimension=None if grid is None else 1000)
    except tff_mf.InputError:
        # Noise that a grid cannot hold.
        return
    if statements.of_plan(plan, population=population).state == statements.REFUSED:
        with pytest.raises(tff_mf.InputError, match="without_epsilon"):
            statements.check_statable(plan, population=population)
    else:
        statements.check_statable(plan, population=population)


def test_clients_of_the_log_count_where_they_stand_for_more(small_data):
    """A report takes who is in the log for the population, which may then be larger than with all clients."""
    clients = len(client_ids(small_data, TRAIN))
    plan = tff_mf.plan(**{**PLAN, "cohort": clients // 2}, noise_multiplier=3.0, delta=1e-6)
    settings = small_settings(plan)
    prepared = training.Prepared(settings, plan, small_data)
    logged = len({client for t in range(4) for client in prepared.cohorts.cohort(t)})
    population = training.reported_population(plan, prepared.cohorts)
    assert population == logged * (clients // 2) // 2 > plan.deployed_population(len(prepared.cohorts.client_ids))
    at_most = dataclasses.replace(plan, delta=1 / population)
    with pytest.raises(tff_mf.InputError, match="delta"):
        statements.check_statable(at_most, population=population)
