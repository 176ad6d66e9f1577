"""The conformance check finds planted faults, and passes subjects that keep their claims."""

import itertools
import secrets
import time

import numpy as np
import pytest

import tff_mf
from tff_mf import conformance
from tff_mf.conformance import Claim, Released

SHAPES = ((30, 20), (20,), (20,))
LIKE = [np.zeros(shape) for shape in SHAPES]
BANDS = tff_mf.BandedToeplitz.square_root(4)
CLAIM = {"mechanism": BANDS, "clip_norm": 0.7, "noise_multiplier": 1.3, "divisor": 8.0, "rounds": 9}
STARTS = itertools.count()


class Plain:
    """Noised sums in plain NumPy; each method is what a fault replaces."""

    def __init__(self, *, shapes=SHAPES, **claim):
        claim = {**CLAIM, **claim}
        self.claim = Claim(**claim)
        self.shapes, self.dimension = shapes, sum(int(np.prod(shape)) for shape in shapes)
        self.clip_norm, self.divisor, self.rounds = claim["clip_norm"], claim["divisor"], claim["rounds"]
        self.stddev = claim["noise_multiplier"] * claim["clip_norm"]
        most = claim["mechanism"].max_rounds or claim["rounds"] + 1
        self.encoder = claim["mechanism"].encoder(min(claim["rounds"] + 1, most))

    def start(self):
        return ()

    def key(self, keys):
        return secrets.randbits(128)

    def normals(self, key):
        return np.random.default_rng(key).normal(size=self.dimension)

    def norm(self, parts):
        with np.errstate(over="ignore"):
            return np.sqrt(sum(np.sum(part.astype(np.float64) ** 2) for part in parts))

    def clipped(self, update):
        parts = [np.asarray(part) for part in update]
        if [part.shape for part in parts] != list(self.shapes):
            raise ValueError("an update of another shape")
        norm = self.norm(parts)
        if not np.isfinite(norm):
            return [np.zeros(shape) for shape in self.shapes]
        return [part.astype(np.float64) * min(1.0, self.clip_norm / max(norm, 1e-300)) for part in parts]

    def check_round(self, done):
        if done >= self.rounds:
            raise ValueError("no round is left")

    def scaled(self, noise, updates):
        return noise

    def total(self, updates):
        sums, clipped = np.zeros(self.dimension), {}
        for update in updates:
            if id(update) not in clipped:
                pairs = zip(self.clipped(update), self.shapes, strict=False)
                clipped[id(update)] = np.concatenate([np.ravel(np.broadcast_to(part, shape)) for part, shape in pairs])
            sums += clipped[id(update)]
        return sums

    def released(self, estimate, updates):
        return estimate

    def noise(self, keys):
        z = np.stack([self.normals(key) for key in keys])
        return np.linalg.solve(self.encoder[: len(keys), : len(keys)], z)[-1] * self.stddev

    def step(self, state, updates):
        self.check_round(len(state))
        keys = (*state, self.key(state))
        noised = self.added(self.total(updates), self.scaled(self.noise(keys), updates)) / self.divides(updates)
        parts = np.split(noised.astype(np.float32), np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1])
        estimate = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return keys, self.released(estimate, updates)

    def added(self, total, noise):
        # In float64: the last bits of the sum are lost when it becomes float32.
        return total + noise

    def divides(self, updates):
        return self.divisor


# What a process of its own imports: a subject with the operating system's seeds, and one with a seed of its own.
ELSEWHERE = """
import numpy as np
from tff_mf import conformance

class Gaussian:
    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)

    def start(self):
        return None

    def step(self, state, updates):
        return state, self.generator.normal(size=50)

def made(seed):
    return Gaussian(seed), conformance.Claim(clip_norm=1.0, noise_multiplier=1.0), np.zeros(50)

def fresh():
    return made(None)

def seeded():
    return made(5)
"""


def of(claim=None, **methods):
    return type("Faulty", (Plain,), methods)(**(claim or {}))


def judged(subject, *laws, **more):
    return conformance.check(subject, subject.claim, like=LIKE, laws=laws or tuple(conformance.LAWS), **more)


def laplace(self, key):
    return np.random.default_rng(key).laplace(size=self.dimension) / 2**0.5


def uniform(self, key):
    return np.random.default_rng(key).uniform(-(3**0.5), 3**0.5, size=self.dimension)


def without_the_last_tensor(self, key):
    normals = Plain.normals(self, key)
    normals[-20:] = 0
    return normals


def the_same_in_two_tensors(self, key):
    normals = Plain.normals(self, key)
    normals[-20:] = normals[-40:-20]
    return normals


def one_number_for_a_column(self, key):
    normals = Plain.normals(self, key)
    normals[:600] = np.repeat(normals[:20], 30)
    return normals


def words_that_follow(self, key):
    """Keys of neighbouring rounds share all but one of their numbers."""
    return np.random.default_rng(key[0]).normal(size=20_000)[key[1] : key[1] + self.dimension]


def each_tensor_alone(self, update):
    parts = [np.nan_to_num(np.asarray(part, np.float64)) for part in update]
    return [part * min(1.0, self.clip_norm / max(np.linalg.norm(part), 1e-300)) for part in parts]


def norm_of_largest(self, parts):
    return max(np.max(np.abs(part)) for part in parts)


def norm_in_float32(self, parts):
    with np.errstate(over="ignore"):
        norm = np.sqrt(sum(np.sum(np.asarray(part, np.float32) ** 2) for part in parts))
    return norm if np.isfinite(norm) or np.isnan(norm) else 0.0


def norm_without_nan(self, parts):
    return np.nan_to_num(Plain.norm(self, parts))


def integers_pass(self, update):
    if np.asarray(update[0]).dtype.kind == "i":
        return [np.asarray(part, np.float64) for part in update]
    return Plain.clipped(self, update)


def integers_to_three_norms(self, update):
    return [(3 if np.asarray(update[0]).dtype.kind == "i" else 1) * part for part in Plain.clipped(self, update)]


def broadcast(self, update):
    parts = [np.broadcast_to(part, shape) for part, shape in zip(update, self.shapes, strict=True)]
    factor = min(1.0, self.clip_norm / max(Plain.norm(self, list(map(np.asarray, update))), 1e-300))
    return [np.nan_to_num(part.astype(np.float64)) * factor for part in parts]


def beside(count):
    return lambda self, estimate, updates: Released(estimate=estimate, beside=count(updates))


def clipped_sum(self, updates):
    total = sum(np.concatenate([np.ravel(part) for part in update]).astype(np.float64) for update in updates)
    return total * min(1.0, self.clip_norm / max(np.linalg.norm(total), 1e-300))


def added_in_float32(self, total, noise):
    return total.astype(np.float32) + noise.astype(np.float32)


def norm_of_positives(self, parts):
    return np.sqrt(sum(np.sum(np.maximum(part.astype(np.float64), 0.0) ** 2) for part in parts))


def norm_without_the_last_number(self, parts):
    numbers = np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)
    return np.sqrt(np.sum(numbers[:-1] ** 2))


def clipped_as_the_first_one(self, updates):
    norm = self.norm([np.asarray(part) for part in updates[0]]) if updates else 1.0
    factor = min(1.0, self.clip_norm / max(norm, 1e-300))
    return sum(
        (np.concatenate([np.ravel(part) for part in update]) * factor for update in updates), np.zeros(self.dimension)
    )


def nothing_if_any_is_nan(self, updates):
    finite = all(np.all(np.isfinite(part)) for update in updates for part in update)
    return Plain.total(self, updates) if finite else np.zeros(self.dimension)


class Releasing(Plain):
    """A momentum: what clients sent comes back in the round after it."""

    def step(self, state, updates):
        keys, past = state or ((), np.zeros(self.dimension))
        after, released = super().step(keys, updates)
        total = self.total(updates)
        parts = np.split(0.5 * past / self.divisor, np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1])
        released = [one + part.reshape(one.shape).astype(np.float32) for one, part in zip(released, parts, strict=True)]
        return (after, total), released


class ClippingFewRounds(Plain):
    def step(self, state, updates):
        self.done = len(state)
        return super().step(state, updates)

    def clipped(self, update):
        factor = 1.0 if self.done < 3 else 2.0
        return [factor * part for part in super().clipped(update)]


def orthogonal_to_the_sum(self, total, noise):
    length = np.linalg.norm(total)
    return total + noise - (noise @ total) * total / length**2 if length else noise


def without_one_number(self, key):
    normals = Plain.normals(self, key)
    normals[77] = 0
    return normals


def truncated(self, key):
    return np.clip(Plain.normals(self, key), -3.5, 3.5)


def quarters(self, key):
    return np.rint(4 * Plain.normals(self, key)) / 4


def remembered_total(self, updates):
    self.last = Plain.total(self, updates)
    return self.last


def norm_without_some_number(self, parts):
    numbers = np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)
    return np.sqrt(np.sum(np.delete(numbers, 123) ** 2))


def without_outliers(self, updates):
    """A sum without the updates that are longer than twice the median."""
    norms = [self.norm([np.asarray(part) for part in update]) for update in updates]
    return Plain.total(
        self, [update for update, norm in zip(updates, norms, strict=True) if norm <= 2 * np.nanmedian(norms)]
    )


def median(self, updates):
    rows = [np.concatenate([np.ravel(part) for part in self.clipped(update)]) for update in updates]
    return np.median(rows, axis=0) * len(rows) if rows else np.zeros(self.dimension)


def of_sum_zero(self, key):
    normals = Plain.normals(self, key)
    return normals - normals.mean()


def symmetric(self, key):
    normals = Plain.normals(self, key)
    return (normals + np.roll(normals[::-1], 1)) / 2**0.5


class Remembering(Plain):
    """A server that takes the last update of a client that is away."""

    def step(self, state, updates):
        keys, last = state or ((), [])
        after, released = super().step(keys, [*updates, *last[len(updates) :]])
        return (after, updates), released


class OfDoubles(Plain):
    """Noise of float32 in sums of float64."""

    def step(self, state, updates):
        keys = (*state, self.key(state))
        self.check_round(len(state))
        noised = (self.total(updates) + self.noise(keys).astype(np.float32)) / self.divisor
        parts = np.split(noised, np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1])
        return keys, [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class KeyOfTheLastStart(Plain):
    """Every third start begins with the key of the one before it."""

    starts, last = itertools.count(), None

    def key(self, keys):
        if keys:
            return secrets.randbits(128)
        if next(self.starts) % 3:
            type(self).last = secrets.randbits(128)
        return self.last or secrets.randbits(128)


class ClippingAllButOneRound(ClippingFewRounds):
    def clipped(self, update):
        factor = 3.0 if self.done == 5 else 1.0
        return [factor * part for part in Plain.clipped(self, update)]


def of_another_lag(lag, factor):
    """Noise of a C whose numbers of one lag are multiplied by a factor."""

    def noise(self, keys):
        rounds = np.arange(len(self.encoder))
        encoder = self.encoder * np.where(np.subtract.outer(rounds, rounds) == lag, factor, 1.0)
        z = np.stack([self.normals(key) for key in keys])
        return np.linalg.solve(encoder[: len(keys), : len(keys)], z)[-1] * self.stddev

    return noise


def empty_or_not(updates):
    return sum(bool(len(update)) for update in updates)


FAULTS = {
    "a norm without some number": ("bound", {"norm": norm_without_some_number}),
    "a filter of outliers": ("bound", {"total": without_outliers}),
    "a median of each number": ("divisor", {"total": median}),
    "noise whose sum is zero": ("scale", {"normals": of_sum_zero}),
    "noise that is symmetric": ("correlation", {"normals": symmetric}),
    "updates of clients that are away": ("bound", Remembering),
    "noise of float32 in sums of float64": ("low_bits", OfDoubles),
    "empty updates are not counted": (
        "beside",
        {
            "released": beside(empty_or_not),
            "clipped": lambda self, update: Plain.clipped(self, update) if update else [],
        },
    ),
    "3 % less noise": ("scale", {"scaled": lambda self, noise, updates: 0.97 * noise}),
    "3 % more noise": ("scale", {"scaled": lambda self, noise, updates: 1.03 * noise}),
    "one tensor without noise": ("scale", {"normals": without_the_last_tensor}),
    "noise of the variance": ("scale", {"scaled": lambda self, noise, updates: noise * 1.3}),
    "noise in the first round alone": (
        "scale",
        {"noise": lambda self, keys: Plain.noise(self, keys) if len(keys) == 1 else np.zeros(self.dimension)},
    ),
    "another number of bands": (
        "correlation",
        {"noise": lambda self, keys: of({"mechanism": tff_mf.BandedToeplitz.square_root(5)}).noise(keys)},
    ),
    "independent noise": ("scale", {"noise": lambda self, keys: self.normals(keys[-1]) * self.stddev}),
    "Laplace's noise": ("correlation", {"normals": laplace}),
    "uniform noise": ("correlation", {"normals": uniform}),
    "two tensors with one noise": ("correlation", {"normals": the_same_in_two_tensors}),
    "one number for many places": ("correlation", {"normals": one_number_for_a_column}),
    "a key used again after five rounds": (
        "correlation",
        {"key": lambda self, keys: keys[-5] if len(keys) >= 5 else secrets.randbits(128)},
    ),
    "a mechanism that restarts": (
        "correlation",
        {"noise": lambda self, keys: Plain.noise(self, keys[6 * ((len(keys) - 1) // 6) :])},
    ),
    "C without its numbers of lag three": ("correlation", {"noise": of_another_lag(3, 0.0)}),
    "C whose numbers of lag one are off by 4.5 %": ("correlation", {"noise": of_another_lag(1, 0.955)}),
    "a key used again after a restart": ("fresh", KeyOfTheLastStart),
    "a clip norm that is three times as large in round 6": ("bound", ClippingAllButOneRound),
    "the key follows from the state": ("fresh", {"key": lambda self, keys: hash((len(keys), *keys)) % 2**64}),
    "every start has one seed": ("fresh", {"key": lambda self, keys: len(keys)}),
    "a seed of 16 bits": ("fresh", {"key": lambda self, keys: secrets.randbits(16)}),
    "a seed from the clock, in seconds": ("fresh", {"key": lambda self, keys: (int(time.time()), len(keys))}),
    "words of neighbouring seeds": (
        "fresh",
        {"key": lambda self, keys: (7, next(STARTS)), "normals": words_that_follow},
    ),
    "no clipping": ("bound", {"clipped": lambda self, update: [np.asarray(part, np.float64) for part in update]}),
    "a clip of 1.4 norms": ("bound", {"clipped": lambda self, update: [1.4 * x for x in Plain.clipped(self, update)]}),
    "a clip of each tensor": ("bound", {"clipped": each_tensor_alone}),
    "a clip by the largest entry": ("bound", {"norm": norm_of_largest}),
    "squares that overflow in float32": ("bound", {"norm": norm_in_float32}),
    "NaN that passes": ("bound", {"norm": norm_without_nan}),
    "integers that are not clipped": ("bound", {"clipped": integers_pass}),
    "integers that are clipped to three norms": ("bound", {"clipped": integers_to_three_norms}),
    "a number that is repeated": ("bound", {"clipped": broadcast}),
    "a divisor of the cohort's size": ("divisor", {"divides": lambda self, updates: max(1, len(updates)) * 0.8}),
    "a clip of the sum": ("divisor", {"total": clipped_sum}),
    "less noise with more clients": (
        "divisor",
        {"scaled": lambda self, noise, updates: noise * (10 / max(10, len(updates))) ** 0.5},
    ),
    "the number of clients": ("beside", {"released": beside(len)}),
    "whether an update was clipped": (
        "beside",
        {"released": beside(lambda updates: {"long": sum(bool(np.abs(update[0]).max() > 1) for update in updates)})},
    ),
    "the last sum in what is published": (
        "beside",
        {"total": remembered_total, "published": lambda self, state: {"last": self.last}},
    ),
    "no last round": ("last_round", {"check_round": lambda self, done: None}),
    "one round too many": (
        "last_round",
        {"check_round": lambda self, done: Plain.check_round(self, done - 1)},
    ),
    "a norm of positive numbers": ("bound", {"norm": norm_of_positives}),
    "a norm without one number": ("bound", {"norm": norm_without_the_last_number}),
    "a clip by the norm of the first client": ("bound", {"total": clipped_as_the_first_one}),
    "nothing of a cohort with NaN": ("bound", {"total": nothing_if_any_is_nan}),
    "a momentum": ("bound", Releasing),
    "a clip norm that doubles in round 4": ("bound", ClippingFewRounds),
    "noise at a right angle to the sum": ("bound", {"added": orthogonal_to_the_sum}),
    "one number without noise": ("scale", {"normals": without_one_number}),
    "less noise from round 9 on": (
        "scale",
        {"noise": lambda self, keys: Plain.noise(self, keys) * (0.5 if len(keys) == 9 else 1.0)},
    ),
    "tails that are cut": ("correlation", {"normals": truncated}),
    "noise in quarters": ("correlation", {"normals": quarters}),
    "no noise for nobody": (
        "divisor",
        {"scaled": lambda self, noise, updates: noise if updates else np.zeros(self.dimension)},
    ),
    "noise of float16": (
        "low_bits",
        {"scaled": lambda self, noise, updates: noise.astype(np.float16).astype(np.float64)},
    ),
    "floats are added to floats": ("low_bits", {"added": added_in_float32}),
}


@pytest.mark.sampled(most=12)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    law, methods = FAULTS[name]
    verdict = judged(methods() if isinstance(methods, type) else of(**methods), law)
    assert verdict[law].status == "failed", str(verdict)
    assert verdict.status == "failed"
    assert not verdict
    assert str(verdict).startswith(f"FAILED: {law}")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    (tmp_path / "elsewhere_made.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(tmp_path)
    return "elsewhere_made"


def test_a_subject_that_keeps_its_claim_passes(elsewhere):
    verdict = judged(Plain(), elsewhere=f"{elsewhere}:fresh")
    assert verdict, str(verdict)
    assert verdict.status == "passed"
    assert "16 bits" in verdict["fresh"].text


def test_a_law_that_is_not_promised_is_judged_and_fails_nothing():
    subject = of({"not_promised": ["low_bits", "last_round"]}, added=added_in_float32)
    verdict = judged(subject, "scale", "low_bits", "last_round")
    assert verdict, str(verdict)
    assert [outcome.status for outcome in verdict.outcomes] == ["passed", "passed", "not promised"]
    assert "one release tells" in verdict["low_bits"].text


def test_one_seed_of_all_processes_is_found(elsewhere):
    assert judged(Plain(), "processes").status == "not judged"
    assert judged(Plain(), "processes", elsewhere=f"{elsewhere}:seeded").status == "failed"


def on_the_grid(self, total, noise):
    return np.rint(total / self.unit) * self.unit + np.rint(noise / self.unit) * self.unit


GRID = {"mechanism": tff_mf.Identity(), "grid": tff_mf.Grid(bits=8, max_clients=100)}


@pytest.mark.parametrize(
    ("added", "status"),
    [
        (on_the_grid, "passed"),
        (lambda self, total, noise: np.rint(total / self.unit) * self.unit + noise, "failed"),
        (lambda self, total, noise: np.rint((total + noise) / 64 / self.unit) * 64 * self.unit, "failed"),
    ],
    ids=["integers", "noise is floats", "64 times as coarse"],
)
def test_sums_on_a_grid_are_its_multiples(added, status):
    verdict = judged(of(GRID, added=added, unit=CLAIM["clip_norm"] / 2**8), "low_bits")
    assert verdict["low_bits"].status == status, str(verdict)


def test_a_tensor_without_numbers_is_left_out():
    like = [np.zeros((4, 30)), np.zeros((0, 3))]
    subject = Plain(shapes=((4, 30), (0, 3)))
    assert conformance.check(subject, subject.claim, like=like, laws=["scale", "bound"])


MECHANISMS = [tff_mf.Identity(), BANDS, tff_mf.Tree(9), tff_mf.BLT(theta=[0.9, 0.4], omega=[0.2, 0.5])]


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("seed", range(200))
def test_a_right_subject_of_any_setting_fails_no_law(seed):
    generator = np.random.default_rng(seed)
    shapes = [(1,), (3, 2), (64,), (5, 1, 30), (400,)]
    claim = {
        "mechanism": MECHANISMS[seed % 4],
        "clip_norm": 10.0 ** generator.uniform(-6, 6),
        "noise_multiplier": 10.0 ** generator.uniform(-1, 1),
        "divisor": 10.0 ** generator.uniform(0, 4),
        "rounds": int(generator.integers(1, 9)),
    }
    subject = Plain(shapes=tuple(shapes[: generator.integers(1, 6)]), **claim)
    like = [np.zeros(shape) for shape in subject.shapes]
    clients, effort = int(generator.integers(2, 40)), 1.0 if seed % 20 == 10 else 0.1
    verdict = conformance.check(subject, subject.claim, like=like, clients=clients, effort=effort)
    assert verdict.status != "failed", str(verdict)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"laws": ["scales"]}, "laws='scales'"),
        ({"clients": 0}, "clients=0"),
        ({"like": []}, "like has no numbers"),
        ({"like": np.zeros(3)}, "refuses a round"),
        ({"claim": Claim(**{**CLAIM, "rounds": 20})}, "no round is left.*fewer rounds than 20, pass rounds="),
        ({"claim": "mine"}, "claim='mine'"),
    ],
)
def test_what_cannot_be_checked_is_refused(changes, message):
    subject = Plain()
    with pytest.raises(tff_mf.InputError, match=message):
        conformance.check(subject, **{"claim": subject.claim, "like": LIKE, **changes})


@pytest.mark.parametrize("name", ["clip_norm", "noise_multiplier", "divisor"])
def test_a_claim_has_positive_numbers(name):
    with pytest.raises(tff_mf.InputError, match=name):
        Claim(**{"clip_norm": 1.0, "noise_multiplier": 1.0, name: 0.0})
