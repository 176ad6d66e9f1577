"""Mechanisms from outside: they work everywhere, and what a careless author gets wrong is found."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Sequence

import numpy as np
import pytest

import tff_mf
from tests.tff_mf.samplings import cyclic_event
from tff_mf import artifacts
from tff_mf.mechanisms import BandedMechanism, ToeplitzMechanism, registry
from tff_mf.mechanisms.registry import Codec, _kinds
from tff_mf.noise import numpy as streams
from tff_mf.sensitivities import _check

from .oracles import largest_norm

SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=3)
FIXED = tff_mf.FixedEpoch(min_sep=3, max_participations=3)


@pytest.fixture(autouse=True)
def registered_for_one_test(monkeypatch):
    monkeypatch.setattr(_kinds, "_KINDS", dict(_kinds._KINDS))
    monkeypatch.setattr(_check, "_passed", set())


def float32(value):
    return float(np.float32(value))


def geometric_class(**methods):
    """A new class of C = LtToep(1, α, αβ, αβ², …), with some methods replaced."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Geometric(ToeplitzMechanism):
        kind = "geometric"
        alpha: float
        beta: float

        def coefficients(self, rounds):
            return np.concatenate([[1.0], self.alpha * self.beta ** np.arange(rounds - 1)])

        def inverse_coefficients(self, rounds):
            return np.concatenate([[1.0], -self.alpha * (self.beta - self.alpha) ** np.arange(rounds - 1)])

        def cast_to_float32(self):
            return dataclasses.replace(self, alpha=float32(self.alpha), beta=float32(self.beta))

    for name, method in methods.items():
        setattr(Geometric, name, method)
    return Geometric


def any_class(**methods):
    """A new class of any lower-triangular C."""

    @dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
    class Any(tff_mf.Mechanism):
        kind = "any"
        matrix: np.ndarray

        def __post_init__(self):
            super().__post_init__()
            matrix = np.array(self.matrix)
            matrix.flags.writeable = False
            object.__setattr__(self, "matrix", matrix)

        @property
        def max_rounds(self):
            return len(self.matrix)

        def encoder(self, rounds):
            return self.matrix[: self.check(rounds), :rounds].copy()

        def inverse(self, rounds):
            return tff_mf.Dense(matrix=self.encoder(rounds)).inverse(rounds)

        def cast_to_float32(self):
            return dataclasses.replace(self, matrix=self.matrix.astype(np.float32).astype(np.float64))

    for name, method in methods.items():
        setattr(Any, name, method)
    return Any


def geometric(*, alpha=0.5, beta=0.75, codec=None, sensitivity=None, **methods):
    kind = geometric_class(**methods)
    tff_mf.register_mechanism(kind, codec=codec, sensitivity=sensitivity)
    return kind(alpha=alpha, beta=beta)


def any_matrix(matrix, *, sensitivity=None, **methods):
    kind = any_class(**methods)
    tff_mf.register_mechanism(kind, codec=Codec.of_fields(kind, matrix=2), sensitivity=sensitivity)
    return kind(matrix=np.array(matrix, dtype=np.float64))


def mixed_matrix(rounds):
    """Entries of both signs and no zeros, so that no rule for min-sep is exact."""
    generator = np.random.default_rng(4)
    return np.tril(generator.uniform(-0.5, 0.5, (rounds, rounds)), -1) + np.eye(rounds)


def test_names_of_the_command_line_give_mechanisms():
    named = {name: make for each in registry.kinds() for name, make in each.named.items()}
    assert list(named) == [
        "production:b100", "production:b400", "production:b1000", "tree-full", "tree-online",
        "tree-vanilla", "identity",
    ]  # fmt: skip
    assert named["production:b400"](None) == tff_mf.BLT.production("b400")
    assert named["tree-online"](8) == tff_mf.Tree(8, variant="online")
    with pytest.raises(tff_mf.InputError, match=r"tree-full.*does not say how many"):
        named["tree-full"](None)


def test_an_outsider_works_in_every_function(tmp_path):
    mechanism, twin = geometric(), tff_mf.BLT(theta=[0.75], omega=[0.5])
    setting = (40, SCHEMA)
    noise = {"noise_multiplier": 2.0}
    for function, arguments in (
        (tff_mf.sensitivity, {}),
        (tff_mf.explain_sensitivity, {}),
        (tff_mf.rms_loss, {}),
        (tff_mf.max_loss, {}),
        (tff_mf.zcdp_rho, noise),
        (tff_mf.epsilon, {**noise, "delta": 1e-6}),
        (tff_mf.calibrate_noise_multiplier, {"epsilon": 1.0, "delta": 1e-6}),
        (tff_mf.guarantee, noise),
        (tff_mf.guarantee, {**noise, "restart_every": 15}),
        (tff_mf.restart_sensitivity, {"restart_every": 15}),
    ):
        found, expected = (function(each, *setting, **arguments) for each in (mechanism, twin))
        # C⁻¹ of the twin is by an eigenproblem.
        assert found == (pytest.approx(expected, rel=1e-12) if isinstance(expected, float) else expected), function
    patterns = [(0, 3, 9), (5,)]
    assert tff_mf.pattern_sensitivity(mechanism, 40, patterns) == tff_mf.pattern_sensitivity(twin, 40, patterns)
    optimized_for = tff_mf.OptimizedFor(rounds=40, participation=SCHEMA)
    mechanism = dataclasses.replace(mechanism, optimized_for=optimized_for)
    tff_mf.save(mechanism, tmp_path / "geometric.safetensors")
    assert tff_mf.load(tmp_path / "geometric.safetensors") == mechanism


def test_a_banded_outsider_is_amplified_by_its_bands():
    outsider = with_diagonals(lambda n: np.outer([1.0, 0.5], np.ones(n)), count=2)
    found, expected = (
        cyclic_event(each, 8, population=100, clients_per_round=5, noise_multiplier=1)
        for each in (outsider, tff_mf.BandedToeplitz(column=[1.0, 0.5]))
    )
    assert found == expected


def too_small(mechanism, rounds, participation):
    return 0.99 * true_sensitivity(mechanism, rounds, participation)


def true_sensitivity(mechanism, rounds, participation):
    """By theorem 3.1 of McMahan et al. (2024), as coefficients do not rise."""
    earliest = range(0, rounds, participation.min_sep)[: participation.max_participations]
    return float(np.linalg.norm(mechanism.encoder(rounds)[:, earliest].sum(axis=1)))


@pytest.mark.parametrize("schema", [SCHEMA, FIXED, tff_mf.SingleParticipation()])
def test_a_closed_form_that_is_right_is_used(schema):
    mechanism = geometric(sensitivity=true_sensitivity)
    expected = tff_mf.explain_sensitivity(tff_mf.BLT(theta=[0.75], omega=[0.5]), 20, schema)
    assert tff_mf.explain_sensitivity(mechanism, 20, schema) == expected


HOSTILE = {
    "1 % too small": too_small,
    "wrong for many rounds": lambda m, n, p: true_sensitivity(m, n, p) * (1 if n < 15 else 0.99),
    "wrong for several participations": lambda m, n, p: (
        true_sensitivity(m, n, p) * (1 if p.max_participations == 1 else 0.99)
    ),
    "wrong by rounding and more": lambda m, n, p: true_sensitivity(m, n, p) * (1 - 1e-9),
    "of one column": lambda m, n, p: float(np.linalg.norm(m.coefficients(n))),
    "of the square": lambda m, n, p: true_sensitivity(m, n, p) ** 0.5,
    "nothing": lambda m, n, p: 0.0,
}


# Of more rounds than whole matrices are compared for, the one claim that is wrong only there.
@pytest.mark.parametrize(
    ("claim", "rounds"),
    [*itertools.product(HOSTILE.values(), [16, 50]), (HOSTILE["wrong for many rounds"], 3000)],
    ids=[*(f"{name}-{rounds}" for name, rounds in itertools.product(HOSTILE, [16, 50])), "wrong for many rounds-3000"],
)
def test_a_closed_form_that_is_too_small_is_refused(claim, rounds):
    mechanism = geometric(sensitivity=claim)
    for use in (
        lambda: tff_mf.sensitivity(mechanism, rounds, SCHEMA),
        lambda: tff_mf.epsilon(mechanism, rounds, SCHEMA, noise_multiplier=1.0, delta=1e-6),
        lambda: tff_mf.restart_sensitivity(mechanism, rounds, SCHEMA, restart_every=rounds - 1),
    ):
        with pytest.raises(tff_mf.InputError, match=r"sensitivity of kind 'geometric'.*is attained"):
            use()


@pytest.mark.parametrize("rounds", [12, 60])
def test_a_closed_form_that_is_too_small_for_a_matrix_without_structure_is_refused(rounds):
    mechanism = any_matrix(np.abs(mixed_matrix(rounds)), sensitivity=lambda m, n, p: 0.6 * bound_of(m, n, p))
    with pytest.raises(tff_mf.InputError, match="is attained"):
        tff_mf.sensitivity(mechanism, rounds, SCHEMA)


def test_a_closed_form_that_overlooks_signs_is_refused():
    """At the rounds asked for, no equal contributions exceed it; for few rounds, other ones do."""

    def by_equal_contributions(mechanism, rounds, participation):
        matrix = mechanism.encoder(rounds)
        patterns = filter(None, participation.patterns(rounds))
        return max(float(np.linalg.norm(matrix[:, list(each)].sum(axis=1))) for each in patterns)

    mechanism = any_matrix(mixed_matrix(12), sensitivity=by_equal_contributions)
    with pytest.raises(tff_mf.InputError, match="is attained"):
        tff_mf.sensitivity(mechanism, 12, SCHEMA)


def bound_of(mechanism, rounds, schema):
    return tff_mf.sensitivity(tff_mf.Dense(matrix=mechanism.encoder(rounds)), rounds, schema)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (float("nan"), "must return a finite number"),
        (float("inf"), "must return a finite number"),
        (-1.0, "not negative"),
        ("3", "must return a number"),
        (True, "must return a number"),
        (1j, "must return a number"),
    ],
)
def test_a_closed_form_that_is_no_sensitivity_is_refused(claim, message):
    mechanism = geometric(sensitivity=lambda m, n, p: claim)
    with pytest.raises(tff_mf.InputError, match=f"sensitivity of kind 'geometric'.*{message}"):
        tff_mf.sensitivity(mechanism, 10, SCHEMA)


@pytest.mark.parametrize("claim", [lambda m, n, p: 1e9, lambda m, n, p: None, None])
def test_a_closed_form_that_is_larger_or_unknown_gives_the_bound_for_any_matrix(claim):
    mechanism = any_matrix(mixed_matrix(12), sensitivity=claim)
    expected = tff_mf.explain_sensitivity(tff_mf.Dense(matrix=mechanism.matrix), 12, SCHEMA)
    assert tff_mf.explain_sensitivity(mechanism, 12, SCHEMA) == expected


def test_a_closed_form_between_what_is_attained_and_the_bound_does_not_lower_the_sensitivity():
    """For 12 rounds brute force can tell that this closed form is right; in general no check can."""
    mechanism = any_matrix(mixed_matrix(12), sensitivity=lambda m, n, p: largest_norm(m.encoder(n), p.patterns(n)))
    bound = tff_mf.explain_sensitivity(tff_mf.Dense(matrix=mechanism.matrix), 12, SCHEMA)
    assert largest_norm(mechanism.matrix, SCHEMA.patterns(12)) < bound.value
    assert tff_mf.explain_sensitivity(mechanism, 12, SCHEMA) == bound


@pytest.mark.parametrize("schema", [SCHEMA, FIXED, tff_mf.MinSep(min_sep=1, max_participations=4)])
def test_what_is_attained_is_what_brute_force_finds(schema):
    for matrix in (mixed_matrix(7), np.abs(mixed_matrix(7)), -mixed_matrix(7)):
        expected = largest_norm(matrix, schema.patterns(7))
        assert _check.attained_by_any(matrix, schema) == pytest.approx(expected, rel=1e-12)


def test_the_mechanisms_of_this_package_pass(make_mechanism):
    tff_mf.check_mechanism(make_mechanism(12), 12, SCHEMA)


def with_diagonals(diagonals, *, count=3, **methods):
    """A banded mechanism of any diagonals, which are right or wrong."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Careless(BandedMechanism):
        kind = "careless"
        bands = count

        def diagonals(self, rounds):
            return diagonals(rounds)

        def cast_to_float32(self):
            return self

    for name, method in methods.items():
        setattr(Careless, name, method)
    tff_mf.register_mechanism(Careless)
    return Careless()


def column(mechanism, rounds):
    return np.append(1.0, mechanism.alpha * mechanism.beta ** np.arange(rounds - 1))


def growing_bands(self, rounds):
    return (np.arange(rounds) < max(40, rounds // 4)) * np.append(1.0, np.full(rounds - 1, 0.01))


THREE = np.array([1.0, 0.5, 0.25])

# What a careless author may write, with which the noise would be of one C and the sensitivity of another.
CARELESS = {
    "no inverse": lambda: geometric(inverse_coefficients=lambda self, n: np.append(1.0, np.zeros(n - 1))),
    "another encoder": lambda: geometric(encoder=lambda self, n: np.eye(n)),
    "another encoder for many rounds": lambda: geometric(
        encoder=lambda self, n: (1 if n <= 32 else 2) * ToeplitzMechanism.encoder(self, n)
    ),
    "another encoder and its inverse": lambda: geometric(
        encoder=lambda self, n: np.eye(n), inverse=lambda self, n: np.eye(n)
    ),
    "another encoder than its bands": lambda: with_diagonals(
        lambda n: np.outer(THREE, np.ones(n)),
        encoder=lambda self, n: 2 * np.eye(n),
        inverse=lambda self, n: np.eye(n) / 2,
    ),
    "an entry above the diagonal": lambda: any_matrix(
        np.eye(100) + np.eye(100, k=50), inverse=lambda self, n: np.linalg.inv(self.encoder(n))
    ),
    "NaN": lambda: geometric(coefficients=lambda self, n: np.full(n, np.nan)),
    "whole numbers": lambda: geometric(encoder=lambda self, n: np.eye(n, dtype=int)),
    "a list": lambda: geometric(encoder=lambda self, n: np.eye(n).tolist()),
    "float32": lambda: geometric(coefficients=lambda self, n: column(self, n).astype(np.float32)),
    "another shape": lambda: geometric(encoder=lambda self, n: np.eye(n + 1)),
    "entries above the diagonal": lambda: geometric(encoder=lambda self, n: np.tri(n).T.copy()),
    "coefficients that are not padded": lambda: geometric(coefficients=lambda self, n: column(self, n)[:40]),
    "coefficients that end sooner": lambda: geometric(
        alpha=0.1, beta=0.99, coefficients=lambda self, n: column(self, n) * (np.arange(n) < 40)
    ),
    "fewer bands for fewer rounds": lambda: geometric(
        coefficients=growing_bands,
        inverse_coefficients=lambda self, n: np.linalg.inv(self.encoder(n))[:, 0],
        max_rounds=property(lambda self: 400),
    ),
    "a cast that goes on": lambda: geometric(
        cast_to_float32=lambda self: dataclasses.replace(self, alpha=self.alpha / 2)
    ),
    "a matrix that depends on the rounds": lambda: any_matrix(
        np.abs(mixed_matrix(100)),
        encoder=lambda self, n: self.matrix[:n, :n] / n,
        inverse=lambda self, n: n * np.linalg.inv(self.matrix[:n, :n]),
    ),
    "an array that can be written to": lambda: any_matrix(np.eye(100), __post_init__=tff_mf.Mechanism.__post_init__),
    "more bands than it says": lambda: with_diagonals(lambda n: np.outer(THREE, np.ones(n)), count=2),
    "one number a band": lambda: with_diagonals(lambda n: THREE[:, np.newaxis]),
    "whole numbers of bands": lambda: with_diagonals(lambda n: np.ones((3, n), dtype=np.int8)),
    "other bands for many rounds": lambda: with_diagonals(
        lambda n: np.outer(THREE, np.ones(n)) / (1 if n <= 40 else 10)
    ),
}


@pytest.mark.parametrize("name", CARELESS)
def test_matrices_that_do_not_fit_are_refused(name):
    mechanism = CARELESS[name]()
    for use in (
        lambda: tff_mf.check_mechanism(mechanism, 100),
        lambda: tff_mf.sensitivity(mechanism, 100, SCHEMA),
        lambda: tff_mf.epsilon(mechanism, 100, SCHEMA, noise_multiplier=5.0, delta=1e-6),
        lambda: tff_mf.pattern_sensitivity(mechanism, 100, [(0, 50)]),
    ):
        with pytest.raises(tff_mf.InputError, match=f"kind '{mechanism.kind}'"):
            use()


@pytest.mark.parametrize("rounds", [1, 20, 32])
@pytest.mark.parametrize("most", [None, 3000])
def test_a_matrix_that_depends_on_the_rounds_is_refused_for_few_rounds_too(rounds, most):
    """Noise that is drawn for 3000 rounds would otherwise be weaker than what the ε of few rounds is computed for."""
    end = {"max_rounds": property(lambda self: most)}
    for mechanism in (
        with_diagonals(lambda n: n * np.outer(THREE, np.ones(n)), **end),
        any_matrix(np.eye(3), encoder=lambda self, n: n * np.eye(n), inverse=lambda self, n: np.eye(n) / n, **end),
    ):
        with pytest.raises(tff_mf.InputError, match="does not agree"):
            tff_mf.epsilon(mechanism, rounds, tff_mf.SingleParticipation(), noise_multiplier=5.0, delta=1e-6)


def test_noise_of_an_inverse_that_depends_on_the_rounds_is_refused():
    """The ε of 50 rounds, for which C is 1, would be that of 100 times the noise that is drawn for 3000."""

    def scale(rounds):
        return 100 if rounds > 64 else 1

    mechanism = any_matrix(
        np.eye(3),
        encoder=lambda self, n: scale(n) * np.eye(n),
        inverse=lambda self, n: np.eye(n) / scale(n),
        max_rounds=property(lambda self: 3000),
    )
    with pytest.raises(tff_mf.InputError, match="row 0 has the weights"):
        streams.build_stream(mechanism, dimension=2, stddev=1.0)


def test_a_cast_of_another_class_is_refused():
    mechanism = with_diagonals(lambda n: np.outer(THREE, np.ones(n)), cast_to_float32=lambda self: tff_mf.Identity())
    noise = {"noise_multiplier": 5.0}
    samplings = (
        tff_mf.CyclicPoisson(groups=3, population=30, clients_per_round=2),
        tff_mf.BMinSep(min_sep=3, probability=0.1),
        tff_mf.BallsInBins(groups=3),
    )
    for use in (
        lambda: tff_mf.check_mechanism(mechanism),
        lambda: tff_mf.sensitivity(mechanism, 9, SCHEMA),
        lambda: tff_mf.guarantee(mechanism, 9, SCHEMA, restart_every=4, **noise),
        lambda: tff_mf.calibrate_noise_multiplier(mechanism, 9, SCHEMA, epsilon=1.0, delta=1e-6),
        *(lambda sampling=sampling: tff_mf.guarantee(mechanism, 9, sampling, **noise) for sampling in samplings),
    ):
        with pytest.raises(tff_mf.InputError, match="must return its own class, not Identity"):
            use()


@pytest.mark.parametrize("name", ["coefficients that are not padded", "coefficients that end sooner"])
def test_coefficients_of_more_rounds_than_whole_matrices_are_checked_too(name):
    with pytest.raises(tff_mf.InputError, match="kind 'geometric'"):
        tff_mf.sensitivity(CARELESS[name](), 3000, SCHEMA)


def test_coefficients_that_end_after_the_rounds_of_whole_matrices_are_refused():
    mechanism = geometric(alpha=0.01, beta=0.999, coefficients=lambda self, n: column(self, n) * (np.arange(n) < 2500))
    tff_mf.check_mechanism(mechanism, 2000)
    with pytest.raises(tff_mf.InputError, match="is not the inverse"):
        tff_mf.check_mechanism(mechanism, 4000)


def test_shapes_are_checked_of_a_class_that_is_not_registered():
    mechanism = with_diagonals(lambda n: THREE[:, np.newaxis])
    del _kinds._KINDS["careless"]
    with pytest.raises(tff_mf.InputError, match="diagonals"):
        tff_mf.sensitivity(mechanism, 100, SCHEMA)


def lossy(kind, **changes):
    codec = Codec.of_fields(kind)
    return dataclasses.replace(codec, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode": lambda tensors, optimized_for: LAST[0](alpha=tensors["alpha"][0], beta=0.5)}, "loses"),
        (
            {"decode": lambda tensors, optimized_for: LAST[0](alpha=float(tensors["alpha"][0]), beta=0.5)},
            "loses beta: 0.75 comes back as 0.5",
        ),
        ({"encode": lambda m: {"alpha": np.array([m.alpha])}, "axes": {"alpha": 1}}, "beta"),
        ({"encode": lambda m: {"alpha": np.array([m.alpha])}}, "gives tensors with the axes"),
        ({"encode": lambda m: {"alpha": np.float32([m.alpha]), "beta": np.array([m.beta])}}, "must give float64"),
        ({"encode": lambda m: {"alpha": m.alpha, "beta": m.beta}}, "must give float64"),
        ({"decode": lambda tensors, optimized_for: tff_mf.Identity()}, "kind 'geometric'"),
    ],
)
def test_a_codec_that_loses_something_is_refused(changes, message, tmp_path):
    kind = geometric_class()
    LAST[:] = [kind]
    if "encode" in changes and "axes" in changes:
        changes = {**changes, "decode": lambda tensors, optimized_for: kind(alpha=float(tensors["alpha"][0]), beta=0.5)}
    tff_mf.register_mechanism(kind, codec=lossy(kind, **changes))
    mechanism = kind(alpha=0.5, beta=0.75)
    for use in (lambda: tff_mf.save(mechanism, tmp_path / "file"), lambda: tff_mf.sensitivity(mechanism, 9, SCHEMA)):
        with pytest.raises(tff_mf.InputError, match=message):
            use()
    assert not (tmp_path / "file").exists()


LAST = []


def test_a_field_that_can_be_changed_is_refused():
    """After the change, the ε would be that of another C than the noise, which has been built."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Listed(ToeplitzMechanism):
        kind = "listed"
        column: Sequence[float]

        def coefficients(self, rounds):
            return tff_mf.BandedToeplitz(column=self.column).coefficients(rounds)

        def inverse_coefficients(self, rounds):
            return tff_mf.BandedToeplitz(column=self.column).inverse_coefficients(rounds)

        def cast_to_float32(self):
            return self

    tff_mf.register_mechanism(Listed)
    assert tff_mf.sensitivity(Listed(column=(2.0, 1.0)), 9, SCHEMA) > 2
    with pytest.raises(tff_mf.InputError, match="column of kind 'listed' is a list, which can be changed"):
        tff_mf.sensitivity(Listed(column=[2.0, 1.0]), 9, SCHEMA)


def test_what_a_codec_loses_is_found_after_a_mechanism_with_the_same_tensors_has_passed(tmp_path):
    kind = geometric_class(
        coefficients=lambda self, n: np.append(1.0, np.where(np.arange(n - 1) < 40, 0.5, self.beta) ** np.arange(n - 1))
    )
    codec = Codec(
        axes={"alpha": 1},
        encode=lambda mechanism: {"alpha": np.array([mechanism.alpha])},
        decode=lambda tensors, optimized_for: kind(alpha=0.5, beta=0.75, optimized_for=optimized_for),
    )
    kind.inverse_coefficients = lambda self, n: tff_mf.BandedToeplitz(column=self.coefficients(n)).inverse_coefficients(
        n
    )
    tff_mf.register_mechanism(kind, codec=codec)
    tff_mf.save(kind(alpha=0.5, beta=0.75), tmp_path / "file")
    with pytest.raises(tff_mf.InputError, match="loses beta"):
        tff_mf.save(kind(alpha=0.5, beta=0.5), tmp_path / "file")


def test_a_codec_that_loses_the_setting_is_refused(tmp_path):
    kind = geometric_class()
    decode = Codec.of_fields(kind).decode
    tff_mf.register_mechanism(kind, codec=lossy(kind, decode=lambda tensors, optimized_for: decode(tensors, None)))
    mechanism = kind(alpha=0.5, beta=0.75, optimized_for=tff_mf.OptimizedFor(rounds=9, participation=SCHEMA))
    with pytest.raises(tff_mf.InputError, match="loses optimized_for"):
        tff_mf.save(mechanism, tmp_path / "file")


def test_fields_that_say_nothing_of_how_to_write_them_need_a_codec():
    kind = any_class()
    with pytest.raises(tff_mf.InputError, match=r"matrix is annotated.*Codec\.of_fields"):
        tff_mf.register_mechanism(kind)


def test_whole_numbers_come_back_whole(tmp_path):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Delayed(ToeplitzMechanism):
        kind = "delayed"
        delay: int
        weight: float

        def coefficients(self, rounds):
            return np.append(1.0, self.weight * (np.arange(1, rounds) == self.delay))

        def inverse_coefficients(self, rounds):
            return tff_mf.BandedToeplitz(column=self.coefficients(rounds)).inverse_coefficients(rounds)

        def cast_to_float32(self):
            return dataclasses.replace(self, weight=float32(self.weight))

    tff_mf.register_mechanism(Delayed)
    tff_mf.save(Delayed(delay=2, weight=0.5), tmp_path / "file")
    loaded = tff_mf.load(tmp_path / "file")
    assert loaded == Delayed(delay=2, weight=0.5)
    assert type(loaded.delay) is int


def test_an_artifact_of_an_unknown_kind_names_it_and_imports_nothing(tmp_path, monkeypatch):
    mechanism = geometric()
    tff_mf.save(mechanism, tmp_path / "file")
    monkeypatch.setattr(_kinds, "_KINDS", {each.kind: each for each in registry.kinds() if not each.outside})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "geometric.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    with pytest.raises(tff_mf.ArtifactError, match=r"kind='geometric' is none of .*import the module"):
        tff_mf.load(tmp_path / "file")
    assert set(sys.modules) == before


def test_an_artifact_of_an_outsider_with_another_sensitivity_is_refused(tmp_path):

    mechanism = geometric()
    mechanism = dataclasses.replace(mechanism, optimized_for=tff_mf.OptimizedFor(rounds=9, participation=SCHEMA))
    tensors = registry.tensors_of(mechanism)
    manifest = json.loads(artifacts._described(mechanism, tensors))
    manifest["optimized_for"]["sensitivity"]["value"] *= 0.99
    unsigned = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps({**unsigned, "sha256": artifacts.digest(unsigned, tensors)})
    (tmp_path / "file").write_bytes(artifacts.pack(text, tensors))
    with pytest.raises(tff_mf.ArtifactError, match="states the sensitivity"):
        tff_mf.load(tmp_path / "file")


def test_a_kind_is_registered_once():
    geometric()
    for kind in (geometric_class(), type(geometric_class()(alpha=0.5, beta=0.5))):
        with pytest.raises(tff_mf.InputError, match="kind='geometric' is registered already"):
            tff_mf.register_mechanism(kind)


@pytest.mark.parametrize("kind", ["blt", "dense", "tree", "identity"])
def test_a_kind_of_this_package_cannot_be_replaced(kind):
    with pytest.raises(tff_mf.InputError, match=f"kind='{kind}' is registered already"):
        tff_mf.register_mechanism(geometric_class(kind=kind))
    assert not registry.named(kind).outside


def test_names_of_the_command_line_are_given_once():
    identity = {"identity": lambda rounds: None}
    for kind, named in ((geometric_class(kind="tree_full"), None), (geometric_class(), identity)):
        with pytest.raises(tff_mf.InputError, match="is taken on the command line"):
            tff_mf.register_mechanism(kind, named=named)


@pytest.mark.parametrize("kind", [None, 3, "", "Geometric", "geo-metric", "geo metric", "_geo", "../geo", "geo__m"])
def test_a_kind_is_a_name(kind):
    with pytest.raises(tff_mf.InputError, match=r"kind=.* must be a name of its own"):
        tff_mf.register_mechanism(geometric_class(kind=kind))


def test_a_kind_that_changes_after_registration_is_refused(tmp_path):
    mechanism = geometric()
    type(mechanism).kind = "identity"
    for use in (lambda: tff_mf.save(mechanism, tmp_path / "file"), lambda: tff_mf.sensitivity(mechanism, 9, SCHEMA)):
        with pytest.raises(tff_mf.InputError, match="says kind='identity' and is registered as 'geometric'"):
            use()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heavier(tff_mf.BLT):
    """A subclass whose C is not that of its base class."""

    def coefficients(self, rounds):
        return 2 * super().coefficients(rounds)


class HeavierTree(tff_mf.Tree):
    def encoder(self, rounds):
        return 2 * super().encoder(rounds)


class HeavierScaledBLT(tff_mf.ScaledBLT):
    def encoder(self, rounds):
        return 2 * super().encoder(rounds)


def test_a_subclass_inherits_nothing_from_a_kind_of_this_package(tmp_path):
    for mechanism, base in (
        (Heavier(theta=[0.5], omega=[0.5]), tff_mf.BLT(theta=[0.5], omega=[0.5])),
        (HeavierTree(16), tff_mf.Tree(16)),
        tuple(kind(theta=[0.5], omega=[0.5], scales=[1.0] * 16) for kind in (HeavierScaledBLT, tff_mf.ScaledBLT)),
    ):
        assert registry.find(mechanism) is None
        found, once = (tff_mf.sensitivity(each, 16, tff_mf.SingleParticipation()) for each in (mechanism, base))
        assert found == pytest.approx(2 * once)
        restarted = tff_mf.restart_sensitivity(mechanism, 16, SCHEMA, restart_every=8).value
        block = mechanism.encoder(8)
        assert restarted >= largest_norm(np.kron(np.eye(2), block), SCHEMA.patterns(16)) * (1 - 1e-12)
        with pytest.raises(tff_mf.InputError, match="is not registered; a subclass inherits nothing"):
            tff_mf.save(mechanism, tmp_path / "file")
    with pytest.raises(tff_mf.InputError, match="must be a name of its own"):
        tff_mf.register_mechanism(Heavier)


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (tff_mf.Identity(), "must be a subclass of tff_mf.Mechanism"),
        (int, "must be a subclass of tff_mf.Mechanism"),
        (ToeplitzMechanism, "must define cast_to_float32, coefficients, inverse_coefficients"),
        (HeavierTree, "must be decorated"),
    ],
)
def test_what_is_no_mechanism_is_not_registered(mechanism, message):
    with pytest.raises(tff_mf.InputError, match=message):
        tff_mf.register_mechanism(mechanism)


@pytest.mark.parametrize("arguments", [{"codec": dict}, {"sensitivity": 3.0}, {"sensitivity": "x"}, {"search": "x"}])
def test_parts_of_a_wrong_type_are_named(arguments):
    with pytest.raises(tff_mf.InputError, match=next(iter(arguments))):
        tff_mf.register_mechanism(geometric_class(), **arguments)


def test_code_that_changed_after_saving_is_found(tmp_path):
    mechanism = geometric()
    tff_mf.save(mechanism, tmp_path / "file")
    type(mechanism).coefficients = lambda self, n: np.append(1.0, 0.25 * self.beta ** np.arange(n - 1))
    type(mechanism).inverse_coefficients = lambda self, n: np.append(
        1.0, -0.25 * (self.beta - 0.25) ** np.arange(n - 1)
    )
    assert tff_mf.sensitivity(mechanism, 20, SCHEMA) > 1
    with pytest.raises(tff_mf.ArtifactError, match="differs from the one that was written"):
        tff_mf.load(tmp_path / "file")


def test_state_that_is_not_a_field_is_found(tmp_path):
    mechanism = any_matrix(
        mixed_matrix(8),
        encoder=lambda self, n: self.matrix[:n, :n] * getattr(self, "scale", 1.0),
        inverse=lambda self, n: np.tril(np.linalg.inv(self.encoder(n))),
    )
    object.__setattr__(mechanism, "scale", 3.0)
    for use in (
        lambda: tff_mf.save(mechanism, tmp_path / "file"),
        lambda: tff_mf.sensitivity(mechanism, 8, SCHEMA),
    ):
        with pytest.raises(tff_mf.InputError, match="kind 'any'"):
            use()


def test_the_check_of_rounds_cannot_be_overridden():
    with pytest.raises(tff_mf.InputError, match="must not override check"):
        tff_mf.register_mechanism(geometric_class(check=lambda self, rounds: min(rounds, 20)))


def test_an_amplified_answer_is_of_the_mechanism_and_not_of_an_equal_one():
    alike = {"__eq__": lambda self, other: type(self) is type(other), "__hash__": lambda self: 1}
    small = geometric(alpha=0.1, beta=0.2, **alike)
    large = dataclasses.replace(small, alpha=0.9, beta=0.95)
    assert small == large
    run = {"rounds": 12, "sampling": tff_mf.BallsInBins(groups=3), "samples": 2000}
    few, more = (tff_mf.epsilon(each, **run, noise_multiplier=4.0, delta=1e-4) for each in (small, large))
    assert few < more


def test_a_search_is_not_repeated_until_it_is_lucky():
    mechanism = geometric()
    run = (mechanism, 8, tff_mf.BallsInBins(groups=4))
    asked = {"epsilon": 1.0, "delta": 1e-3, "samples": 2000}
    assert len({tff_mf.calibrate_noise_multiplier(*run, **asked) for _ in range(2)}) == 1
    banded, b_min_sep = tff_mf.BandedToeplitz(column=[1.0, 0.5]), tff_mf.BMinSep(min_sep=2, probability=0.2)
    again = {tff_mf.calibrate_noise_multiplier(banded, 4, b_min_sep, **asked) for _ in range(2)}
    assert len(again) == 1
    assert tff_mf.epsilon(banded, 4, b_min_sep, noise_multiplier=again.pop(), delta=1e-3, samples=2000) <= 1.0


def test_a_theorem_about_bands_takes_no_grid_with_a_recursion_from_outside():
    mechanism = any_matrix(np.eye(4))
    on_grid = {"noise_multiplier": 2.0, "delta": 1e-4, "grid": tff_mf.Grid(bits=16, max_clients=40), "dimension": 5}
    for sampling in (
        tff_mf.Poisson(population=40, clients_per_round=2),
        tff_mf.BMinSep.of_population(min_sep=2, population=40, clients_per_round=2),
    ):
        with pytest.raises(tff_mf.InputError, match="outside of tff_mf"):
            tff_mf.epsilon(mechanism, 4, sampling, **on_grid)
    bins = tff_mf.BallsInBins(groups=2, clients_per_round=2)
    assert 0 < tff_mf.epsilon(mechanism, 4, bins, **on_grid) < np.inf
