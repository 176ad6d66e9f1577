"""Mechanisms from outside: they work everywhere, and nothing that they say of themselves is trusted."""

import dataclasses
import json
import sys

import numpy as np
import pytest

import tff_mf
from tests.tff_mf.samplings import cyclic_event
from tff_mf import registry
from tff_mf.mechanisms import BandedMechanism, ToeplitzMechanism
from tff_mf.registry import Codec, Search, _kinds, _matrices

SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=3)
FIXED = tff_mf.FixedEpoch(min_sep=3, max_participations=3)


@pytest.fixture(autouse=True)
def registered_for_one_test(monkeypatch):
    monkeypatch.setattr(_kinds, "_KINDS", dict(_kinds._KINDS))
    monkeypatch.setattr(_matrices, "_passed", set())


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


def geometric(*, alpha=0.5, beta=0.75, codec=None, sensitivity=None, stream=None, **methods):
    kind = geometric_class(**methods)
    tff_mf.register_mechanism(kind, codec=codec, sensitivity=sensitivity, stream=stream)
    return kind(alpha=alpha, beta=beta)


def any_matrix(matrix, *, sensitivity=None, stream=None, **methods):
    kind = any_class(**methods)
    tff_mf.register_mechanism(kind, codec=Codec.of_fields(kind, matrix=2), sensitivity=sensitivity, stream=stream)
    return kind(matrix=np.array(matrix, dtype=np.float64))


def mixed_matrix(rounds):
    """Entries of both signs and no zeros, so that no rule for min-sep is exact."""
    generator = np.random.default_rng(4)
    return np.tril(generator.uniform(-0.5, 0.5, (rounds, rounds)), -1) + np.eye(rounds)


def test_what_is_registered_has_a_class_a_kind_and_a_stream():
    kinds = registry.kinds()
    expected = ["blt", "banded", "banded_toeplitz", "banded_inverse", "dense", "structured", "tree", "identity"]
    assert [each.kind for each in kinds] == expected
    assert not any(each.outside for each in kinds)
    assert all(isinstance(each.stream, str) and each.stream.startswith("tff_mf.noise.") for each in kinds)
    searched = [each.command_name for each in kinds if each.search]
    assert searched == ["blt", "banded", "banded-toeplitz", "banded-inverse", "dense"]


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
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Two(BandedMechanism):
        kind = "two_bands"
        second: float

        @property
        def bands(self):
            return 2

        def diagonals(self, rounds):
            return np.outer([1.0, self.second], np.ones(rounds))

        def cast_to_float32(self):
            return dataclasses.replace(self, second=float32(self.second))

    tff_mf.register_mechanism(Two)
    found = cyclic_event(Two(second=0.5), 8, population=100, clients_per_round=5, noise_multiplier=1)
    twin = tff_mf.BandedToeplitz(column=[1.0, 0.5])
    assert found == cyclic_event(twin, 8, population=100, clients_per_round=5, noise_multiplier=1)


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


@pytest.mark.parametrize("rounds", [16, 50, 3000])
@pytest.mark.parametrize("claim", HOSTILE.values(), ids=HOSTILE)
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
    mechanism = any_matrix(mixed_matrix(12), sensitivity=lambda m, n, p: brute_force(m.encoder(n), p))
    bound = tff_mf.explain_sensitivity(tff_mf.Dense(matrix=mechanism.matrix), 12, SCHEMA)
    assert brute_force(mechanism.matrix, SCHEMA) < bound.value
    assert tff_mf.explain_sensitivity(mechanism, 12, SCHEMA) == bound


def brute_force(matrix, schema):
    squares = [0.0]
    for pattern in filter(None, schema.patterns(len(matrix))):
        signs = np.array(np.meshgrid(*[[1.0, -1.0]] * len(pattern))).reshape(len(pattern), -1)
        squares.append(np.max(np.sum(np.square(matrix[:, list(pattern)] @ signs), axis=0)))
    return float(np.sqrt(max(squares)))


@pytest.mark.parametrize("rounds", [5, 9, 11])
@pytest.mark.parametrize("schema", [SCHEMA, FIXED, tff_mf.MinSep(min_sep=1, max_participations=4)])
def test_what_is_attained_is_no_more_than_brute_force_finds(rounds, schema):
    from tff_mf._sensitivity import _attained

    schema = dataclasses.replace(
        schema, max_participations=min(schema.max_participations, (rounds - 1) // schema.min_sep + 1)
    )
    for matrix in (mixed_matrix(rounds), np.abs(mixed_matrix(rounds)), -mixed_matrix(rounds)):
        largest = brute_force(matrix, schema)
        found = _attained.attained(any_class()(matrix=matrix), rounds, schema)
        assert 0.9 * largest <= found <= largest * (1 + 1e-12)
        if rounds < 9:
            assert _attained.attained_by_any(matrix, schema) == pytest.approx(largest, rel=1e-12)


def test_what_is_attained_over_many_rounds_is_the_earliest_pattern_of_a_toeplitz_matrix():
    from tff_mf._sensitivity import _attained

    mechanism = geometric_class()(alpha=0.5, beta=0.75)
    schema = tff_mf.MinSep(min_sep=700, max_participations=6)
    assert _attained.attained(mechanism, 5000, schema) == pytest.approx(true_sensitivity(mechanism, 5000, schema))


WRONG_MATRICES = {
    "inverse": (
        {"inverse_coefficients": lambda self, n: np.concatenate([[1.0], np.zeros(n - 1)])},
        "is not the inverse of its encoder",
    ),
    "a hidden encoder": ({"encoder": lambda self, n: np.eye(n)}, "inverse of kind 'geometric' is not the inverse"),
    "nan": ({"coefficients": lambda self, n: np.full(n, np.nan)}, "encoder of kind 'geometric' holds NaN"),
    "integers": ({"encoder": lambda self, n: np.eye(n, dtype=int)}, "must return an array of float64"),
    "list": ({"encoder": lambda self, n: np.eye(n).tolist()}, "must return an array of float64"),
    "shape": ({"encoder": lambda self, n: np.eye(n + 1)}, "has the shape"),
    "above": ({"encoder": lambda self, n: np.tri(n).T.copy()}, "must be lower-triangular"),
    "cast of another class": (
        {"cast_to_float32": lambda self: tff_mf.Identity()},
        "must return its own class, not Identity",
    ),
    "cast that goes on": (
        {"cast_to_float32": lambda self: dataclasses.replace(self, alpha=self.alpha / 2)},
        "cast_to_float32 of kind 'geometric' does not agree with itself",
    ),
}


@pytest.mark.parametrize(("methods", "message"), WRONG_MATRICES.values(), ids=WRONG_MATRICES)
def test_matrices_that_do_not_fit_are_refused(methods, message):
    mechanism = geometric(**methods)
    with pytest.raises(tff_mf.InputError, match=message):
        tff_mf.sensitivity(mechanism, 10, SCHEMA)


def test_coefficients_that_end_sooner_than_the_noise_are_refused():
    """The noise is that of the inverse; a C that is cut off would have less sensitivity."""

    def cut(self, rounds):
        column = np.concatenate([[1.0], self.alpha * self.beta ** np.arange(rounds - 1)])
        column[40:] = 0
        return column

    mechanism = geometric(alpha=0.1, beta=0.99, coefficients=cut)
    for use in (
        lambda: tff_mf.sensitivity(mechanism, 1000, SCHEMA),
        lambda: tff_mf.pattern_sensitivity(mechanism, 1000, [(0, 500)]),
    ):
        with pytest.raises(tff_mf.InputError, match="is not the inverse of its encoder, rounds=1000"):
            use()


def test_a_matrix_that_depends_on_the_rounds_asked_for_is_refused():
    mechanism = any_matrix(
        np.abs(mixed_matrix(60)),
        encoder=lambda self, n: self.matrix[:n, :n] / n,
        inverse=lambda self, n: n * np.linalg.inv(self.matrix[:n, :n]),
    )
    with pytest.raises(tff_mf.InputError, match=r"of kind 'any' does not agree with that of (more|fewer) rounds"):
        tff_mf.sensitivity(mechanism, 60, SCHEMA)


def test_bands_that_are_more_than_they_say_are_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Liar(BandedMechanism):
        kind = "liar"
        bands = 1

        def diagonals(self, rounds):
            return np.outer([1.0, 0.5], np.ones(rounds))

        def cast_to_float32(self):
            return self

    tff_mf.register_mechanism(Liar)
    with pytest.raises(
        tff_mf.InputError, match=r"diagonals of kind 'liar' has the shape \(2, 10\) and must have \(1, 10\)"
    ):
        tff_mf.sensitivity(Liar(), 10, SCHEMA)


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
    for use in (lambda: tff_mf.save(mechanism, tmp_path / "file"), lambda: registry.content_digest(mechanism)):
        with pytest.raises(tff_mf.InputError, match=message):
            use()
    assert not (tmp_path / "file").exists()


LAST = []


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
        weights: tuple[float, ...]

        def __post_init__(self):
            super().__post_init__()
            object.__setattr__(self, "weights", tuple(self.weights))

        def coefficients(self, rounds):
            column = np.zeros(rounds)
            given = np.concatenate([[1.0], np.zeros(self.delay), self.weights])[:rounds]
            column[: len(given)] = given
            return column

        def inverse_coefficients(self, rounds):
            return tff_mf.BandedToeplitz(column=self.coefficients(rounds).tolist()).inverse_coefficients(rounds)

        def cast_to_float32(self):
            return dataclasses.replace(self, weights=tuple(map(float32, self.weights)))

    tff_mf.register_mechanism(Delayed)
    mechanism = Delayed(delay=2, weights=(0.5, 0.25))
    tff_mf.save(mechanism, tmp_path / "file")
    assert tff_mf.load(tmp_path / "file") == mechanism
    assert type(tff_mf.load(tmp_path / "file").delay) is int


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
    from tff_mf.artifacts import _file, _manifest

    mechanism = geometric()
    mechanism = dataclasses.replace(mechanism, optimized_for=tff_mf.OptimizedFor(rounds=9, participation=SCHEMA))
    tensors = registry.tensors_of(mechanism)
    manifest = json.loads(_manifest.describe(mechanism, tensors))
    manifest["sensitivity"]["value"] *= 0.99
    unsigned = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps({**unsigned, "sha256": _manifest._digest(unsigned, tensors)})
    (tmp_path / "file").write_bytes(_file.pack(text, tensors))
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


def test_a_subclass_inherits_nothing_from_a_kind_of_this_package(tmp_path):
    for mechanism, base in (
        (Heavier(theta=[0.5], omega=[0.5]), tff_mf.BLT(theta=[0.5], omega=[0.5])),
        (HeavierTree(16), tff_mf.Tree(16)),
    ):
        assert registry.find(mechanism) is None
        found, once = (tff_mf.sensitivity(each, 16, tff_mf.SingleParticipation()) for each in (mechanism, base))
        assert found == pytest.approx(2 * once)
        restarted = tff_mf.restart_sensitivity(mechanism, 16, SCHEMA, restart_every=8).value
        block = mechanism.encoder(8)
        assert restarted >= brute_force(np.kron(np.eye(2), block), SCHEMA) * (1 - 1e-12)
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


@pytest.mark.parametrize(
    "arguments", [{"codec": dict}, {"sensitivity": 3.0}, {"sensitivity": "x"}, {"stream": 3}, {"search": "x"}]
)
def test_parts_of_a_wrong_type_are_named(arguments):
    with pytest.raises(tff_mf.InputError, match=next(iter(arguments))):
        tff_mf.register_mechanism(geometric_class(), **arguments)


def test_a_search_is_kept_for_the_command_line():
    search = Search(optimizer=lambda **setting: None, options=("bands",), toeplitz=True)
    assert tff_mf.register_mechanism(geometric_class(), search=search).search is search


def banded(diagonals, *, name="careless"):
    """A mechanism of bands and rounds that are more than the few that are compared entry by entry."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Careless(BandedMechanism):
        kind = name
        bands = 3

        def diagonals(self, rounds):
            return diagonals(rounds)

        def cast_to_float32(self):
            return self

    return Careless


WRONG_DIAGONALS = {
    "one number a band": lambda n: np.array([1.0, 0.5, 0.25])[:, np.newaxis],
    "whole numbers": lambda n: np.ones((3, n), dtype=np.int8),
    "other ones for many rounds": lambda n: np.outer([1.0, 0.5, 0.25], np.ones(n)) / (1 if n <= 40 else 10),
}


@pytest.mark.parametrize("name", WRONG_DIAGONALS)
@pytest.mark.parametrize("rounds", [100, 3000])
@pytest.mark.parametrize("registers", [True, False])
def test_diagonals_that_would_pass_for_a_smaller_matrix_are_refused(name, rounds, registers):
    kind = banded(WRONG_DIAGONALS[name])
    if registers:
        tff_mf.register_mechanism(kind)
    elif name == "other ones for many rounds":
        pytest.skip("of a class that is not registered only shapes are checked")
    with pytest.raises(tff_mf.InputError, match=r"diagonals|encoder|inverse"):
        tff_mf.epsilon(kind(), rounds, SCHEMA, noise_multiplier=5.0, delta=1e-6)


WRONG_COLUMNS = {
    "not padded": {"coefficients": lambda self, n: np.append(1.0, 0.5 * 0.75 ** np.arange(min(n, 40) - 1))},
    "of float32": {
        "coefficients": lambda self, n: np.append(1.0, 0.5 * 0.75 ** np.arange(n - 1)).astype(np.float32),
    },
    "fewer bands for fewer rounds": {
        "coefficients": lambda self, n: (np.arange(n) < max(40, n // 4)) * np.append(1.0, np.full(n - 1, 0.01))
    },
    "with another encoder for many rounds": {
        "encoder": lambda self, n: (1 if n <= 32 else 2) * ToeplitzMechanism.encoder(self, n)
    },
}


@pytest.mark.parametrize("name", WRONG_COLUMNS)
def test_coefficients_that_would_pass_for_a_smaller_matrix_are_refused(name):
    methods = dict(WRONG_COLUMNS[name])
    if "fewer" in name:
        column = methods["coefficients"]
        methods["inverse_coefficients"] = lambda self, n: np.linalg.inv(np.array(lower(column(self, n))))[:, 0]
        methods["max_rounds"] = property(lambda self: 400)
    mechanism = geometric(**methods)
    with pytest.raises(tff_mf.InputError, match=r"coefficients|encoder"):
        tff_mf.epsilon(mechanism, 100, SCHEMA, noise_multiplier=5.0, delta=1e-6)


def lower(column):
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(len(column))] for i in range(len(column))])


def test_code_that_changed_after_saving_is_found(tmp_path):
    mechanism = geometric()
    tff_mf.save(mechanism, tmp_path / "file")
    assert tff_mf.load(tmp_path / "file") == mechanism
    type(mechanism).coefficients = lambda self, n: np.append(1.0, 0.25 * self.beta ** np.arange(n - 1))
    type(mechanism).inverse_coefficients = lambda self, n: np.append(
        1.0, -0.25 * (self.beta - 0.25) ** np.arange(n - 1)
    )
    assert tff_mf.sensitivity(mechanism, 20, SCHEMA) > 1
    with pytest.raises(tff_mf.ArtifactError, match="differs from the one that was written"):
        tff_mf.load(tmp_path / "file")


def test_state_that_is_not_a_field_is_found(tmp_path):
    mechanism = any_matrix(mixed_matrix(8), encoder=lambda self, n: self.matrix[:n, :n] * getattr(self, "scale", 1.0))
    object.__setattr__(mechanism, "scale", 3.0)
    with pytest.raises(tff_mf.InputError, match=r"keep in fields all that C depends on|is not the inverse"):
        tff_mf.save(mechanism, tmp_path / "file")
    with pytest.raises(tff_mf.InputError, match=r"keep in fields all that C depends on|is not the inverse"):
        tff_mf.sensitivity(mechanism, 8, SCHEMA)


def test_an_array_that_can_be_written_to_is_refused():
    mechanism = any_matrix(np.eye(8), __post_init__=tff_mf.Mechanism.__post_init__)
    with pytest.raises(tff_mf.InputError, match="matrix of kind 'any' is an array that can be written to"):
        tff_mf.sensitivity(mechanism, 8, SCHEMA)


def test_a_class_that_calls_itself_one_of_this_package_is_checked_all_the_same():
    kind = geometric_class()
    kind.__module__ = "tff_mf.mechanisms.geometric_toeplitz"
    assert tff_mf.register_mechanism(kind, sensitivity=lambda m, n, p: 0.1).outside
    with pytest.raises(tff_mf.InputError, match="is attained"):
        tff_mf.sensitivity(kind(alpha=0.5, beta=0.75), 20, SCHEMA)


def test_the_check_of_rounds_cannot_be_overridden():
    with pytest.raises(tff_mf.InputError, match="must not override check"):
        tff_mf.register_mechanism(geometric_class(check=lambda self, rounds: min(rounds, 20)))
